// The c10d backend of the mps device. Its data goes through memory that ranks share, or through another
// backend, which works on host memory.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <vector>

#include "distributed/device_work.h"
#include "distributed/in_flight.h"
#include "distributed/local_group.h"
#include "distributed/reduction.h"
#include "distributed/self_messages.h"

namespace anymps::distributed {

constexpr const char* kBackendName = "anymps";

// Every collective returns at once, with what the device has to do before recorded: see launch(). Tensors may
// have any strides; of one collective all lie on mps. Errors of arguments are raised by the call, those of
// the exchange by wait(), as torch.distributed.DistBackendError.
//
// Owner: one ProcessGroup. Any thread may call it; c10d wants the same order in all ranks.
class MpsBackend final : public c10d::Backend {
  public:
    // host: of CPU tensors and for this backend alone, as it sees collectives when the device gets to them,
    // at another time than those of CPU tensors. local: what collectives go through instead, but messages;
    // nullptr where the ranks share no memory.
    MpsBackend(c10::intrusive_ptr<c10d::Backend> host, std::unique_ptr<LocalGroup> local);

    const std::string getBackendName() const override { return kBackendName; }
    c10::intrusive_ptr<Options> getBackendOptions() override;
    void setTimeout(std::chrono::milliseconds timeout) override { host_->setTimeout(timeout); }
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override { return calls_; }
    void abort() override;
    void shutdown() override { host_->shutdown(); }

    void startCoalescing() override;
    WorkPtr endCoalescing() override;

    WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
    WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
    WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
    WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
    WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                      const c10d::AllgatherOptions& options) override;
    WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override;
    WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::AllgatherOptions& options) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) override;
    WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                   const c10d::GatherOptions& options) override;
    WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                    const c10d::ScatterOptions& options) override;
    WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                           const c10d::ReduceScatterOptions& options) override;
    WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input,
                                 const c10d::ReduceScatterOptions& options) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const c10d::ReduceScatterOptions& options) override;
    WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                          std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
    WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
    WorkPtr send(Tensors& tensors, int destination, int tag) override;
    WorkPtr recv(Tensors& tensors, int source, int tag) override;
    WorkPtr recvAnysource(Tensors& tensors, int tag) override;
    WorkPtr barrier(const c10d::BarrierOptions& options) override;
    // A gather into one tensor, which PyTorch has since 2.14.
    WorkPtr gather_into_tensor(Tensor& output, Tensor& input, const c10d::GatherOptions& options);

  private:
    // By what the group has for it. timeout: as the options have it.
    WorkPtr run(Exchange exchange, std::chrono::milliseconds timeout);
    WorkPtr started(WorkPtr work);
    // Before arguments are made of the tensors: waits for earlier collectives and messages that use them,
    // where one of the two writes.
    void follow(const Tensors& read, const Tensors& written);
    // The same before a message, which waits for no other message: that may be received after it.
    void follow_collectives(const Tensors& tensors, Access access);
    void follow(const std::vector<Span>& next, InFlight& earlier);
    Caller caller() { return {getRank(), getSize(), ++calls_}; }
    // reduce_scatter between ranks that share memory; give: of inputs, which are arguments 1 and on.
    WorkPtr reduce_locally(const char* name, c10d::OpType type, const Tensor& output, const Tensors& inputs,
                           const Reduction& reduction, std::vector<Part> give,
                           std::chrono::milliseconds timeout);
    // Has the ranks find out first what the largest part of all is.
    void set_uneven(Exchange& exchange, const std::vector<Part>& give, const std::vector<Part>& take);
    WorkPtr gather_uneven(Tensors& outputs, const Tensor& input, const c10d::AllgatherOptions& options);
    // Of rank r's inputs, each flat, the r-th goes to rank r and comes reduced to output.
    WorkPtr reduce_parts(const char* name, c10d::OpType type, const Tensor& output, const Tensor& flat_input,
                         const std::vector<int64_t>& elements, const c10d::ReduceScatterOptions& options);
    WorkPtr message(const char* name, c10d::OpType type, Tensors& tensors, Access access,
                    std::function<WorkPtr(Tensors&)> start);

    c10::intrusive_ptr<c10d::Backend> host_;
    std::unique_ptr<LocalGroup> local_;
    SelfMessages self_messages_;
    std::shared_ptr<InFlight> in_flight_ = std::make_shared<InFlight>();
    InFlight messages_in_flight_;
    AbortAtExit abort_at_exit_;
    std::atomic<uint64_t> calls_{0};
    bool coalescing_ = false;
    std::vector<WorkPtr> coalesced_;
};

}  // namespace anymps::distributed
