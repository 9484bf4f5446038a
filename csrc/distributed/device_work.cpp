#include "distributed/device_work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "distributed/in_flight.h"
#include "distributed/job_thread.h"
#include "distributed/running_exchange.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "runtime/exit.h"
#include "runtime/stream.h"
#include "runtime/stream_waits.h"
#include "vulkan/timeline_semaphore.h"

namespace anymps::distributed {
namespace {

using c10::ivalue::Future;

constexpr const char* kLate = ": another rank did not take part within the timeout.";

// How long a caller looks for the end before it sleeps, from which it wakes some 50 us late; a software
// driver needs the core.
std::chrono::microseconds spin() {
    return std::chrono::microseconds(runtime::device_info().runs_on_cpu ? 0 : 200);
}

// The thread that starts exchanges. It never waits for one, so that a message and its answer cannot block
// each other. Leaked, ended by drain().
class Starter {
  public:
    using Job = std::function<void(std::exception_ptr)>;

    static Starter& instance() {
        static auto* starter = new Starter;
        return *starter;
    }

    // job is called, on the thread, when what is recorded by now has completed, and what the current stream
    // waits for: no command need have been recorded behind that. Or with what was thrown by waiting.
    void push(Job job) {
        // A Future's callback runs here where its exchange ended early, and may wait for what it launches.
        thread_.hand_over();
        auto after = runtime::waits_of(runtime::current_stream_id());
        const uint64_t serial = runtime::encoder().submit();
        const bool taken = thread_.push([serial, after = std::move(after), job = std::move(job)] {
            std::exception_ptr error;
            try {
                runtime::encoder().wait(serial);
                for (const auto& wait : after) wait.semaphore->wait(wait.value);
            } catch (...) {
                error = std::current_exception();
            }
            job(error);
        });
        TORCH_CHECK(taken, "No collective can start while the interpreter ends.");
    }

  private:
    Starter() {
        runtime::before_drain([] { instance().thread_.finish(); });
    }

    JobThread thread_{"anymps_c10d"};
};

// A message until it has ended, which gloo tells only to who waits. Thread-safe.
class Message {
  public:
    Message(Exchange exchange, const Caller& caller, std::chrono::milliseconds timeout) : timeout_(timeout) {
        running_.exchange = std::move(exchange);
        running_.caller = caller;
    }

    // error: of what was to complete before.
    void start(std::exception_ptr error) {
        std::vector<WorkPtr> works;
        try {
            works = running_.start({}, std::exchange(error, nullptr));
        } catch (...) {
            error = std::current_exception();
        }
        {
            const std::lock_guard lock(mutex_);
            works_ = std::move(works);
            error_ = std::move(error);
            started_ = true;
        }
        started_changed_.notify_all();
    }

    // Waits for the end and completes the Work, if there is one; a second caller waits for the first.
    void end(std::chrono::milliseconds timeout, c10::intrusive_ptr<DeviceWork> work) {
        std::call_once(ended_, [&] {
            {
                std::unique_lock lock(mutex_);
                started_changed_.wait(lock, [&] { return started_; });
            }
            running_.work = std::move(work);
            try {
                if (error_) std::rethrow_exception(error_);
                for (const auto& each : works_) {
                    if (!each->wait(timeout == kNoTimeout ? timeout_ : timeout))
                        throw std::runtime_error("The message was aborted.");
                }
                running_.to_device({});
                running_.finish();
            } catch (...) {
                running_.slices.error = std::current_exception();
                running_.end();
            }
            running_.work.reset();
        });
    }

    void abort() {
        const std::lock_guard lock(mutex_);
        for (const auto& work : works_) work->abort();
    }

    // Of the host's message, once it has started.
    std::optional<int> source_rank() const {
        const std::lock_guard lock(mutex_);
        return works_.empty() ? std::nullopt : std::optional(works_.front()->sourceRank());
    }

