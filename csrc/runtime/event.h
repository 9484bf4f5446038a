// A point in the stream: c10's torch.Event and torch.mps.Event both stand on it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "runtime/stream_waits.h"

namespace anymps::runtime {

// Thread-safe. May be recorded again: it then stands for the newer point.
class Event {
  public:
    explicit Event(bool timing);
    ~Event();

    // In a stream, the thread's current one or another.
    void record(c10::StreamId stream = current_stream_id());
    // What a stream runs later comes after the event.
    void block(c10::StreamId stream = current_stream_id()) const;
    // True when it was never recorded, or when everything before the recorded point has completed.
    bool query() const;
    // Waits for the recorded point; raises a pending device assert as torch.AcceleratorError.
    void synchronize() const;

    // Milliseconds between two recorded events, by the device's clock; waits for both.
    // Raises RuntimeError when one has no timing or was not recorded.
    static double elapsed_ms(const Event& start, const Event& end);

  private:
    uint64_t ticks() const;  // waits for the recorded point

    const bool timing_;
    mutable std::mutex mutex_;
    uint64_t submission_ = 0;  // 0: never recorded
    Waits waits_;              // of the stream, besides
    uint32_t timestamp_ = 0;   // slot of the timestamp pool, when timing_
};

// The events that torch.mps.Event names by number.
class EventTable {
  public:
    static EventTable& instance();

    uint32_t acquire(bool timing);
    void release(uint32_t id);
    // Raises RuntimeError for a number that is not in use.
    std::shared_ptr<Event> get(uint32_t id) const;

  private:
    mutable std::mutex mutex_;
    std::unordered_map<uint32_t, std::shared_ptr<Event>> events_;
    uint32_t next_id_ = 1;  // torch.mps.Event takes 0 for "none"
};

}  // namespace anymps::runtime
