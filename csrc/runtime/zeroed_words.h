// A few words of device memory that begin as zeros, filled for many takers at once.
#pragma once

#include <cstdint>
#include <memory>

namespace anymps::vulkan {
class Buffer;
}

namespace anymps::runtime {

// Slots of 16 bytes that follow one another, nobody else's while this or a copy of it lives: that must be
// until all commands that use them are recorded, which name them among their accesses. Any thread may take
// some.
class ZeroedWords {
  public:
    static constexpr uint64_t kSlotBytes = 16;

    static constexpr uint64_t kMaxSlots = 4096;

    // slots: at least 1, at most kMaxSlots, and few where they are taken often.
    explicit ZeroedWords(uint64_t slots);

    // Slots that are never freed, outside of any graph that this thread captures.
    static const ZeroedWords& leaked(uint64_t slots);

    uint64_t address() const { return address_; }

  private:
    std::shared_ptr<const vulkan::Buffer> chunk_;
    uint64_t address_;
};

}  // namespace anymps::runtime
