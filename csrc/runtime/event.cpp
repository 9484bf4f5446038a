#include "runtime/event.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "vulkan/query_pool.h"

namespace anymps::runtime {

namespace {

// Slots for timestamps, made in chunks and reused. The encoder resets a slot in the stream before it writes
// it, so a slot may be handed on while an earlier write is still in flight.
class TimestampPool {
  public:
    // Leaked: events may outlive static objects.
    static TimestampPool& instance() {
        static auto* pool = new TimestampPool;
        return *pool;
    }

    uint32_t acquire() {
        const std::lock_guard lock(mutex_);
        if (free_.empty()) {
            const auto first = static_cast<uint32_t>(chunks_.size()) * kChunk;
            chunks_.push_back(std::make_unique<vulkan::QueryPool>(device(), kChunk));
            for (uint32_t i = kChunk; i > 0; --i) free_.push_back(first + i - 1);
        }
        const uint32_t slot = free_.back();
        free_.pop_back();
        return slot;
    }

    void release(uint32_t slot) {
        const std::lock_guard lock(mutex_);
        free_.push_back(slot);
    }

    void write(uint32_t slot) { encoder().write_timestamp(chunk(slot), slot % kChunk); }

    uint64_t read(uint32_t slot) {
        uint64_t ticks = 0;
        TORCH_CHECK(chunk(slot).read(slot % kChunk, &ticks),
                    "The event's timestamp was not written by the device");
        return ticks;
    }

  private:
    static constexpr uint32_t kChunk = 64;

    vulkan::QueryPool& chunk(uint32_t slot) {
        const std::lock_guard lock(mutex_);
        return *chunks_[slot / kChunk];
    }

    std::mutex mutex_;
    std::deque<std::unique_ptr<vulkan::QueryPool>> chunks_;
    std::vector<uint32_t> free_;
};

}  // namespace

Event::Event(bool timing) : timing_(timing) {}

Event::~Event() {
    if (timing_ && submission_ != 0) TimestampPool::instance().release(timestamp_);
}

void Event::record(c10::StreamId id) {
    const std::lock_guard lock(mutex_);
    waits_ = waits_of(id);
    auto& stream = encoder();
    if (timing_) {
        auto& pool = TimestampPool::instance();
        if (submission_ == 0) timestamp_ = pool.acquire();
        pool.write(timestamp_);
    }
    submission_ = stream.submit();
}

void Event::block(c10::StreamId stream) const {
    Waits waits;
    {
        const std::lock_guard lock(mutex_);
        waits = waits_;
    }
    for (const StreamWait& wait : waits) hold_stream(wait, stream);
}

bool Event::query() const {
    const std::lock_guard lock(mutex_);
    return submission_ == 0 ||
           (encoder().completed(submission_) && std::ranges::all_of(waits_, &StreamWait::over));
}

void Event::synchronize() const {
    uint64_t submission;
    Waits waits;
    {
        const std::lock_guard lock(mutex_);
        submission = submission_;
        waits = waits_;
    }
    if (submission == 0) return;
    encoder().wait(submission);
    for (const StreamWait& wait : waits) wait.semaphore->wait(wait.value);
    encoder().check_errors();
}

uint64_t Event::ticks() const {
    TORCH_CHECK(timing_, "Events were not created with argument 'enable_timing=True'");
    synchronize();
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(submission_ != 0, "Both events must be recorded before calculating elapsed time.");
    return TimestampPool::instance().read(timestamp_);
}

double Event::elapsed_ms(const Event& start, const Event& end) {
    const uint64_t first = start.ticks();
    const uint64_t last = end.ticks();
    const auto& info = device().info();
    TORCH_CHECK(info.timestamp_period_ns > 0, "The Vulkan driver of '", info.name, "' has no timestamps");
    // The counter wraps at its valid bits; shifting them to the top makes the difference signed.
    const uint32_t unused_bits = 64 - info.timestamp_valid_bits;
    const auto difference = static_cast<int64_t>((last - first) << unused_bits) >> unused_bits;
    return static_cast<double>(difference) * info.timestamp_period_ns * 1e-6;
}

EventTable& EventTable::instance() {
    static auto* table = new EventTable;
    return *table;
}

uint32_t EventTable::acquire(bool timing) {
    const std::lock_guard lock(mutex_);
    const uint32_t id = next_id_++;
    events_.emplace(id, std::make_shared<Event>(timing));
    return id;
}

void EventTable::release(uint32_t id) {
    std::shared_ptr<Event> event;  // destroyed after the lock is gone
    const std::lock_guard lock(mutex_);
    if (const auto found = events_.find(id); found != events_.end()) {
        event = std::move(found->second);
        events_.erase(found);
    }
}

std::shared_ptr<Event> EventTable::get(uint32_t id) const {
    const std::lock_guard lock(mutex_);
    const auto found = events_.find(id);
    TORCH_CHECK(found != events_.end(), "Invalid Event ID: ", id);
    return found->second;
}

}  // namespace anymps::runtime
