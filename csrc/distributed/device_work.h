// What a collective on the device returns, and the thread that starts it once the device has come so far.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "distributed/host_argument.h"
#include "distributed/schedule.h"
#include "vulkan/timeline_semaphore.h"

namespace anymps::distributed {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// What of a group's collectives the stream waits for. Thread-safe.
struct GroupSignals {
    explicit GroupSignals(const vulkan::Device& device) : arrived(device), completed(device) {}

    // Raised by the group's thread, to the number of a collective: what all ranks give is there, for
    // collectives that the stream ends; the results are there, for all.
    vulkan::TimelineSemaphore arrived, completed;
    std::mutex mutex;   // of waits
    uint64_t held = 0;  // the last collective whose results the stream waits for
    // Up to this collective, what the default stream records may reuse the tensors' memory.
    std::atomic<uint64_t> reusable{0};
};

// The last step of a collective, which the stream does itself where it is told to wait before the group's
// thread has begun the step. Thread-safe.
class StreamStep {
  public:
    // record: records the step, and returns the serial behind it.
    explicit StreamStep(std::function<uint64_t()> record) : record_(std::move(record)) {}

    // False where the other one has taken it.
    bool take_by_thread() { return take(Owner::Thread); }
    bool take_by_stream() { return take(Owner::Stream); }
    // What who has taken it by the stream calls next.
    void record();
    // Whether the stream has done it.
    bool completed() const;
    // Waits until nothing is left to record.
    void wait_recorded() const;

  private:
    enum class Owner : uint8_t { Nobody, Thread, Stream };
    bool take(Owner owner) {
        Owner nobody = Owner::Nobody;
        return owner_.compare_exchange_strong(nobody, owner);
    }

    std::function<uint64_t()> record_;
    std::atomic<Owner> owner_{Owner::Nobody};
    std::atomic<uint64_t> serial_{0};
};

// A point that the stream can wait for without the host.
struct Signal {
    std::shared_ptr<GroupSignals> group;  // nullptr where it cannot
    uint64_t number = 0;                  // the collective's
    std::shared_ptr<StreamStep> step;     // nullptr where the stream has nothing to do

    bool raised() const { return group && group->completed.value() >= number; }
    // Has the stream wait.
    void hold() const;
};

class InFlight;

// The Work of a collective: completed when its results can be used by what is recorded next. wait() blocks
// the caller until then and raises what went wrong; the Future holds the tensors of the device. Thread-safe.
//
// With a signal, wait() without a timeout has the stream wait in the caller's place; what goes wrong
// afterwards is raised at the next synchronization.
class DeviceWork : public c10d::Work {
  public:
    DeviceWork(int rank, c10d::OpType type, const Tensors& results, uint64_t sequence_number,
               Signal signal = {});

    // After wait() the Future is completed, also where it is the stream that waits, as on CUDA. Of all_gather
    // it holds one tensor of all ranks where they give the same shape, as NCCL's.
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    // Of a c10d::WorkResult, as NCCL's: once the results are there, or an error, also where the stream waits.
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
    Tensors result() override { return results_; }
    uint64_t getSequencenumber() const override { return sequence_number_; }

    bool isCompleted() override;
    bool wait(std::chrono::milliseconds timeout) override;
    void blockCurrentStream() override { wait(kNoTimeout); }

    // For a collective behind this one, as wait() without a timeout: who waits for its tensors still finds
    // it.
    virtual void follow();
    // Whether the results are there, or an error; without a lock that its callbacks hold up.
    bool is_over();
    // Whether the stream has been told to wait.
    bool is_waited_for(c10::StreamId stream);
    bool waits_on_host() const { return !signal_.group; }
    // Before anybody waits: wait() is to wait for earlier ones of the group too, as where one stream runs
    // all.
    void keep_order(std::shared_ptr<InFlight> in_flight) { in_flight_ = std::move(in_flight); }

    // Before the signal is raised: from now on wait() blocks, and raises the error, if any; so does the
    // stream's next synchronization where the stream waits.
    void settle(const std::exception_ptr& error);
    // For the only owner: the results, which nobody can ask for any more; nothing where the Future has an
    // owner.
    std::optional<Tensors> take_results();
    // Ends it; the Future's callbacks run here.
    void complete();
    void fail(std::exception_ptr error);

