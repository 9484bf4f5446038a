#include "runtime/stream_waits.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/command_encoder.h"

namespace anymps::runtime {
namespace {

constexpr c10::StreamId kDefault = 0;

thread_local c10::StreamId current = kDefault;

void merge(Waits& waits, StreamWait wait) {
    for (StreamWait& other : waits) {
        if (other.semaphore != wait.semaphore) continue;
        other.value = std::max(other.value, wait.value);
        return;
    }
    waits.push_back(std::move(wait));
}

void raise(std::atomic<uint64_t>& counter, uint64_t value) {
    uint64_t before = counter;
    while (before < value && !counter.compare_exchange_weak(before, value)) {
    }
}

// What the streams beside the default one wait for. Leaked, as above.
struct SideStreams {
    std::mutex mutex;
    std::map<c10::StreamId, Waits> waits;

    static SideStreams& instance() {
        static auto* streams = new SideStreams;
        return *streams;
    }

    Waits take(c10::StreamId id) {
        const std::lock_guard lock(mutex);
        const auto found = waits.extract(id);
        detail::some_stream_waits = !waits.empty();
        return found.empty() ? Waits{} : std::move(found.mapped());
    }
};

}  // namespace

StreamWaits& StreamWaits::instance() {
    static auto* waits = new StreamWaits;
    return *waits;
}

void StreamWaits::add(StreamWait wait) {
    const std::lock_guard lock(mutex_);
    merge(waits_, std::move(wait));
    pending_.store(true, std::memory_order_release);
}

Waits StreamWaits::take() {
    if (empty()) return {};
    const std::lock_guard lock(mutex_);
    pending_.store(false, std::memory_order_release);
    return std::exchange(waits_, {});
}

void StreamWaits::fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
}

void StreamWaits::raise_failure() {
    if (!failed_.load(std::memory_order_acquire)) return;
    std::unique_lock lock(mutex_);
    failed_.store(false, std::memory_order_release);
    if (const auto failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
}

std::vector<vulkan::SemaphoreValue> values_of(const Waits& waits) {
    std::vector<vulkan::SemaphoreValue> values;
    for (const auto& wait : waits) values.push_back({wait.semaphore->handle(), wait.value});
    return values;
}

c10::StreamId current_stream_id() {
    return current;
}

c10::StreamId exchange_stream_id(c10::StreamId id) {
    return std::exchange(current, id);
}

c10::StreamId new_stream_id() {
    static std::atomic<c10::StreamId> last{kDefault};
    return ++last;
}

void hold_stream(const StreamWait& wait, c10::StreamId id) {
    if (id == kDefault) {
        encoder().submit();  // what is recorded already need not wait
        StreamWaits::instance().add(wait);
        if (wait.held) raise(*wait.held, wait.value);
        return;
    }
    auto& streams = SideStreams::instance();
    const std::lock_guard lock(streams.mutex);
    merge(streams.waits[id], wait);
    detail::some_stream_waits = true;
}

Waits waits_of(c10::StreamId id) {
    auto& streams = SideStreams::instance();
    const std::lock_guard lock(streams.mutex);
    const auto found = streams.waits.find(id);
    return found == streams.waits.end() ? Waits{} : found->second;
}

namespace detail {

std::atomic<bool> some_stream_waits{false};

void hold_queue(c10::StreamId id) {
    if (id == kDefault) return;
    for (const StreamWait& wait : SideStreams::instance().take(id)) hold_stream(wait, kDefault);
}

}  // namespace detail

void hold_for_all_streams() {
    auto& streams = SideStreams::instance();
    while (detail::some_stream_waits) {
        std::unique_lock lock(streams.mutex);
        if (streams.waits.empty()) return;
        const c10::StreamId id = streams.waits.begin()->first;
        lock.unlock();
        detail::hold_queue(id);
    }
}

}  // namespace anymps::runtime
