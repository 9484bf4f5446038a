// Collectives of CPU tensors between the processes of one machine, through memory that they share.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>
#include <vector>

#include "distributed/device_work.h"
#include "distributed/job_thread.h"
#include "distributed/shared_segment.h"

namespace anymps::distributed {

// What a group's host side uses instead of gloo alone where all its ranks run on one machine, as one user and
// in one container. all_reduce, all_gather into one tensor and all_to_all of equal parts go through the
// shared memory, everything else through gloo. Takes contiguous tensors. A rank that ends is noticed at once.
//
// Owner: one MpsBackend. Collectives run on a thread of its own, in the order of the calls.
class SharedMemoryBackend final : public c10d::Backend {
  public:
    // gloo itself, or a backend around it where memory can be shared, which all ranks find out together.
    static c10::intrusive_ptr<c10d::Backend> around(c10::intrusive_ptr<c10d::Backend> gloo,
                                                    const c10::intrusive_ptr<c10d::Store>& store);

    SharedMemoryBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::vector<SharedSegment> segments);

    const std::string getBackendName() const override { return "anymps_shared_memory"; }
    c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
    void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
    void abort() override;
    void shutdown() override;

    WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
    WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override;
    WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                          std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;

    WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
        return gloo_->broadcast(tensors, options);
    }
    WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
        return gloo_->reduce(tensors, options);
    }
    WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                      const c10d::AllgatherOptions& options) override {
        return gloo_->allgather(outputs, inputs, options);
    }
    WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                   const c10d::GatherOptions& options) override {
        return gloo_->gather(outputs, inputs, options);
    }
    WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                    const c10d::ScatterOptions& options) override {
        return gloo_->scatter(outputs, inputs, options);
    }
    WorkPtr send(Tensors& tensors, int destination, int tag) override {
        return gloo_->send(tensors, destination, tag);
    }
    WorkPtr recv(Tensors& tensors, int source, int tag) override { return gloo_->recv(tensors, source, tag); }
    WorkPtr recvAnysource(Tensors& tensors, int tag) override { return gloo_->recvAnysource(tensors, tag); }
    WorkPtr barrier(const c10d::BarrierOptions& options) override { return gloo_->barrier(options); }

  private:
    using Deadline = std::chrono::steady_clock::time_point;

    WorkPtr later(c10d::OpType type, std::chrono::milliseconds timeout, std::function<void(Deadline)> run);
    void wait_for(SharedSegment::Counter counter, uint32_t step, Deadline deadline) const;
    // Splits `bytes` into pieces of at most `most`, and runs one step a piece: write(step, first byte, bytes)
    // fills this rank's slot, and read() takes from the others' what all have written.
    void steps(size_t bytes, size_t most, Deadline deadline,
               const std::function<void(uint32_t, size_t, size_t)>& write,
               const std::function<void(uint32_t, size_t, size_t)>& read);
    const SharedSegment& own() const { return segments_[getRank()]; }

    c10::intrusive_ptr<c10d::Backend> gloo_;
    std::vector<SharedSegment> segments_;  // by rank
    uint32_t step_ = 0;                    // the thread's own
    std::string failure_;                  // the thread's own: what has ended the group
    JobThread thread_{"anymps_shared"};    // ends before what it uses
};

}  // namespace anymps::distributed
