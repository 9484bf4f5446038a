// Collectives between the ranks of one machine, through memory that they share.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "distributed/device_work.h"
#include "distributed/job_thread.h"
#include "distributed/schedule.h"
#include "distributed/shared_segment.h"
#include "distributed/step_executor.h"

namespace anymps::distributed {

// All ranks of a group, on one machine, as one user and in one container. A collective starts when what was
// recorded before it has completed; a thread has its steps done, in the order of the calls. Where the device
// takes the shared memory and has a queue beside the stream's, or the CPU works on the tensors' own bytes,
// the stream waits for the results and the caller does not (Signal). A rank that ends or gives up is noticed
// at once.
//
// Owner: one MpsBackend. Any thread may launch; the order is the same in all ranks.
class LocalGroup {
  public:
    // nullptr where memory cannot be shared, or is not wanted (ANYMPS_SHARED_MEMORY=0), which all ranks find
    // out together. Waits for the other ranks.
    static std::unique_ptr<LocalGroup> meet(int rank, int ranks, c10d::Store& store);

    LocalGroup(int rank, std::unique_ptr<SharedMemory> memory, std::vector<SharedSegment> segments);
    // Waits for what runs, and for the stream where it waits for that.
    ~LocalGroup();

    // Returns at once, unless a result is not contiguous. Takes the exchange's schedules and arguments.
    WorkPtr launch(Exchange exchange, Caller caller, std::chrono::milliseconds timeout);

    // What runs fails soon.
    void abort() { thread_.stop(); }

  private:
    using Deadline = std::chrono::steady_clock::time_point;
    struct Job;

    void run(const std::shared_ptr<Job>& job);
    void run(const Schedule& schedule, const Job& job, bool last, Deadline deadline);
    uint64_t largest(uint64_t number, Deadline deadline);
    void look_around(uint32_t step, Deadline deadline) const;
    void wait_for(uint32_t step, Deadline deadline) const;
    bool reached(uint32_t step) const;
    void open();

    const int rank_;
    std::unique_ptr<SharedMemory> memory_;
    std::vector<SharedSegment> segments_;  // by rank
    const std::chrono::microseconds
        spin_;  // before a thread sleeps: none where that takes a core from the device
    std::once_flag opened_;
    std::unique_ptr<StepExecutor> executor_;
    std::shared_ptr<const vulkan::TimelineSemaphore> semaphore_;
    std::mutex launches_;            // guards the order of calls
    uint64_t calls_ = 0;             // under launches_: what the semaphore is raised to
    uint32_t step_ = 0;              // the thread's own: the last one
    std::string failure_;            // the thread's own: what has ended the group
    JobThread ends_{"anymps_ends"};  // what must not hold up the other one, which the stream may wait for
    JobThread thread_;               // ends before what it uses
};

}  // namespace anymps::distributed
