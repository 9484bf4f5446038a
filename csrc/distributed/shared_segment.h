// Memory that the ranks of one machine share, and the counters by which they wait for each other. No PyTorch.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace anymps::distributed {

// A rank's part of the shared memory: anonymous, of this user alone (mode 0600) and of a size that nobody can
// change; every rank maps all parts. A peer finds it under /proc, by the record that the rank publishes, and
// takes it for what it is only if it holds the record's 128 random bits. The kernel frees it when the last
// rank has ended, however that ends.
//
// Ranks cut collectives into chunks, which all of them number alike, and each chunk passes up to kPhases
// phases in every rank: it is written into the rank's slot for the chunk, combined with what the others have
// written, and what comes of that is fetched by the others. A phase of a chunk begins in a rank when all
// ranks have done the phase before; the first one, when all have done the last phase of the chunk that had
// the slot before. Small chunks, which have a numbering of their own besides, take small slots.
//
// Owner: one process group, which keeps the addresses that it maps to. RAII.
class SharedSegment {
  public:
    static constexpr int kPhases = 3;
    static constexpr uint32_t kSlots = 8;
    static constexpr size_t kSlotBytes = 5632ull << 10;  // taken from the machine when they are first written
    static constexpr uint32_t kSmallSlots = 16;
    static constexpr size_t kSmallSlotBytes = 256ull << 10;
    static constexpr size_t kHeaderBytes = 64 << 10;  // pages of any machine
    static constexpr size_t kBytes = 2 * kHeaderBytes + kSlots * kSlotBytes +
                                     kSmallSlots * kSmallSlotBytes;  // with a tail that nobody writes

    // One of this process, mapped to `at`. Throws std::system_error.
    explicit SharedSegment(std::byte* at);
    // A peer's, by its record. Throws std::system_error or std::runtime_error where it is not to be had:
    // another machine, container or user.
    SharedSegment(std::byte* at, const std::string& record);
    ~SharedSegment();
    SharedSegment(SharedSegment&& other) noexcept;
    SharedSegment(const SharedSegment&) = delete;
    SharedSegment& operator=(const SharedSegment&) = delete;

    const std::string& record() const { return record_; }
    // Where the slot of a chunk begins in a segment, and that of a small chunk by its own number.
    static size_t slot(uint32_t chunk) { return kHeaderBytes + chunk % kSlots * kSlotBytes; }
    static size_t small_slot(uint32_t number) {
        return kHeaderBytes + kSlots * kSlotBytes + number % kSmallSlots * kSmallSlotBytes;
    }

    // Whether the rank has done a phase of the first `count` chunks, or is through with as many small ones.
    bool done(int phase, uint32_t count) const;
    bool done_small(uint32_t count) const;
    void publish(int phase, uint32_t count) const;
    void publish_small(uint32_t count) const;
    // That the rank has given up, for good.
    void publish_failure() const;
    bool failed() const;
    // How far the rank is in an Agreement.
    void publish_stage(uint32_t stage) const;
    uint32_t stage() const;
    // The rank's device, and the vulkan::MemoryHandles that it can share, a bit each.
    struct Device {
        std::array<uint8_t, 32> uuid;
        uint32_t handles;
    };
    Device& device() const;
    // A number that goes with a chunk, as a slot does.
    uint64_t& value(uint32_t chunk) const;

    // What has happened to the rank: changes with every ring().
    uint32_t rings() const;
    // Tells the rank that something has happened which it may wait for.
    void ring() const;
    // Sleeps until rings() is not `seen` any more, at most for `patience`.
    void sleep(uint32_t seen, std::chrono::microseconds patience) const;
    // Whether the process whose memory this is still runs.
    bool alive() const;

  private:
    struct Header;

    Header& header() const;
    void map(int file);

    std::string record_;
    std::byte* base_ = nullptr;
    int process_ = -1;  // a pidfd, of a peer
    int file_ = -1;
};

// Addresses for the segments of all ranks, one behind the other: one range, which a device can import. RAII.
class SharedMemory {
  public:
    // alignment: of the range, a power of two. Throws std::system_error.
    SharedMemory(int ranks, size_t alignment);
    ~SharedMemory();
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    std::byte* segment(int rank) const { return base_ + rank * SharedSegment::kBytes; }
    size_t bytes() const { return bytes_; }

  private:
    size_t bytes_, reserved_;
    std::byte* start_ = nullptr;
    std::byte* base_ = nullptr;
};

}  // namespace anymps::distributed
