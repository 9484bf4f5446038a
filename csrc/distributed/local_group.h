// Collectives between the ranks of one machine, through memory that they share.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/device_work.h"
#include "distributed/job_thread.h"
#include "distributed/schedule.h"
#include "distributed/shared_segment.h"
#include "distributed/step_executor.h"

namespace anymps::distributed {

// All ranks of a group, on one machine, as one user and in one container. A collective starts when what was
// recorded before it has completed. A thread has the phases of its chunks done, in the order of the calls in
// every phase: the first chunks of a collective are written while the last ones of that before are still on
// their way. Where the device takes the shared memory and has a queue beside the stream's, or the CPU works
// on the tensors' own bytes, the stream waits for the results and the caller does not (Signal). A rank that
// ends or gives up is noticed at once.
//
// A small collective is written by the stream itself, behind what the caller has recorded, and the stream
// ends it as well where the caller waits at once: no submission, and no wait of the host, is its own.
//
// Owner: one MpsBackend. Any thread may launch; the order is the same in all ranks.
class LocalGroup {
  public:
    // nullptr where memory cannot be shared, or is not wanted (ANYMPS_SHARED_MEMORY=0), which all ranks find
    // out together. Waits for the other ranks.
    static std::unique_ptr<LocalGroup> meet(int rank, int ranks, c10d::Store& store);

    LocalGroup(int rank, std::unique_ptr<SharedMemory> memory, std::vector<SharedSegment> segments);
    // Waits for what runs, as long as its timeout allows, and for the stream where it waits for that.
    ~LocalGroup();

    // Returns at once, unless a result is not contiguous. Takes the exchange's schedules and arguments.
    c10::intrusive_ptr<DeviceWork> launch(Exchange exchange, Caller caller,
                                          std::chrono::milliseconds timeout);
    // What a Future's callback calls before it waits for a collective.
    void hand_over() { ends_.hand_over(); }

    // What runs fails soon.
    void abort();

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr int kPhases = SharedSegment::kPhases;
    struct Job;
    class Holders;
    struct Chunk;
    // Counts that a phase waits for in all ranks; of small chunks beside their own numbering.
    struct Need {
        enum Kind : uint8_t { kNothing, kPhase, kSmall } kind = kNothing;
        int phase = 0;
        uint32_t count = 0;
    };
    struct UnderWay {
        Step step;
        StreamStep* in_stream;  // where the stream does it
    };

    void open(std::chrono::milliseconds timeout);
    void write_in_stream(Job& job);

    // The thread's own.
    void serve(const std::shared_ptr<Job>& job);
    void number_chunks();
    Chunk chunk(uint32_t number) const;
    bool move();
    bool begin_next(int phase);
    bool can_begin(int phase, const Chunk& chunk) const;
    Need need(int phase, const Chunk& chunk) const;
    bool done_in(const SharedSegment& segment, const Need& need) const;
    void begin(int phase, const Chunk& chunk);
    bool end_oldest(int phase);
    bool end_jobs();
    void rest(uint32_t seen);
    void look_around();
    void ring() const;
    void fail(const std::exception& error);
    void settle(const std::shared_ptr<Job>& job, const std::exception_ptr& error);

    const int rank_;
    std::unique_ptr<SharedMemory> memory_;
    std::vector<SharedSegment> segments_;  // by rank
    const std::chrono::microseconds
        spin_;  // before a thread sleeps: none where that takes a core from the device
    std::once_flag opened_;
    std::unique_ptr<StepExecutor> executor_;
    std::shared_ptr<GroupSignals> signals_;
    std::mutex launches_;       // guards the order of calls
    uint64_t calls_ = 0;        // under launches_: what the semaphores are raised to
    uint32_t small_calls_ = 0;  // under launches_

    std::deque<std::shared_ptr<Job>> jobs_;           // that run, in order
    uint32_t numbered_ = 0;                           // chunks that have a number
    std::array<uint32_t, kPhases> begun_{}, done_{};  // chunks, by phase
    std::array<std::deque<UnderWay>, kPhases> under_way_;
    std::string failure_;  // what has ended the group

    std::atomic<bool> aborted_{false};

    JobThread ends_;    // what must not hold up the other one, which the stream may wait for
    JobThread thread_;  // ends before what it uses
};

}  // namespace anymps::distributed