  private:
    const std::chrono::milliseconds timeout_;
    RunningExchange running_;
    mutable std::mutex mutex_;
    std::condition_variable started_changed_;
    bool started_ = false;
    std::once_flag ended_;
    std::vector<WorkPtr> works_;
    std::exception_ptr error_;
};

// Threads that wait for messages whose Work was let go of or is asked whether it has completed, each for one:
// they may end in any order. Leaked, and aborted when the interpreter ends.
class MessageWaits {
  public:
    static MessageWaits& instance() {
        static auto* waits = new MessageWaits;
        return *waits;
    }

    void push(std::shared_ptr<Message> message, c10::intrusive_ptr<DeviceWork> work) {
        auto mark = std::make_shared<ActivityMark>();
        thread_.push(
            [this, mark = std::move(mark), message = std::move(message), work = std::move(work)]() mutable {
                thread_.hand_over();
                const AbortAtExit abort_at_exit([message] { message->abort(); });
                message->end(kNoTimeout, std::move(work));
            });
    }

  private:
    MessageWaits() {
        runtime::before_drain([] { instance().thread_.stop(); });
    }

    JobThread thread_{"anymps_messages"};
};

// The Work of a message, which goes on when nobody holds that.
class MessageWork final : public DeviceWork {
  public:
    MessageWork(std::shared_ptr<Message> message, c10d::OpType type, const Tensors& results,
                const Caller& caller)
        : DeviceWork(caller.rank, type, results, caller.sequence_number), message_(std::move(message)) {}
    ~MessageWork() override { leave(); }

    c10::intrusive_ptr<Future> getFuture() override {
        watch();
        return DeviceWork::getFuture();
    }

    c10::intrusive_ptr<Future> getFutureResult() override {
        watch();
        return DeviceWork::getFutureResult();
    }

    bool isCompleted() override {
        watch();
        return DeviceWork::isCompleted();
    }

    bool wait(std::chrono::milliseconds timeout) override {
        if (watched_) return DeviceWork::wait(timeout);
        message_->end(timeout, self());
        return DeviceWork::wait(kNoTimeout);
    }

    void follow() override {
        if (!watched_) message_->end(kNoTimeout, self());
        DeviceWork::follow();
    }

    int sourceRank() const override {
        const auto rank = message_->source_rank();
        return rank ? *rank : Work::sourceRank();
    }

    void abort() override { message_->abort(); }

    void release_resources() override {
        leave();
        DeviceWork::release_resources();
    }

  private:
    c10::intrusive_ptr<DeviceWork> self() {
        return c10::intrusive_ptr<DeviceWork>::unsafe_reclaim_from_nonowning(this);
    }

    // Has a thread wait.
    void watch() {
        if (!Work::isCompleted() && !watched_.exchange(true)) MessageWaits::instance().push(message_, self());
    }
    void leave() {
        if (!Work::isCompleted() && !watched_.exchange(true)) MessageWaits::instance().push(message_, {});
    }

    const std::shared_ptr<Message> message_;
    std::atomic<bool> watched_{false};
};

// Whether NCCL gathers into one tensor, which its Future holds.
bool gathers_into_one(c10d::OpType type, const Tensors& results) {
    return type == c10d::OpType::ALLGATHER && std::ranges::all_of(results, [&](const Tensor& result) {
               return result.sizes() == results.front().sizes();
           });
}

void stack(Future& gathered, Future& stacked) {
    c10::IValue value;
    try {
        if (gathered.hasError()) std::rethrow_exception(gathered.exception_ptr());
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        value = Tensors{at::stack(gathered.value().toTensorVector())};
    } catch (...) {
        return stacked.setError(std::current_exception());
    }
    stacked.markCompleted(std::move(value));
}

c10d::WorkResult outcome_of(const std::exception_ptr& error) {
    try {
        if (error) std::rethrow_exception(error);
    } catch (const std::exception& e) {
        const bool late = std::string_view(e.what()).find(kLate) != std::string_view::npos;
        return late ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
    }
    return c10d::WorkResult::SUCCESS;
}

}  // namespace

void forget(c10d::Work* work) {
    if (!c10d::allow_inflight_collective_as_graph_input()) return;
    c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::unsafe_reclaim_from_nonowning(work));
}

