// What streams wait for besides their own commands: work that goes on beside them, such as collectives.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "vulkan/timeline_semaphore.h"

namespace anymps::runtime {

// A value that a semaphore has to come to.
struct StreamWait {
    std::shared_ptr<const vulkan::TimelineSemaphore> semaphore;
    uint64_t value;
    // Lives as the semaphore does, where there is one: raised to the value once the default stream waits for
    // it, from when on what is recorded may reuse the memory that the other work uses.
    std::atomic<uint64_t>* held = nullptr;

    bool over() const { return semaphore->value() >= value; }
};
using Waits = std::vector<StreamWait>;

// Between the encoder, which submits the queue's commands, and those whose work it waits for. Thread-safe.
class StreamWaits {
  public:
    // Leaked: threads may use it while static objects are destroyed.
    static StreamWaits& instance();

    void add(StreamWait wait);
    // What the next submission waits for.
    Waits take();
    bool empty() const { return !pending_.load(std::memory_order_acquire); }

    // The encoder's counter of completed serials.
    void set_timeline(const vulkan::TimelineSemaphore& timeline) { timeline_ = &timeline; }
    const vulkan::TimelineSemaphore& timeline() const { return *timeline_; }

    // What has gone wrong in work that the stream was told to wait for; raised once, at the next
    // synchronization.
    void fail(std::exception_ptr failure);
    void raise_failure();

  private:
    std::mutex mutex_;
    std::atomic<bool> pending_{false};
    std::atomic<bool> failed_{false};
    Waits waits_;
    std::exception_ptr failure_;
    const vulkan::TimelineSemaphore* timeline_ = nullptr;
};

std::vector<vulkan::SemaphoreValue> values_of(const Waits& waits);

// Streams. The commands of all go to one queue, in the order in which they are recorded, so waiting for each
// other's commands is already done. But each waits for other work by itself: what a stream beside the default
// one waits for holds up the queue only when a command is recorded in that stream, or when another stream
// waits for it. So a collective that is waited for in a stream of its own goes on while the default stream
// computes.

// Of this thread; 0 is the default stream.
c10::StreamId current_stream_id();
// Returns the one before.
c10::StreamId exchange_stream_id(c10::StreamId id);
c10::StreamId new_stream_id();

// What is recorded in a stream from now on, the thread's current one or another, runs once the semaphore has
// come to the value. Whoever raises it must not need the queue for that, nor the encoder's lock. The
// semaphore has to outlive the wait.
void hold_stream(const StreamWait& wait, c10::StreamId id = current_stream_id());
// What a stream beside the default one waits for; nothing for the default one, whose events tell it.
Waits waits_of(c10::StreamId id);

namespace detail {
extern std::atomic<bool> some_stream_waits;
void hold_queue(c10::StreamId id);
}  // namespace detail

// Before a command is recorded: the queue waits for what the current stream waits for.
inline void enter_current_stream() {
    if (detail::some_stream_waits.load(std::memory_order_relaxed)) [[unlikely]]
        detail::hold_queue(current_stream_id());
}

// The queue waits for what any stream waits for.
void hold_for_all_streams();

}  // namespace anymps::runtime
