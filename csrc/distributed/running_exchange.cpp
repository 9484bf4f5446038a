#include "distributed/running_exchange.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "runtime/command_encoder.h"

namespace anymps::distributed {
namespace {

// Some milliseconds of a network of 10 Gbit/s: the latency of a message counts for little.
constexpr size_t kSliceBytes = 8ull << 20;
constexpr size_t kMaxSlices = 64;

// error: of the slice, if any. The last one ends the exchange.
void end_slice(const std::shared_ptr<RunningExchange>& running, Slice slice, std::exception_ptr error) {
    try {
        if (!error) running->to_device(slice);
    } catch (...) {
        error = std::current_exception();
    }
    {
        const std::lock_guard lock(running->mutex);
        if (error && !running->error) running->error = std::move(error);
        if (--running->left != 0) return;
    }
    if (running->error) {
        running->end();
    } else {
        running->finish();
    }
}

// The Works of a slice that have not ended, and the first error.
struct SliceState {
    std::atomic<size_t> left;
    std::mutex mutex;
    std::exception_ptr error;
};

}  // namespace

std::vector<Slice> RunningExchange::slice() {
    size_t bytes = 0;
    for (const auto& argument : exchange.arguments) bytes += argument.exchanged().nbytes();
    left = exchange.sliced ? std::clamp<size_t>(bytes / kSliceBytes, 1, kMaxSlices) : 1;
    std::vector<Slice> slices;
    for (size_t i = 0; i < left; ++i) slices.push_back({static_cast<int64_t>(i), static_cast<int64_t>(left)});
    return slices;
}

std::vector<WorkPtr> RunningExchange::start(Slice slice, std::exception_ptr error) {
    // It holds the transport, which must not be destroyed by a thread of its own.
    const auto begin =
        slice.index + 1 == slice.count ? std::exchange(exchange.start, nullptr) : exchange.start;
    if (error) std::rethrow_exception(error);
    Tensors views;
    for (const auto& argument : exchange.arguments) views.push_back(argument.host(slice));
    return begin(views);
}

void RunningExchange::to_device(Slice slice) {
    for (auto& argument : exchange.arguments) argument.to_device(slice);
    if (slice.index + 1 != slice.count) runtime::encoder().submit();
}

void RunningExchange::finish() {
    try {
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        if (exchange.finish) exchange.finish(exchange.arguments);
        for (auto& argument : exchange.arguments) argument.to_tensor();
        runtime::encoder().submit();
    } catch (...) {
        error = std::current_exception();
    }
    end();
}

void RunningExchange::end() {
    exchange.arguments.clear();
    if (!work) return;
    if (error) {
        work->fail(explained(error, exchange.name, caller));
    } else {
        work->complete();
    }
}

void start(const std::shared_ptr<RunningExchange>& running, Slice slice, std::exception_ptr error) {
    std::vector<WorkPtr> works;
    try {
        works = running->start(slice, std::move(error));
    } catch (...) {
        return end_slice(running, slice, std::current_exception());
    }
    if (works.empty()) return end_slice(running, slice, nullptr);
    auto state = std::make_shared<SliceState>();
    state->left = works.size();
    for (const auto& work : works) {
        work->getFuture()->addCallback([running, slice, state](c10::ivalue::Future& future) {
            if (future.hasError()) {
                const std::lock_guard lock(state->mutex);
                if (!state->error) state->error = future.exception_ptr();
            }
            if (--state->left == 0) end_slice(running, slice, state->error);
        });
    }
}

}  // namespace anymps::distributed
