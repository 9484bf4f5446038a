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
// takes it for what it is only if it holds the record's 128 random bits. RAII.
class SharedSegment {
  public:
    static constexpr int kSlots = 2;
    static constexpr size_t kSlotBytes = 16ull << 20;  // taken from the machine when they are first written

    enum Counter { Written, Reduced, Read, kCounters };

    // One of this process. Throws std::system_error.
    SharedSegment();
    // A peer's, by its record. Throws std::system_error or std::runtime_error where it is not to be had:
    // another machine, container or user.
    explicit SharedSegment(const std::string& record);
    ~SharedSegment();
    SharedSegment(SharedSegment&& other) noexcept;
    SharedSegment(const SharedSegment&) = delete;
    SharedSegment& operator=(const SharedSegment&) = delete;

    const std::string& record() const { return record_; }
    std::byte* slot(uint64_t step) const { return base_ + kHeaderBytes + (step % kSlots) * kSlotBytes; }

    // Tells the ranks that wait that this one has come to a step; counters only grow.
    void publish(Counter counter, uint32_t step) const;
    // Waits until a counter has come to a step. False after `patience`, for the caller to look around.
    bool wait(Counter counter, uint32_t step, std::chrono::milliseconds patience) const;
    // Whether the process whose memory this is still runs.
    bool alive() const;

  private:
    static constexpr size_t kHeaderBytes = 4096;
    static constexpr size_t kBytes = kHeaderBytes + kSlots * kSlotBytes;
    struct Header;

    Header& header() const;
    void map(int file);

    std::string record_;
    std::byte* base_ = nullptr;
    int process_ = -1;  // a pidfd, of a peer
    int file_ = -1;
};

}  // namespace anymps::distributed
