// The steps of collectives between ranks that share memory: who copies and reduces which bytes, and when.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "distributed/step_executor.h"

namespace anymps::distributed {

// Bytes of one of a collective's arguments.
struct Part {
    int argument = 0;
    size_t offset = 0, bytes = 0;
};

// Where a schedule runs.
struct Scene {
    StepExecutor& executor;
    int rank, ranks;
    uint32_t first;                   // number of the collective's first step
    std::vector<uint64_t> arguments;  // their addresses

    uint64_t slot(int of_rank, uint32_t step) const {
        return executor.segment(of_rank) + SharedSegment::slot(first + step);
    }
    uint64_t address(const Part& part, size_t offset = 0) const {
        return arguments[part.argument] + part.offset + offset;
    }
};

// Immutable, of one collective; the same in all ranks but for what is the rank's own.
class Schedule {
  public:
    virtual ~Schedule() = default;

    uint32_t depth() const { return depth_; }
    uint32_t steps() const { return steps_; }
    // Has the executor do step `i`, counted from 0, which reads what ranks have written in step i - depth().
    virtual void step(uint32_t i, const Scene& scene) const = 0;

  protected:
    // Of `bytes` that take a detour of `hops` slots of `room` bytes, cut into chunks: small ones so that the
    // hops overlap, not so small that a step is all waiting.
    Schedule(size_t bytes, size_t room, uint32_t hops);
    size_t chunk() const { return chunk_; }
    uint32_t chunks() const { return chunks_; }
    // The part of `bytes` bytes that a chunk covers.
    size_t begin(uint32_t chunk, size_t bytes) const { return std::min(bytes, chunk * chunk_); }
    size_t size(uint32_t chunk, size_t bytes) const {
        return std::min(bytes, (chunk + 1) * chunk_) - begin(chunk, bytes);
    }

  private:
    size_t chunk_;
    uint32_t chunks_, depth_, steps_;
};

using SchedulePtr = std::unique_ptr<const Schedule>;

// Copies: what this rank gives to each rank, and what it takes from each; both lists by rank, and a part of
// no bytes where there is nothing. same: the rank gives the same bytes to all that take any. largest: the
// most bytes of a part in any rank, which all ranks know.
SchedulePtr copies(int rank, std::vector<Part> give, std::vector<Part> take, bool same, size_t largest);

// Of each rank's list of parts, a destination each, those for this rank are reduced to `out`.
SchedulePtr reduce_scatter(int rank, std::vector<Part> give, Part out, c10::ScalarType dtype,
                           c10d::ReduceOp::RedOpType op);

// Elementwise over the ranks, in place.
SchedulePtr all_reduce(int ranks, Part data, c10::ScalarType dtype, c10d::ReduceOp::RedOpType op);

// Nothing but that all have come.
SchedulePtr rendezvous();

}  // namespace anymps::distributed