std::exception_ptr explained(std::exception_ptr error, const char* name, const Caller& caller) {
    try {
        std::rethrow_exception(error);
    } catch (const c10::Error&) {
        return error;
    } catch (const std::exception& e) {
        const std::string what = e.what();
        const bool late = what.find("imed out") != std::string::npos;
        const std::string text = c10::str(
            name, " on mps (number ", caller.sequence_number, " of its group) failed in rank ", caller.rank,
            " of ", caller.size, late ? kLate : "",
            late ? " It may have stopped, be slower than the timeout allows, or call another collective."
                 : ": the connection to another rank is gone. That rank has probably ended; its own output "
                   "tells why.",
            " The group cannot be used any more. (", what, ")");
        return std::make_exception_ptr(
            c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
    }
}

void StreamStep::record() {
    try {
        serial_ = record_();
    } catch (...) {
        serial_ = runtime::encoder().submit();
        throw;
    }
}

bool StreamStep::completed() const {
    const uint64_t serial = serial_;
    return serial != 0 && runtime::encoder().completed(serial);
}

void StreamStep::wait_recorded() const {
    while (owner_ == Owner::Stream && serial_ == 0) std::this_thread::yield();
}

// The step comes before whatever waits for collectives that the group ends after this one: it would wait for
// itself.
void Signal::hold() const {
    const std::lock_guard lock(group->mutex);
    if (step && group->held < number && runtime::current_stream_id() == 0 && step->take_by_stream()) {
        runtime::hold_stream({{group, &group->arrived}, number});
        return step->record();
    }
    group->held = std::max(group->held, number);
    runtime::hold_stream({{group, &group->completed}, number, &group->reusable});
}

DeviceWork::DeviceWork(int rank, c10d::OpType type, const Tensors& results, uint64_t sequence_number,
                       Signal signal)
    : Work(rank, type),
      results_(alias_of(results)),
      sequence_number_(sequence_number),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(),
                                                       std::vector<c10::Device>{runtime::mps_device()})),
      signal_(std::move(signal)) {}

// What has come after the signal on the stream finds the work completed.
bool DeviceWork::isCompleted() {
    if (!Work::isCompleted() && signal_.raised()) {
        std::unique_lock lock(mutex_);
        cv_.wait(lock, [&] { return completed_; });
    }
    return Work::isCompleted();
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
    forget(this);
    if (in_flight_ && timeout == kNoTimeout) in_flight_->wait_for_earlier(this);
    return wait_in_stream(timeout);
}

void DeviceWork::release_resources() {
    results_.clear();
    future_.reset();
    stacked_.reset();
    outcome_.reset();
    in_flight_.reset();
}

void DeviceWork::follow() {
    wait_in_stream(kNoTimeout);
}

bool DeviceWork::is_over() {
    const std::lock_guard lock(mutex_);
    return signal_.group ? settled_ : future_ended_;
}

bool DeviceWork::is_waited_for(c10::StreamId stream) {
    const std::lock_guard lock(mutex_);
    return held_ && holder_ == stream;
}

bool DeviceWork::wait_in_stream(std::chrono::milliseconds timeout) {
    if (!signal_.group) {
        const auto end = std::chrono::steady_clock::now() + spin();
        while (!Work::isCompleted() && std::chrono::steady_clock::now() < end) {
        }
        return Work::wait(timeout);
    }
    bool ended = timeout != kNoTimeout;
    {
        const std::lock_guard lock(mutex_);
        ended |= settled_;
        held_ |= !ended;
        if (!ended) holder_ = runtime::current_stream_id();
    }
    if (ended) Work::wait(timeout);
    signal_.hold();
    if (future_.use_count() > 1) complete_future();
    return true;
}

c10::intrusive_ptr<Future> DeviceWork::getFuture() {
    auto shown = future_;
    bool held, stacks = false;
    {
        const std::lock_guard lock(mutex_);
        held = held_;
        if (gathers_into_one(opType_, results_)) {
            stacks = !stacked_;
            if (stacks) stacked_ = future_->createInstance(c10::ListType::ofTensors());
            shown = stacked_;
        }
    }
    // What runs once the results are there owns their Future, as a caller who asked for it would.
    if (stacks) future_->addCallback([own = future_, shown](Future& gathered) { stack(gathered, *shown); });
    if (held) complete_future();
    return shown;
}