    // What weak pointers to a Work that nobody owns must not keep.
    void release_resources() override;

  private:
    bool wait_in_stream(std::chrono::milliseconds timeout);
    // Whether the caller is to end the Future: the first one is.
    bool ends_future();
    void complete_future();
    // Ends the Future of getFutureResult(), if it was asked for and the Work has ended.
    void complete_outcome();

    Tensors results_;
    uint64_t sequence_number_;
    c10::intrusive_ptr<c10::ivalue::Future> future_;
    c10::intrusive_ptr<c10::ivalue::Future> stacked_;  // of all_gather, once asked for; under mutex_
    c10::intrusive_ptr<c10::ivalue::Future> outcome_;  // once asked for; under mutex_
    const Signal signal_;
    std::shared_ptr<InFlight> in_flight_;  // of collectives that end in any order
    // Under mutex_; held_: a stream waits, the last one of those that do is holder_.
    bool settled_ = false, held_ = false, future_ended_ = false, outcome_ended_ = false;
    c10::StreamId holder_ = 0;
};

// One collective, or one message between two ranks.
struct Exchange {
    const char* name;  // as users call it: "all_reduce"
    c10d::OpType type;
    Tensors results;
    std::vector<HostArgument> arguments;
    // Starts the exchange on the host's views of the arguments, in their order, and does not wait for it.
    std::function<std::vector<WorkPtr>(const Tensors& host)> start;
    // Records what the device does with the arguments afterwards, if anything.
    std::function<void(std::vector<HostArgument>&)> finish = {};
    // Between ranks that share memory: the steps, one schedule after the other.
    std::vector<SchedulePtr> schedules = {};
    // Instead, where the steps depend on a number that each rank knows a part of: the schedule for the
    // largest.
    uint64_t own_number = 0;
    std::function<SchedulePtr(uint64_t largest)> schedule_for = {};
    // Whether it may be made in slices, where it is large: `start` is then called on slices of all arguments,
    // in one dimension, of any number of elements.
    bool sliced = false;
};

// Who runs it, for messages.
struct Caller {
    int rank = 0, size = 1;
    uint64_t sequence_number = 0;
};

// Counts as a collective that runs, which the interpreter's end waits for, while it lives.
struct ActivityMark {
    ActivityMark();
    ~ActivityMark();
    ActivityMark(const ActivityMark&) = delete;
    ActivityMark& operator=(const ActivityMark&) = delete;
};

// PyTorch's own errors (of arguments) as they are; those of the network as a sentence of what it means.
std::exception_ptr explained(std::exception_ptr error, const char* name, const Caller& caller);

// Returns at once. The exchange starts when everything that is recorded by now has completed on the device;
// exchanges start in the order of the calls.
c10::intrusive_ptr<DeviceWork> launch(Exchange exchange, Caller caller);

// The same in a group of one rank, on the stream: what is written gets what is read, in the order of the
// arguments, and what is both stays. The Work is completed.
c10::intrusive_ptr<DeviceWork> launch_alone(Exchange exchange, Caller caller);

// The same for messages, whose host side makes progress by itself but tells its end only to who waits: the
// Work completes in wait(), or in a thread of its own where it is asked for its Future or its state, or let
// go of. timeout: of who waits without one, where the host's transport would keep that of the group's start.
c10::intrusive_ptr<DeviceWork> launch_message(Exchange exchange, Caller caller,
                                              std::chrono::milliseconds timeout);

// While it lives its group, or message, ends, by `abort`, when the interpreter does and a collective still
// runs: one that ends later would call Python's callbacks, which kills the process. Owner: the group's
// backend, or who waits for the message.
class AbortAtExit {
  public:
    explicit AbortAtExit(std::function<void()> abort);
    ~AbortAtExit();
    AbortAtExit(const AbortAtExit&) = delete;
    AbortAtExit& operator=(const AbortAtExit&) = delete;
};

// Once somebody waits for the work: wait_tensor() need not find it by its tensors any more.
void forget(c10d::Work* work);

// A Work of several: completed when all are. Its Future holds their results in one list, or what is given.
WorkPtr join(std::vector<WorkPtr> works, int rank, std::optional<c10::IValue> value = std::nullopt);

}  // namespace anymps::distributed
