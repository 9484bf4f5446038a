// The operators of torch.distributed for tensors on mps: each asks the group's backend for mps, as PyTorch's
// own ask those for the CPU and for CUDA.
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <map>

#include "distributed/mps_backend.h"
#include "runtime/event.h"

namespace anymps::distributed {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Op = c10::intrusive_ptr<c10d::ReduceOp>;
using Lists = std::vector<Tensors>;
using TensorsAndWork = std::tuple<Tensors, WorkPtr>;

c10::intrusive_ptr<c10d::Backend> backend_of(const Group& group) {
    return group->getBackend(c10::DeviceType::MPS);
}

template <class Options>
Options options(bool async_op, int64_t timeout = c10d::kUnsetTimeout.count()) {
    Options result;
    result.asyncOp = async_op;
    result.timeout = std::chrono::milliseconds(timeout);
    return result;
}

template <class Options>
Options reducing(const Op& op, bool async_op, int64_t timeout) {
    auto result = options<Options>(async_op, timeout);
    result.reduceOp = *op;
    return result;
}

template <class Options>
Options rooted(int64_t root, bool async_op, int64_t timeout) {
    auto result = options<Options>(async_op, timeout);
    result.rootRank = root;
    return result;
}

TensorsAndWork allreduce_(at::TensorList tensors, const Group& group, const Op& op,
                          const std::optional<Tensor>& sparse_indices, bool async_op, int64_t timeout) {
    Tensors list = tensors.vec();
    return {list,
            backend_of(group)->allreduce(list, reducing<c10d::AllreduceOptions>(op, async_op, timeout))};
}

WorkPtr allreduce_coalesced_(at::TensorList tensors, const Group& group, const Op& op, bool async_op,
                             int64_t timeout) {
    Tensors list = tensors.vec();
    return backend_of(group)->allreduce_coalesced(
        list, reducing<c10d::AllreduceCoalescedOptions>(op, async_op, timeout));
}

TensorsAndWork broadcast_(at::TensorList tensors, const Group& group, int64_t root, int64_t root_tensor,
                          bool async_op, int64_t timeout) {
    Tensors list = tensors.vec();
    return {list,
            backend_of(group)->broadcast(list, rooted<c10d::BroadcastOptions>(root, async_op, timeout))};
}

WorkPtr reduce_(at::TensorList tensors, const Group& group, const Op& op, int64_t root, int64_t root_tensor,
                bool async_op, int64_t timeout) {
    Tensors list = tensors.vec();
    auto how = rooted<c10d::ReduceOptions>(root, async_op, timeout);
    how.reduceOp = *op;
    return backend_of(group)->reduce(list, how);
}

std::tuple<Lists, WorkPtr> allgather_(const Lists& outputs, at::TensorList inputs, const Group& group,
                                      bool async_op, int64_t timeout) {
    Lists out = outputs;
    Tensors in = inputs.vec();
    return {out, backend_of(group)->allgather(out, in, options<c10d::AllgatherOptions>(async_op, timeout))};
}

std::tuple<Tensor, WorkPtr> _allgather_base_(Tensor& output, Tensor& input, const Group& group, bool async_op,
                                             int64_t timeout) {
    return {output, backend_of(group)->_allgather_base(output, input,
                                                       options<c10d::AllgatherOptions>(async_op, timeout))};
}

WorkPtr allgather_coalesced_(const Lists& outputs, const at::TensorList& inputs, const Group& group,
                             bool async_op) {
    Lists out = outputs;
    Tensors in = inputs.vec();
    return backend_of(group)->allgather_coalesced(out, in, options<c10d::AllgatherOptions>(async_op));
}

WorkPtr allgather_into_tensor_coalesced_(at::TensorList outputs, at::TensorList inputs, const Group& group,
                                         bool async_op) {
    Tensors out = outputs.vec(), in = inputs.vec();
    return backend_of(group)->allgather_into_tensor_coalesced(out, in,
                                                              options<c10d::AllgatherOptions>(async_op));
}

WorkPtr gather_(const Lists& outputs, const at::TensorList& inputs, const Group& group, int64_t root,
                bool async_op, int64_t timeout) {
    Lists out = outputs;
    Tensors in = inputs.vec();
    return backend_of(group)->gather(out, in, rooted<c10d::GatherOptions>(root, async_op, timeout));
}

TensorsAndWork scatter_(const at::TensorList& outputs, const Lists& inputs, const Group& group, int64_t root,
                        bool async_op, int64_t timeout) {
    Tensors out = outputs.vec();
    Lists in = inputs;
    return {out, backend_of(group)->scatter(out, in, rooted<c10d::ScatterOptions>(root, async_op, timeout))};
}

TensorsAndWork reduce_scatter_(const at::TensorList& outputs, const Lists& inputs, const Group& group,
                               const Op& op, bool async_op, int64_t timeout) {
    Tensors out = outputs.vec();
    Lists in = inputs;
    return {out, backend_of(group)->reduce_scatter(
                     out, in, reducing<c10d::ReduceScatterOptions>(op, async_op, timeout))};
}

std::tuple<Tensor, WorkPtr> _reduce_scatter_base_(Tensor& output, Tensor& input, const Group& group,
                                                  const Op& op, bool async_op, int64_t timeout) {
    return {output, backend_of(group)->_reduce_scatter_base(
                        output, input, reducing<c10d::ReduceScatterOptions>(op, async_op, timeout))};
}

WorkPtr reduce_scatter_tensor_coalesced_(at::TensorList outputs, at::TensorList inputs, const Group& group,
                                         const Op& op, bool async_op, int64_t timeout) {
    Tensors out = outputs.vec(), in = inputs.vec();
    return backend_of(group)->reduce_scatter_tensor_coalesced(
        out, in, reducing<c10d::ReduceScatterOptions>(op, async_op, timeout));
}

TensorsAndWork alltoall_(const at::TensorList& outputs, const at::TensorList& inputs, const Group& group,
                         bool async_op, int64_t timeout) {
    Tensors out = outputs.vec(), in = inputs.vec();
    return {out, backend_of(group)->alltoall(out, in, options<c10d::AllToAllOptions>(async_op, timeout))};
}

WorkPtr alltoall_base_(Tensor& output, Tensor& input, const Group& group, std::vector<int64_t> output_splits,
                       std::vector<int64_t> input_splits, bool async_op, int64_t timeout) {
    return backend_of(group)->alltoall_base(output, input, output_splits, input_splits,
                                            options<c10d::AllToAllOptions>(async_op, timeout));
}

WorkPtr send(at::TensorList tensors, const Group& group, int64_t destination, int64_t tag) {
    Tensors list = tensors.vec();
    return backend_of(group)->send(list, static_cast<int>(destination), static_cast<int>(tag));
}

WorkPtr recv_(at::TensorList tensors, const Group& group, int64_t source, int64_t tag) {
    Tensors list = tensors.vec();
    return backend_of(group)->recv(list, static_cast<int>(source), static_cast<int>(tag));
}

WorkPtr recv_any_source_(at::TensorList tensors, const Group& group, int64_t tag) {
    Tensors list = tensors.vec();
    return backend_of(group)->recvAnysource(list, static_cast<int>(tag));
}

WorkPtr barrier(Tensor, const Group& group, const std::vector<int64_t>& device_ids, bool async_op,
                int64_t timeout) {
    auto how = options<c10d::BarrierOptions>(async_op, timeout);
    how.device_ids = device_ids;
    return backend_of(group)->barrier(how);
}

TORCH_LIBRARY_IMPL(c10d, MPS, m) {
    m.impl("allreduce_", allreduce_);
    m.impl("allreduce_coalesced_", allreduce_coalesced_);
    m.impl("broadcast_", broadcast_);
    m.impl("reduce_", reduce_);
    m.impl("allgather_", allgather_);
    m.impl("_allgather_base_", _allgather_base_);
    m.impl("allgather_coalesced_", allgather_coalesced_);
    m.impl("allgather_into_tensor_coalesced_", allgather_into_tensor_coalesced_);
    m.impl("gather_", gather_);
    m.impl("scatter_", scatter_);
    m.impl("reduce_scatter_", reduce_scatter_);
    m.impl("_reduce_scatter_base_", _reduce_scatter_base_);
    m.impl("reduce_scatter_tensor_coalesced_", reduce_scatter_tensor_coalesced_);
    m.impl("alltoall_", alltoall_);
    m.impl("alltoall_base_", alltoall_base_);
    m.impl("send", send);
    m.impl("recv_", recv_);
    m.impl("recv_any_source_", recv_any_source_);
    m.impl("barrier", barrier);
}

#ifdef C10D_BACKEND_HAS_HOOKS  // PyTorch 2.14 and later
std::tuple<Tensor, WorkPtr> gather_into_tensor_(Tensor& output, Tensor& input, const Group& group,
                                                int64_t root, bool async_op, int64_t timeout) {
    const auto backend = backend_of(group);
    return {output,
            backend->gather_into_tensor(output, input, rooted<c10d::GatherOptions>(root, async_op, timeout))};
}

TORCH_LIBRARY_IMPL(c10d, MPS, m) {
    m.impl("gather_into_tensor_", gather_into_tensor_);
}
#endif

// The times of a DistributedDataParallel's steps, as the device takes them.
class StepTimer final : public c10d::Timer {
  public:
    explicit StepTimer(c10::Device) {}