c10::intrusive_ptr<Future> DeviceWork::getFutureResult() {
    c10::intrusive_ptr<Future> outcome;
    {
        const std::lock_guard lock(mutex_);
        if (!outcome_) outcome_ = c10::make_intrusive<Future>(c10::IntType::get());
        outcome = outcome_;
    }
    complete_outcome();
    return outcome;
}

void DeviceWork::complete_outcome() {
    c10::intrusive_ptr<Future> outcome;
    std::exception_ptr error;
    {
        const std::lock_guard lock(mutex_);
        if (!outcome_ || !completed_ || std::exchange(outcome_ended_, true)) return;
        outcome = outcome_;
        error = exception_;
    }
    outcome->markCompleted(static_cast<int64_t>(outcome_of(error)));
}

bool DeviceWork::ends_future() {
    const std::lock_guard lock(mutex_);
    return !std::exchange(future_ended_, true);
}

void DeviceWork::complete_future() {
    if (ends_future()) future_->markCompleted(c10::IValue(results_));
    auto shown = future_;
    {
        const std::lock_guard lock(mutex_);
        if (stacked_) shown = stacked_;
    }
    while (!shown->completed()) std::this_thread::yield();  // another thread is about to
}

void DeviceWork::settle(const std::exception_ptr& error) {
    bool held;
    {
        const std::lock_guard lock(mutex_);
        settled_ = true;
        held = held_;
    }
    if (held && error) runtime::StreamWaits::instance().fail(error);
}

std::optional<Tensors> DeviceWork::take_results() {
    if (future_.use_count() > 1) return std::nullopt;
    return std::exchange(results_, {});
}

void DeviceWork::complete() {
    complete_future();
    finish();
    complete_outcome();
}

void DeviceWork::fail(std::exception_ptr error) {
    if (ends_future()) future_->setError(error);
    finish(error);
    complete_outcome();
}

c10::intrusive_ptr<DeviceWork> launch(Exchange exchange, Caller caller) {
    auto running = std::make_shared<RunningExchange>();
    auto work = c10::make_intrusive<DeviceWork>(caller.rank, exchange.type,
                                                std::exchange(exchange.results, {}), caller.sequence_number);
    running->mark.emplace();
    running->exchange = std::move(exchange);
    running->caller = caller;
    running->work = work;
    for (const Slice slice : running->cut()) {
        for (auto& argument : running->exchange.arguments) argument.to_host(slice);
        Starter::instance().push(
            [running, slice](std::exception_ptr error) { start(running, slice, std::move(error)); });
    }
    return work;
}

c10::intrusive_ptr<DeviceWork> launch_alone(Exchange exchange, Caller caller) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors from, to;
    for (const auto& argument : exchange.arguments) {
        if (argument.access() == Access::Read) from.push_back(argument.exchanged());
        if (argument.access() == Access::Write) to.push_back(argument.exchanged());
    }
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from.at(i).view(to[i].sizes()));
    if (exchange.finish) exchange.finish(exchange.arguments);
    for (auto& argument : exchange.arguments) argument.to_tensor();
    auto work =
        c10::make_intrusive<DeviceWork>(caller.rank, exchange.type, exchange.results, caller.sequence_number);
    work->complete();
    return work;
}

c10::intrusive_ptr<DeviceWork> launch_message(Exchange exchange, Caller caller,
                                              std::chrono::milliseconds timeout) {
    const auto type = exchange.type;
    const Tensors results = std::exchange(exchange.results, {});
    for (auto& argument : exchange.arguments) argument.to_host();
    MessageWaits::instance();  // the interpreter's end has to know it before
    auto message = std::make_shared<Message>(std::move(exchange), caller, timeout);
    Starter::instance().push([message](std::exception_ptr error) { message->start(std::move(error)); });
    return c10::make_intrusive<MessageWork>(message, type, results, caller);
}

}  // namespace anymps::distributed
