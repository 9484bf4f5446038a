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

// Where a phase of a chunk is done.
struct Scene {
    StepExecutor& executor;
    int rank, ranks;
    size_t slot_offset;                      // of the chunk's slot in every segment
    const std::vector<uint64_t>& arguments;  // their addresses

    uint64_t slot(int of_rank) const { return executor.segment(of_rank) + slot_offset; }
    uint64_t address(const Part& part, size_t offset = 0) const {
        return arguments[part.argument] + part.offset + offset;
    }
};

// Immutable, of one collective; the same in all ranks but for what is the rank's own.
class Schedule {
  public:
    virtual ~Schedule() = default;

    uint32_t chunks() const { return chunks_; }
    // How many of SharedSegment's phases a chunk passes: two or all. Who reads what comes of the second one
    // has a third.
    int phases() const { return phases_; }
    // Whether it is one chunk that fits into a small slot and passes two phases.
    bool small() const { return chunks_ == 1 && phases_ == 2 && needed_ <= SharedSegment::kSmallSlotBytes; }
    // Has the executor do a phase of a chunk.
    virtual void phase(int phase, uint32_t chunk, const Scene& scene) const = 0;

  protected:
    // Of `bytes` of which `room` fit into a slot, each `copies` times, cut into chunks: small ones so that
    // phases overlap, not so small that a phase is all waiting.
    Schedule(size_t bytes, size_t room, int phases, size_t copies = 1);
    size_t chunk_bytes() const { return chunk_bytes_; }
    // The part of `bytes` bytes that a chunk covers.
    size_t begin(uint32_t chunk, size_t bytes) const { return std::min(bytes, chunk * chunk_bytes_); }
    size_t size(uint32_t chunk, size_t bytes) const {
        return std::min(bytes, (chunk + 1) * chunk_bytes_) - begin(chunk, bytes);
    }

  private:
    size_t chunk_bytes_;
    uint32_t chunks_;
    int phases_;
    size_t needed_;  // of a slot
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
