// Memory of an amax state (shaders/lib/amax.slang).
#pragma once

#include <cstdint>

#include "runtime/zeroed_words.h"

namespace anymps::ops {

struct AmaxState {
    static constexpr uint64_t kBytes = runtime::ZeroedWords::kSlotBytes;
    // Bytes of the exact amax; the sampled one is behind it.
    static constexpr uint64_t kSampleOffset = 8;
};

}  // namespace anymps::ops