    void record(Event event) override {
        Timer::record(event);
        auto& slot = events_[event];
        slot = std::make_unique<runtime::Event>(true);
        slot->record();
    }

    std::optional<int64_t> measureDifference(Event start, Event end) override {
        const auto first = events_.find(start), last = events_.find(end);
        if (first == events_.end() || last == events_.end()) return std::nullopt;
        last->second->synchronize();
        const double milliseconds = runtime::Event::elapsed_ms(*first->second, *last->second);
        return milliseconds < 0 ? std::nullopt : std::optional(static_cast<int64_t>(milliseconds * 1e6));
    }

  private:
    std::map<Event, std::unique_ptr<runtime::Event>> events_;
};

// Puts a backend for mps into a group, which works through the one it has for the CPU and, between processes
// of one machine, through shared memory. Waits for the other ranks.
void attach(const Group& group) {
    auto host = group->getBackend(c10::DeviceType::CPU);
    auto local = LocalGroup::meet(host->getRank(), host->getSize(), *group->getStore());
    group->setBackend(c10::DeviceType::MPS, c10d::ProcessGroup::BackendType::CUSTOM,
                      c10::make_intrusive<MpsBackend>(std::move(host), std::move(local)));
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("attach_backend(__torch__.torch.classes.c10d.ProcessGroup group) -> ()", attach);
}

}  // namespace
}  // namespace anymps::distributed

namespace c10d {

using StepTimer = anymps::distributed::StepTimer;
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::DeviceType::MPS, StepTimer)

}  // namespace c10d
