#include "distributed/running_exchange.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
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
    if (!running->slices.end(std::move(error))) return;
    if (running->slices.error) {
        running->end();
    } else {
        running->finish();
    }
}

}  // namespace

std::vector<Slice> RunningExchange::cut() {
    size_t bytes = 0;
    for (const auto& argument : exchange.arguments) bytes += argument.exchanged().nbytes();
    slices.left = exchange.sliced ? std::clamp<size_t>(bytes / kSliceBytes, 1, kMaxSlices) : 1;
    const auto count = static_cast<int64_t>(slices.left);
    std::vector<Slice> all;
    for (int64_t i = 0; i < count; ++i) all.push_back({i, count});
    return all;
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
        slices.error = std::current_exception();
    }
    end();
}

void RunningExchange::end() {
    exchange.arguments.clear();
    if (!work) return;
    if (slices.error) {
        work->fail(explained(slices.error, exchange.name, caller));
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
    auto parts = std::make_shared<Countdown>();
    parts->left = works.size();
    for (const auto& work : works) {
        work->getFuture()->addCallback([running, slice, parts](c10::ivalue::Future& future) {
            if (parts->end(future.hasError() ? future.exception_ptr() : nullptr))
                end_slice(running, slice, parts->error);
        });
    }
}

}  // namespace anymps::distributed
