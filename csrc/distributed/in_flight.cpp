#include "distributed/in_flight.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/stream_waits.h"

namespace anymps::distributed {

void add_spans(std::vector<Span>& spans, const Tensors& tensors, bool written) {
    for (const auto& tensor : tensors) {
        if (tensor.numel() == 0) continue;
        int64_t last = 0;
        for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
        const auto bytes = static_cast<int64_t>(tensor.element_size());
        const int64_t first = tensor.storage_offset();
        spans.push_back(
            {tensor.storage().unsafeGetStorageImpl(), first * bytes, (first + last + 1) * bytes, written});
    }
}

std::vector<Span> spans_of(const Exchange& exchange) {
    std::vector<Span> spans;
    for (const auto& argument : exchange.arguments) add_spans(spans, {argument.tensor()}, argument.written());
    // Of some exchanges what is written last is no argument.
    add_spans(spans, exchange.results, true);
    return spans;
}

void InFlight::wait_for(const std::vector<Span>& next, const std::function<void()>& before_wait) {
    const c10::StreamId stream = runtime::current_stream_id();
    std::vector<c10::intrusive_ptr<DeviceWork>> wanted, kept;  // kept: let go of without the lock
    {
        const std::lock_guard lock(mutex_);
        std::erase_if(uses_, [&](const Use& use) {
            auto work = use.work.lock();
            const bool over = !work || work->is_over();
            if (over) kept.push_back(std::move(work));
            if (over) return true;
            const bool conflict = std::ranges::any_of(use.spans, [&](const Span& used) {
                return std::ranges::any_of(next, [&](const Span& span) { return span.conflicts(used); });
            });
            (conflict && !work->is_waited_for(stream) ? wanted : kept).push_back(std::move(work));
            return false;
        });
    }
    for (const auto& work : wanted) {
        if (work->waits_on_host()) before_wait();
        work->follow();
    }
}

void InFlight::wait_for_earlier(const DeviceWork* work) {
    std::vector<c10::intrusive_ptr<DeviceWork>> earlier;
    {
        const std::lock_guard lock(mutex_);
        for (const Use& use : uses_) {
            auto other = use.work.lock();
            if (other.get() == work) break;
            if (other) earlier.push_back(std::move(other));
        }
    }
    for (const auto& other : earlier) {
        try {
            other->follow();
        } catch (const std::exception&) {
            // Its own wait() raises it.
        }
    }
}

void InFlight::add(const c10::intrusive_ptr<DeviceWork>& work, std::vector<Span> spans) {
    std::vector<Use> ended;  // freed without the lock; a group of messages alone never comes to wait_for()
    const std::lock_guard lock(mutex_);
    const auto first =
        std::stable_partition(uses_.begin(), uses_.end(), [](const Use& use) { return !use.work.expired(); });
    ended.assign(std::make_move_iterator(first), std::make_move_iterator(uses_.end()));
    uses_.erase(first, uses_.end());
    uses_.push_back({c10::weak_intrusive_ptr<DeviceWork>(work), std::move(spans)});
}

}  // namespace anymps::distributed
