#include "distributed/local_group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "runtime/allocator.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "runtime/side_work.h"
#include "runtime/stream_waits.h"
#include "vulkan/check.h"
#include "vulkan/timeline_semaphore.h"

namespace anymps::distributed {
namespace {

constexpr auto kLookAround = std::chrono::milliseconds(50);  // between checks that the others live
constexpr auto kShortRest = std::chrono::microseconds(200);  // of who waits for the stream and for others
constexpr auto kIdleSpin = std::chrono::microseconds(200);   // before a thread without jobs sleeps
constexpr auto kSpin = std::chrono::microseconds(1000);      // before one whose jobs do not move does
constexpr size_t kUnderWay = 2;                              // chunks in a phase: one moves, one is next

std::string text_of(const std::vector<uint8_t>& bytes) {
    return {bytes.begin(), bytes.end()};
}

void set(c10d::Store& store, const std::string& key, const std::string& text) {
    store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

void raise(const vulkan::TimelineSemaphore& semaphore, uint64_t value) {
    try {
        if (semaphore.value() < value) semaphore.signal(value);
    } catch (const std::exception&) {
        // The device is lost, and waits for nothing any more.
    }
}

// Whether as many chunks, of counters that wrap, have come.
bool reached(uint32_t count, uint32_t wanted) {
    return static_cast<int32_t>(count - wanted) >= 0;
}

}  // namespace

// The collectives of all groups that hold tensors which the stream may wait for. Memory that it has waited
// for is its own again, as soon as it takes some: with every collective by which the host is ahead of the
// device there would be more in use. Thread-safe.
class LocalGroup::Holders {
  public:
    // What is freed without a lock.
    struct Released {
        std::vector<std::shared_ptr<Job>> jobs;
        std::vector<std::vector<HostArgument>> arguments;
        std::vector<Tensors> tensors;
        std::vector<decltype(Exchange::start)> starts;
    };

    // Leaked: memory is taken while static objects are destroyed.
    static Holders& instance() {
        static auto* holders = new Holders;
        return *holders;
    }

    void add(const std::shared_ptr<Job>& job) {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(job);
        some_.store(true, std::memory_order_relaxed);
    }
    void release();

  private:
    Holders() {
        runtime::allocator().set_let_go([] { instance().release(); });
    }

    std::atomic<bool> some_{false};
    std::mutex mutex_;
    std::vector<std::weak_ptr<Job>> jobs_;  // that run, by the threads that own them
};

struct LocalGroup::Job {
    ActivityMark mark;  // the first member: the last to go
    std::shared_ptr<GroupSignals> signals;
    Exchange exchange;
    std::mutex tensors;  // guards those of the exchange and of the Work
    Caller caller;
    std::chrono::milliseconds timeout;
    uint64_t serial = 0;              // of what was recorded before
    runtime::Waits after;             // what its stream waits for besides
    uint64_t value = 0;               // that the semaphores are raised to
    std::vector<uint64_t> addresses;  // of the arguments
    bool staged = false;              // the results lie in staging memory
    c10::intrusive_ptr<DeviceWork> work;
    std::shared_ptr<runtime::SideWork> trace;    // where one is being taken
    std::vector<std::optional<uint32_t>> small;  // of schedules with small chunks, the chunks' own numbers
    std::shared_ptr<StreamStep> in_stream;       // of who was written by the stream

    // The group's thread's.
    bool numbered = false;
    std::optional<uint32_t>
        numbers_chunk;            // by which the ranks exchange the numbers that schedules depend on
    std::vector<uint32_t> first;  // chunks of the schedules
    uint32_t end = 0;             // behind the last chunk
    std::optional<Clock::time_point> deadline;  // once it has started

    // Whether what was recorded before has completed.
    bool started() {
        if (deadline) return true;
        if (!runtime::encoder().completed(serial)) return false;
        if (!std::ranges::all_of(after, &runtime::StreamWait::over)) return false;
        deadline = Clock::now() + timeout;
        if (trace) runtime::begin_side_work(*trace);
        return true;
    }
    void end_work(std::exception_ptr error);
    bool release(Holders::Released& released);
};

struct LocalGroup::Chunk {
    Job* job;
    const Schedule* schedule;  // nullptr: the ranks exchange numbers
    uint32_t number, of_schedule;
    std::optional<uint32_t> small;

