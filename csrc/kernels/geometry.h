// Index arithmetic that host and kernels share; shaders/lib/geometry.slang is the twin.
#pragma once

#include <cstdint>

namespace anymps::kernels {

// Division by a number fixed at dispatch: multiply and shift instead of divide. Exact for every 32-bit
// dividend (Granlund and Montgomery 1994, figure 4.1). divisor: 1 <= divisor < 2^32; 0 is taken as 1 (an
// empty dimension).
struct FastDivider {
    uint32_t divisor = 1;
    uint32_t magic = 1;
    uint32_t shift = 0;

    FastDivider() = default;
    explicit FastDivider(uint32_t d);

    uint32_t divide(uint32_t n) const {
        const auto t = static_cast<uint32_t>((static_cast<uint64_t>(n) * magic) >> 32);
        const uint32_t first = shift < 1 ? shift : 1;
        return (t + ((n - t) >> first)) >> (shift - first);
    }
};
static_assert(sizeof(FastDivider) == 12);

}  // namespace anymps::kernels
