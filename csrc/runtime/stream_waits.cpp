#include "runtime/stream_waits.h"

#include <algorithm>
#include <utility>

#include "runtime/command_encoder.h"

namespace anymps::runtime {

StreamWaits& StreamWaits::instance() {
    static auto* waits = new StreamWaits;
    return *waits;
}

void StreamWaits::add(Wait wait) {
    const std::lock_guard lock(mutex_);
    for (Wait& other : waits_) {
        if (other.semaphore != wait.semaphore) continue;
        other.value = std::max(other.value, wait.value);
        return;
    }
    waits_.push_back(std::move(wait));
    pending_.store(true, std::memory_order_release);
}

std::vector<StreamWaits::Wait> StreamWaits::take() {
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

std::vector<vulkan::SemaphoreValue> values_of(const std::vector<StreamWaits::Wait>& waits) {
    std::vector<vulkan::SemaphoreValue> values;
    for (const auto& wait : waits) values.push_back({wait.semaphore->handle(), wait.value});
    return values;
}

void hold_stream(std::shared_ptr<const vulkan::TimelineSemaphore> semaphore, uint64_t value) {
    encoder().submit();  // what is recorded already need not wait
    StreamWaits::instance().add({std::move(semaphore), value});
}

}  // namespace anymps::runtime
