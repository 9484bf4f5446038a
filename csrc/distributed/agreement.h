// Ranks of one machine that decide together on something, before they depend on it.
#pragma once

#include <chrono>
#include <vector>

#include "distributed/shared_segment.h"

namespace anymps::distributed {

// Stages that all ranks come to, or none goes on from: each rank does its part, and then asks reach() whether
// all have done theirs. Once in the life of a group. Owner: one thread.
class Agreement {
  public:
    // The segments have to outlive it. timeout: of the whole.
    Agreement(const std::vector<SharedSegment>& segments, int rank, std::chrono::milliseconds timeout);

    // Waits until every rank has come as far, or one has left: whether none has. Throws std::runtime_error
    // where a rank has ended or given up, or does not come within the timeout; all ranks give up then.
    bool reach();
    // The same question without a stage, and without waiting: whether none has left.
    bool holds() const;
    // This rank does without, and so will the others. Not after the last stage.
    void leave();

    const std::vector<SharedSegment>& segments() const { return segments_; }
    int rank() const { return rank_; }

  private:
    void look_after(size_t rank) const;
    void ring() const;

    const std::vector<SharedSegment>& segments_;
    const int rank_;
    const std::chrono::steady_clock::time_point deadline_;
    uint32_t stage_ = 0;
};

}  // namespace anymps::distributed
