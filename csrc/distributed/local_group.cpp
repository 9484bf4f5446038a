#include "distributed/local_group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "vulkan/timeline_semaphore.h"

namespace anymps::distributed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLookAround = std::chrono::milliseconds(50);  // between checks that the others live
constexpr auto kSpin = std::chrono::microseconds(200);       // before a thread sleeps

std::string text_of(const std::vector<uint8_t>& bytes) {
    return {bytes.begin(), bytes.end()};
}

void set(c10d::Store& store, const std::string& key, const std::string& text) {
    store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

}  // namespace

struct LocalGroup::Job {
    ActivityMark mark;  // the first member: the last to go
    Exchange exchange;
    Caller caller;
    std::chrono::milliseconds timeout;
    uint64_t serial = 0;              // of what was recorded before
    uint64_t value = 0;               // that the semaphore is raised to
    std::vector<uint64_t> addresses;  // of the arguments
    bool staged = false;              // the results lie in staging memory
    c10::intrusive_ptr<DeviceWork> work;

    void end(std::exception_ptr error);
};

// Runs callbacks, and lets go of tensors.
void LocalGroup::Job::end(std::exception_ptr error) {
    try {
        if (staged && !error) {
            for (auto& argument : exchange.arguments) argument.to_device();
            runtime::encoder().submit();
        }
    } catch (...) {
        error = std::current_exception();
    }
    exchange = {};
    if (error) {
        work->fail(error);
    } else {
        work->complete();
    }
    work.reset();
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
      thread_("anymps_local", spin_) {}

LocalGroup::~LocalGroup() {
    thread_.finish();
    ends_.finish();
    if (!semaphore_) return;
    try {
        runtime::encoder().wait(runtime::encoder().submit());
    } catch (const std::exception&) {
        // The device is lost, and waits for nothing any more.
    }
}

// At the first collective: groups that have none need no device memory.
void LocalGroup::open() {
    executor_ = step_executor(*memory_, rank_, static_cast<int>(segments_.size()));
    semaphore_ = std::make_shared<const vulkan::TimelineSemaphore>(runtime::device());
}

WorkPtr LocalGroup::launch(Exchange exchange, Caller caller, std::chrono::milliseconds timeout) {
    std::call_once(opened_, [&] { open(); });
    const bool on_device = executor_->on_device();
    const bool copied = std::ranges::any_of(exchange.arguments, &HostArgument::copied);
    auto job = std::make_shared<Job>();
    const bool in_place = std::ranges::all_of(exchange.arguments, &HostArgument::in_place);
    // The stream may wait for what needs neither its queue nor its encoder.
    Signal signal;
    const bool waits_on_host = exchange.type == c10d::OpType::BARRIER;
    if (!waits_on_host && (on_device ? runtime::device().has_side_queue() : in_place))
        signal.semaphore = semaphore_;
    job->staged = !on_device && !in_place;
    std::vector<HostArgument> results;
    WorkPtr work;  // the thread lets go of the job's
    if (copied) results = exchange.arguments;
    {
        const std::lock_guard lock(launches_);
        if (!on_device) {
            for (auto& argument : exchange.arguments) argument.to_host();
        }
        for (const auto& argument : exchange.arguments)
            job->addresses.push_back(executor_->address(argument));
        job->value = signal.value = ++calls_;
        job->work = c10::make_intrusive<DeviceWork>(caller.rank, exchange.type, exchange.results,
                                                    caller.sequence_number, signal);
        work = job->work;
        job->exchange = std::move(exchange);
        job->caller = caller;
        job->timeout = timeout;
        job->serial = runtime::encoder().submit();
        TORCH_CHECK(thread_.push([this, job] { run(job); }), "The process group was aborted.");
    }
    if (copied) {
        try {
            work->wait();
            for (auto& result : results) result.to_tensor();
        } catch (const std::exception&) {
            // wait() raises it.
        }
    }
    return work;
}

// What the ranks' numbers have come to, in a step of its own.
uint64_t LocalGroup::largest(uint64_t number, Deadline deadline) {
    const uint32_t step = step_ + 1;
    wait_for(step - SharedSegment::kMaxDepth, deadline);
    segments_[rank_].value(step) = number;
    segments_[rank_].publish(step);
    wait_for(step, deadline);
    step_ = step;
    for (const auto& segment : segments_) number = std::max(number, segment.value(step));
    return number;
}

// Takes no lock that a thread may hold while it waits for the stream: not the encoder's, nor the allocator's.
void LocalGroup::run(const std::shared_ptr<Job>& job) {
    std::exception_ptr error;
    try {
        if (!failure_.empty()) throw std::runtime_error(failure_);
        runtime::encoder().wait(job->serial);
        const Deadline deadline = Clock::now() + job->timeout;
        Exchange& exchange = job->exchange;
        if (exchange.schedule_for)
            exchange.schedules.push_back(exchange.schedule_for(largest(exchange.own_number, deadline)));
        for (size_t i = 0; i < exchange.schedules.size(); ++i)
            run(*exchange.schedules[i], *job, i + 1 == exchange.schedules.size(), deadline);
    } catch (const std::exception& e) {
        failure_ = e.what();
        segments_[rank_].publish_failure();
        error = explained(std::current_exception(), job->exchange.name, job->caller);
    }
    job->work->settle(error);
    try {
        if (semaphore_->value() < job->value) semaphore_->signal(job->value);
    } catch (const std::exception&) {
        // The device is lost, and waits for nothing any more.
    }
    ends_.push([job, error] { job->end(error); });
}

bool LocalGroup::reached(uint32_t step) const {
    return std::ranges::all_of(segments_, [&](const auto& segment) { return segment.reached(step); });
}

// Keeps a few steps under way: their data moves while this thread waits for the others.
void LocalGroup::run(const Schedule& schedule, const Job& job, bool last, Deadline deadline) {
    const uint32_t steps = schedule.steps(), first = step_ + 1;
    const Scene scene{*executor_, rank_, static_cast<int>(segments_.size()), first, job.addresses};
    std::deque<uint64_t> under_way;
    uint32_t begun = 0;
    auto idle_since = Clock::now();
    try {
        while (begun < steps || !under_way.empty()) {
            bool moved = false;
            while (!under_way.empty() && executor_->completed(under_way.front())) {
                under_way.pop_front();
                segments_[rank_].publish(first + begun - static_cast<uint32_t>(under_way.size()) - 1);
                moved = true;
            }
            if (begun < steps && reached(first + begun - schedule.depth())) {
                schedule.step(begun++, scene);
                const bool signals = last && begun == steps;
                under_way.push_back(
                    executor_->submit(job.serial, signals ? semaphore_.get() : nullptr, job.value));
                moved = true;
            }
            if (moved) {
                idle_since = Clock::now();
            } else if (Clock::now() - idle_since >= spin_) {
                if (under_way.empty()) {
                    look_around(first + begun - schedule.depth(), deadline);
                } else {
                    executor_->wait(under_way.front());
                }
            }
        }
    } catch (...) {
        // The tensors may go.
        if (!under_way.empty()) executor_->wait(under_way.back());
        throw;
    }
    step_ += steps;
}

// Sleeps until the slowest rank has done a step; raises where it will not.
void LocalGroup::look_around(uint32_t step, Deadline deadline) const {
    for (size_t rank = 0; rank < segments_.size(); ++rank) {
        const SharedSegment& segment = segments_[rank];
        if (segment.reached(step)) continue;
        const std::string name = "rank " + std::to_string(rank);
        if (segment.failed()) throw std::runtime_error(name + " has given up.");
        if (!segment.alive()) throw std::runtime_error(name + " has ended.");
        if (thread_.stopped()) throw std::runtime_error("the process group was aborted.");
        if (Clock::now() > deadline) throw std::runtime_error("Timed out waiting for " + name + ".");
        return segment.sleep(step, kLookAround);
    }
}

void LocalGroup::wait_for(uint32_t step, Deadline deadline) const {
    while (!reached(step)) look_around(step, deadline);
}

}  // namespace anymps::distributed
