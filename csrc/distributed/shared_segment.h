// Memory that the ranks of one machine share, and the counters by which they wait for each other. No PyTorch.
#pragma once

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
// Ranks work in steps, which all of them count alike. What a rank does in step s reads of the others' slots
// what they have written in steps up to s - depth, where depth is 1 or kMaxDepth; it begins when all of them
// have done step s - depth. So a slot that is written in step s may be written again in step s + kSlots.
//
// Owner: one process group, which keeps the addresses that it maps to. RAII.
class SharedSegment {
  public:
    static constexpr uint32_t kMaxDepth = 2;
    static constexpr uint32_t kSlots = 2 * kMaxDepth;
    static constexpr size_t kSlotBytes = 12ull << 20;  // taken from the machine when they are first written
    static constexpr size_t kHeaderBytes = 64 << 10;   // pages of any machine
    static constexpr size_t kBytes =
        2 * kHeaderBytes + kSlots * kSlotBytes;  // with a tail that nobody writes

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
    // Where the slot of a step begins in a segment.
    static size_t slot(uint32_t step) { return kHeaderBytes + step % kSlots * kSlotBytes; }

    // Whether the rank has done a step, and all before it.
    bool reached(uint32_t step) const;
    void publish(uint32_t step) const;
    // That the rank has given up, for good.
    void publish_failure() const;
    bool failed() const;
    // A number that goes with a step, as a slot does.
    uint64_t& value(uint32_t step) const;
    // Sleeps until the rank has done a step or failed, at most for `patience`, or less.
    void sleep(uint32_t step, std::chrono::milliseconds patience) const;
    // Whether the process whose memory this is still runs.
    bool alive() const;

  private:
    struct Header;

    Header& header() const;
    void map(int file);
    void wake() const;

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