    int phases() const { return schedule ? schedule->phases() : 2; }
    size_t slot() const { return small ? SharedSegment::small_slot(*small) : SharedSegment::slot(number); }
};

// Runs callbacks, and lets go of tensors.
void LocalGroup::Job::end_work(std::exception_ptr error) {
    try {
        if (staged && !error) {
            for (auto& argument : exchange.arguments) argument.to_device();
            runtime::encoder().submit();
        }
    } catch (...) {
        error = std::current_exception();
    }
    Exchange ended;  // freed without the lock
    c10::intrusive_ptr<DeviceWork> ended_work;
    {
        const std::lock_guard lock(tensors);
        std::swap(ended, exchange);
        std::swap(ended_work, work);
    }
    ended = {};
    if (error) {
        ended_work->fail(error);
    } else {
        ended_work->complete();
    }
}

// Before the end: the addresses are noted, and the stream waits. Whether nothing is left.
bool LocalGroup::Job::release(Holders::Released& released) {
    if (value > signals->reusable) return false;
    const std::lock_guard lock(tensors);
    if (!work) return true;
    released.arguments.push_back(std::exchange(exchange.arguments, {}));
    released.starts.push_back(std::exchange(exchange.start, nullptr));
    if (work.use_count() > 1) return false;
    auto results = work->take_results();
    if (!results) return false;
    released.tensors.push_back(std::move(*results));
    return true;
}

void LocalGroup::Holders::release() {
    if (!some_.load(std::memory_order_relaxed)) return;
    Released released;
    const std::lock_guard lock(mutex_);
    released.jobs.reserve(jobs_.size());
    std::erase_if(jobs_, [&](const auto& running) {
        auto job = running.lock();
        if (!job) return true;
        released.jobs.push_back(std::move(job));
        return released.jobs.back()->release(released);
    });
    some_.store(!jobs_.empty(), std::memory_order_relaxed);
}

std::unique_ptr<LocalGroup> LocalGroup::meet(int rank, int ranks, c10d::Store& store) {
    const char* wanted = std::getenv("ANYMPS_SHARED_MEMORY");
    if (ranks == 1) return nullptr;
    std::unique_ptr<SharedMemory> memory;
    std::vector<SharedSegment> segments;
    std::string answer = "yes";
    try {
        TORCH_CHECK(wanted == nullptr || std::string_view(wanted) != "0", "not wanted");
        memory = std::make_unique<SharedMemory>(ranks, runtime::device_info().host_import_alignment);
        SharedSegment own(memory->segment(rank));
        set(store, "memory/" + std::to_string(rank), own.record());
        for (int peer = 0; peer < ranks; ++peer) {
            if (peer == rank) {
                segments.push_back(std::move(own));
            } else {
                segments.emplace_back(memory->segment(peer),
                                      text_of(store.get("memory/" + std::to_string(peer))));
            }
        }
    } catch (const std::exception& error) {
        answer = error.what();
        // Peers wait for the record, whatever it says.
        if (segments.size() <= static_cast<size_t>(rank))
            set(store, "memory/" + std::to_string(rank), "none");
    }
    set(store, "shared/" + std::to_string(rank), answer);
    bool all = true;
    for (int peer = 0; peer < ranks; ++peer)
        all &= text_of(store.get("shared/" + std::to_string(peer))) == "yes";
    if (!all) return nullptr;
    return std::make_unique<LocalGroup>(rank, std::move(memory), std::move(segments));
}

LocalGroup::LocalGroup(int rank, std::unique_ptr<SharedMemory> memory, std::vector<SharedSegment> segments)
    : rank_(rank),
      memory_(std::move(memory)),
      segments_(std::move(segments)),
      spin_(runtime::device_info().runs_on_cpu ? std::chrono::microseconds{} : kSpin),
      ends_("anymps_ends", std::min(spin_, kIdleSpin)),
      thread_("anymps_local", std::min(spin_, kIdleSpin)) {}

LocalGroup::~LocalGroup() {
    thread_.finish();
    ends_.finish();
    if (!signals_) return;
    try {
        runtime::encoder().wait(runtime::encoder().submit());
    } catch (const std::exception&) {
        // The device is lost, and waits for nothing any more.
    }
}

void LocalGroup::abort() {
    aborted_ = true;
    thread_.stop();
    segments_[rank_].ring();
}

// At the first collective: groups that have none need no device memory.
void LocalGroup::open(std::chrono::milliseconds timeout) {
    Agreement agreement(segments_, rank_, timeout);
    executor_ = step_executor(*memory_, agreement);
    signals_ = std::make_shared<GroupSignals>(runtime::device());
}

c10::intrusive_ptr<DeviceWork> LocalGroup::launch(Exchange exchange, Caller caller,
                                                  std::chrono::milliseconds timeout) {
    ends_.hand_over();  // a Future's callback may wait for what it launches
    try {
        std::call_once(opened_, [&] { open(timeout); });
    } catch (const vulkan::Error&) {
        throw;
    } catch (const std::runtime_error&) {
        std::rethrow_exception(explained(std::current_exception(), exchange.name, caller));
    }
    const bool on_device = executor_->on_device();
    const bool copied = std::ranges::any_of(exchange.arguments, &HostArgument::copied);
    auto job = std::make_shared<Job>();
    job->signals = signals_;
    const bool in_place = std::ranges::all_of(exchange.arguments, &HostArgument::in_place);
    const c10::StreamId stream = runtime::current_stream_id();
    // The stream may wait for what needs neither its queue nor its encoder.
    Signal signal;
    const bool waits_on_host = exchange.type == c10d::OpType::BARRIER;
    if (!waits_on_host && (on_device ? runtime::device().has_side_queue() : in_place))
        signal.group = signals_;
    job->staged = !on_device && !in_place;
    // The caller's own, which the job holds aliases of: to let go of them may need the interpreter.
    const Tensors tensors = std::exchange(exchange.results, {});
    std::vector<HostArgument> results;
    c10::intrusive_ptr<DeviceWork> work;  // the thread lets go of the job's
    if (copied) results = exchange.arguments;
    if (runtime::taking_side_works()) {
        uint64_t bytes = 0;
        for (const auto& argument : exchange.arguments) bytes += argument.exchanged().nbytes();
        job->trace = runtime::note_side_work(std::string("anymps:") + exchange.name, bytes);
    }
    {
        const std::lock_guard lock(launches_);
        if (!on_device) {
            for (auto& argument : exchange.arguments) argument.to_host();
        }
        for (const auto& argument : exchange.arguments)
            job->addresses.push_back(executor_->address(argument));
        for (const auto& schedule : exchange.schedules)
            job->small.push_back(schedule->small() ? std::optional(small_calls_++) : std::nullopt);
        job->exchange = std::move(exchange);
        job->caller = caller;
        job->timeout = timeout;
        job->after = runtime::waits_of(stream);
        if (signal.group && stream == 0) write_in_stream(*job);
        job->value = signal.number = ++calls_;
        signal.step = job->in_stream;
        job->work = c10::make_intrusive<DeviceWork>(caller.rank, job->exchange.type, tensors,
                                                    caller.sequence_number, signal);
        work = job->work;
        if (signal.group && !signal.step) Holders::instance().add(job);
        job->serial = runtime::encoder().submit();
        TORCH_CHECK(thread_.push([this, job] { serve(job); }), "The process group was aborted.");
        segments_[rank_].ring();
    }
    if (copied) {
        try {
            work->wait(kNoTimeout);
        } catch (const std::exception&) {
            return work;  // whose wait() raises it
        }
        for (auto& result : results) result.to_tensor();
    }
    return work;
}

// The first phase of a small collective, and the second one for who waits before the thread comes to it.
void LocalGroup::write_in_stream(Job& job) {
    StepExecutor* stream = executor_->in_stream();
    if (stream == nullptr || job.exchange.schedules.size() != 1 || !job.small.front()) return;
    const Chunk chunk{&job, job.exchange.schedules.front().get(), 0, 0, job.small.front()};
    const Need slot = need(0, chunk);
    if (!std::ranges::all_of(segments_, [&](const auto& each) { return done_in(each, slot); })) return;
    const Scene scene{*stream, rank_, static_cast<int>(segments_.size()), chunk.slot(), job.addresses};
    chunk.schedule->phase(0, 0, scene);
    job.in_stream = std::make_shared<StreamStep>([schedule = chunk.schedule, scene] {
        schedule->phase(1, 0, scene);
        return runtime::encoder().submit();
    });
}

// Takes no lock that a thread may hold while it waits for the stream: not the encoder's, nor the allocator's.
void LocalGroup::serve(const std::shared_ptr<Job>& job) {
    if (!failure_.empty()) {
        return settle(job, explained(std::make_exception_ptr(std::runtime_error(failure_)),
                                     job->exchange.name, job->caller));
    }
    jobs_.push_back(job);
    auto idle_since = Clock::now();
    try {
        while (!jobs_.empty() && !thread_.waiting()) {
            const uint32_t seen = segments_[rank_].rings();
            if (move()) {
                idle_since = Clock::now();
            } else if (Clock::now() - idle_since >= spin_) {
                rest(seen);
            }
        }
    } catch (const std::exception& error) {
        fail(error);
    }
}

// One round: whether anything has happened. Late phases first, as they make room for early ones.
bool LocalGroup::move() {
    number_chunks();
    bool ended = false;
    for (int phase = 0; phase < kPhases; ++phase) {
        while (end_oldest(phase)) ended = true;
    }
    if (ended) ring();
    bool moved = end_jobs() || ended;
    for (int phase = kPhases - 1; phase >= 0; --phase) moved |= begin_next(phase);
    return moved;
}

void LocalGroup::number_chunks() {
    for (const auto& job : jobs_) {
        if (job->numbered) continue;
        Exchange& exchange = job->exchange;
        if (exchange.schedule_for) {
            if (!job->numbers_chunk) job->numbers_chunk = numbered_++;
            return;  // how many chunks it has is not known yet
        }
        for (const auto& schedule : exchange.schedules) {
            job->first.push_back(numbered_);
            numbered_ += schedule->chunks();
        }
        job->end = numbered_;
        job->numbered = true;
    }
}

LocalGroup::Chunk LocalGroup::chunk(uint32_t number) const {
    for (const auto& job : jobs_) {
        if (job->numbers_chunk == number) return {job.get(), nullptr, number, 0, std::nullopt};
        for (size_t i = 0; i < job->first.size(); ++i) {
            const Schedule* schedule = job->exchange.schedules[i].get();
            const uint32_t at = number - job->first[i];
            if (at >= schedule->chunks()) continue;
            const auto small = i < job->small.size() ? job->small[i] : std::nullopt;
            return {job.get(), schedule, number, at, small};
        }
    }
    throw std::logic_error("a chunk of no collective");
}

LocalGroup::Need LocalGroup::need(int phase, const Chunk& chunk) const {
    if (phase >= chunk.phases()) return {};
    if (phase > 0) return {Need::kPhase, phase - 1, chunk.number + 1};
    if (chunk.job->in_stream) return {};
    if (chunk.small) return {Need::kSmall, 0, *chunk.small + 1 - SharedSegment::kSmallSlots};
    return {Need::kPhase, kPhases - 1, chunk.number + 1 - SharedSegment::kSlots};
}

bool LocalGroup::done_in(const SharedSegment& segment, const Need& need) const {
    if (need.kind == Need::kNothing) return true;
    return need.kind == Need::kSmall ? segment.done_small(need.count) : segment.done(need.phase, need.count);
}

bool LocalGroup::can_begin(int phase, const Chunk& chunk) const {
    if (phase == 0 ? !chunk.job->started() : done_[phase - 1] == chunk.number) return false;
    const Need wanted = need(phase, chunk);
    return std::ranges::all_of(segments_, [&](const auto& each) { return done_in(each, wanted); });
}

bool LocalGroup::begin_next(int phase) {
    if (begun_[phase] == numbered_ || under_way_[phase].size() == kUnderWay) return false;
    const Chunk next = chunk(begun_[phase]);
    if (!can_begin(phase, next)) return false;
    begin(phase, next);
    ++begun_[phase];
    return true;
}

void LocalGroup::begin(int phase, const Chunk& chunk) {
    Job& job = *chunk.job;
    UnderWay step{};
    if (chunk.schedule == nullptr) {
        if (phase == 0) segments_[rank_].value(chunk.number) = job.exchange.own_number;
        if (phase == 1) {
            uint64_t largest = 0;
            for (const auto& segment : segments_) largest = std::max(largest, segment.value(chunk.number));
            job.exchange.schedules.push_back(job.exchange.schedule_for(largest));
            job.exchange.schedule_for = nullptr;
        }
    } else if (phase == 1 && job.in_stream && !job.in_stream->take_by_thread()) {
        raise(signals_->arrived, job.value);
        step.in_stream = job.in_stream.get();
    } else if (phase < chunk.phases() && (phase > 0 || !job.in_stream)) {
        const Scene scene{*executor_, rank_, static_cast<int>(segments_.size()), chunk.slot(), job.addresses};
        chunk.schedule->phase(phase, chunk.of_schedule, scene);
        step.step = executor_->submit(job.serial);
    }
    under_way_[phase].push_back(step);
}

bool LocalGroup::end_oldest(int phase) {
    auto& steps = under_way_[phase];
    if (steps.empty()) return false;
    const UnderWay& oldest = steps.front();
    if (!(oldest.in_stream ? oldest.in_stream->completed() : executor_->completed(oldest.step))) return false;
    steps.pop_front();
    const SharedSegment& own = segments_[rank_];
    if (phase == kPhases - 1) {
        if (const auto small = chunk(done_[phase]).small) own.publish_small(*small + 1);
    }
    own.publish(phase, ++done_[phase]);
    return true;
}

bool LocalGroup::end_jobs() {
    bool ended = false;
    while (!jobs_.empty() && jobs_.front()->numbered && reached(done_.back(), jobs_.front()->end) &&
           jobs_.front()->started()) {
        settle(jobs_.front(), nullptr);
        jobs_.pop_front();
        ended = true;
    }
    return ended;
}

// Sleeps until something that was not `seen` may have happened.
void LocalGroup::rest(uint32_t seen) {
    for (const auto& steps : under_way_) {
        if (!steps.empty() && !steps.front().in_stream) return executor_->wait(steps.front().step);
    }
    const Job& front = *jobs_.front();
    if (!runtime::encoder().completed(front.serial)) return runtime::encoder().wait(front.serial);
    look_around();
    const bool all_started =
        std::ranges::all_of(jobs_, [](const auto& job) { return job->deadline.has_value(); });
    const bool in_stream = std::ranges::any_of(under_way_, [](const auto& steps) { return !steps.empty(); });
    segments_[rank_].sleep(seen, all_started && !in_stream ? kLookAround : kShortRest);
}

// Raises where a rank that others wait for will not come.
void LocalGroup::look_around() {
    for (int phase = kPhases - 1; phase >= 0; --phase) {
        if (begun_[phase] == numbered_) continue;
        const Chunk next = chunk(begun_[phase]);
        const Need wanted = need(phase, next);
        for (size_t rank = 0; rank < segments_.size(); ++rank) {
            const SharedSegment& segment = segments_[rank];
            if (static_cast<int>(rank) == rank_ || done_in(segment, wanted)) continue;
            const std::string name = "rank " + std::to_string(rank);
            const bool failed = segment.failed(), ended = !segment.alive();
            if (done_in(segment, wanted)) continue;  // the last it did
            if (failed) throw std::runtime_error(name + " has given up.");
            if (ended) throw std::runtime_error(name + " has ended.");
            if (aborted_) throw std::runtime_error("the process group was aborted.");
            if (next.job->deadline && Clock::now() > *next.job->deadline)
                throw std::runtime_error("Timed out waiting for " + name + ".");
        }
    }
}

// Tells the others that there is something for them to see.
void LocalGroup::ring() const {
    for (size_t rank = 0; rank < segments_.size(); ++rank) {
        if (static_cast<int>(rank) != rank_) segments_[rank].ring();
    }
}

// Ends all collectives, and the group.
void LocalGroup::fail(const std::exception& error) {
    failure_ = error.what();
    segments_[rank_].publish_failure();
    ring();
    for (auto& steps : under_way_) {
        try {
            for (const UnderWay& each : steps) {
                if (!each.in_stream) executor_->wait(each.step);  // the tensors may go then
            }
        } catch (const std::exception&) {
            // The device is lost, and reads nothing any more.
        }
        steps.clear();
    }
    for (const auto& job : std::exchange(jobs_, {})) {
        settle(job, explained(std::make_exception_ptr(std::runtime_error(failure_)), job->exchange.name,
                              job->caller));
    }
}

void LocalGroup::settle(const std::shared_ptr<Job>& job, const std::exception_ptr& error) {
    if (error && job->in_stream && !job->in_stream->take_by_thread()) {
        job->in_stream->wait_recorded();
        raise(signals_->arrived, job->value);
    }
    job->work->settle(error);
    raise(signals_->completed, job->value);
    if (job->trace) runtime::end_side_work(*job->trace);
    ends_.push([job, error] { job->end_work(error); });
}

}  // namespace anymps::distributed
