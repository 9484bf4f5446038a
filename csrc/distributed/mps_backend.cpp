#include "distributed/mps_backend.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

#include "distributed/reduction.h"

namespace anymps::distributed {
namespace {

using Type = c10d::OpType;

void check(const char* name, const Tensor& tensor) {
    TORCH_CHECK(tensor.is_mps(), name, ": expected all tensors on mps, but found one on ", tensor.device());
    TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided, name,
                                " on mps takes dense tensors only, not ", tensor.layout());
}

void check(const char* name, const Tensors& tensors) {
    for (const auto& tensor : tensors) check(name, tensor);
}

const Tensor& single(const char* name, const Tensors& tensors) {
    TORCH_CHECK(tensors.size() == 1, name, ": expected one tensor a rank, got ", tensors.size());
    check(name, tensors[0]);
    return tensors[0];
}

// One tensor a rank.
void check_ranks(const char* name, const Tensors& tensors, int ranks) {
    TORCH_CHECK(tensors.size() == static_cast<size_t>(ranks), name, ": expected a list of ", ranks,
                " tensors, one a rank, got ", tensors.size());
    check(name, tensors);
}

void check_dtypes(const char* name, const Tensor& a, const Tensor& b) {
    TORCH_CHECK(a.scalar_type() == b.scalar_type(), name,
                ": output tensor must have the same type as input tensor, got ", a.scalar_type(), " and ",
                b.scalar_type());
}

void check_root(const char* name, int64_t root, int ranks) {
    TORCH_CHECK(root >= 0 && root < ranks, name, ": invalid root rank: ", root, " of ", ranks, " ranks");
}

Tensors all_bytes(const Tensors& host, size_t first, size_t count) {
    Tensors result;
    for (size_t i = first; i < first + count; ++i) result.push_back(bytes_of(host[i]));
    return result;
}

std::vector<HostArgument> arguments_of(const Tensors& tensors, Access access) {
    std::vector<HostArgument> list;
    for (const auto& tensor : tensors) list.emplace_back(tensor, access);
    return list;
}

// Split sizes along dimension 0, or equal ones, in bytes.
std::vector<int64_t> byte_splits(const std::vector<int64_t>& splits, const Tensor& tensor, int ranks) {
    TORCH_CHECK(tensor.dim() > 0, "all_to_all_single: expected tensors of at least one dimension");
    c10d::checkSplitSizes(splits, tensor, ranks);
    int64_t row = static_cast<int64_t>(tensor.element_size());
    for (const int64_t size : tensor.sizes().slice(1)) row *= size;
    std::vector<int64_t> bytes(ranks, tensor.size(0) / ranks * row);
    for (size_t i = 0; i < splits.size(); ++i) bytes[i] = splits[i] * row;
    return bytes;
}

std::vector<int64_t> bytes_each(const Tensors& tensors) {
    std::vector<int64_t> bytes;
    for (const auto& tensor : tensors) bytes.push_back(static_cast<int64_t>(tensor.nbytes()));
    return bytes;
}

// All elements, one tensor after the other.
Tensor flat(const Tensors& tensors) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensors parts;
    for (const auto& tensor : tensors) parts.push_back(tensor.reshape({-1}));
    return parts.size() == 1 ? parts[0] : at::cat(parts);
}

// The parts of a flat tensor, into tensors of any shape.
void unflatten(const Tensor& from, const Tensors& tensors) {
    int64_t first = 0;
    for (const auto& tensor : tensors) {
        const int64_t count = tensor.numel();
        Tensor to = tensor;
        to.copy_(from.narrow(0, first, count).view(tensor.sizes()));
        first += count;
    }
}

int64_t sum_of(const std::vector<int64_t>& values) {
    return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

MpsBackend::MpsBackend(c10::intrusive_ptr<c10d::Backend> host)
    : Backend(host->getRank(), host->getSize()),
      host_(std::move(host)),
      abort_at_exit_([this] { abort(); }) {}

c10::intrusive_ptr<c10d::Backend::Options> MpsBackend::getBackendOptions() {
    return c10::make_intrusive<Options>(kBackendName, host_->getBackendOptions()->timeout);
}

WorkPtr MpsBackend::run(Exchange exchange, Launch* launch) {
    WorkPtr work = launch(std::move(exchange), {getRank(), getSize(), ++calls_});
    if (coalescing_) coalesced_.push_back(work);
    return work;
}

void MpsBackend::startCoalescing() {
    coalescing_ = true;
    coalesced_.clear();
}

WorkPtr MpsBackend::endCoalescing() {
    coalescing_ = false;
    return join(std::exchange(coalesced_, {}), getRank());
}

WorkPtr MpsBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
    const Tensor& tensor = single("broadcast", tensors);
    check_root("broadcast", options.rootRank, getSize());
    const Access access = getRank() == options.rootRank ? Access::Read : Access::Write;
    return run({"broadcast", Type::BROADCAST, tensors, arguments_of({tensor}, access),
                [host = host_, options](const Tensors& views) {
                    Tensors bytes = all_bytes(views, 0, 1);
                    return std::vector{host->broadcast(bytes, options)};
                }});
}

WorkPtr MpsBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
    single("all_reduce", tensors);
    c10d::AllreduceCoalescedOptions same;
    static_cast<c10d::AllreduceOptions&>(same) = options;
    return allreduce_coalesced(tensors, same);
}

WorkPtr MpsBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
    check("all_reduce", tensors);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::vector<Reduction> reductions;
    std::vector<HostArgument> arguments;
    for (const auto& tensor : tensors) {
        const Tensor real = Reduction::real(tensor);
        reductions.emplace_back("all_reduce", options.reduceOp, tensor.scalar_type(), getSize());
        arguments.emplace_back(real, Access::ReadWrite, reductions.back().prepared(real));
    }
    return run({"all_reduce", Type::ALLREDUCE, tensors, std::move(arguments),
                [host = host_, options, reductions](const Tensors& views) {
                    std::vector<WorkPtr> works;
                    for (size_t i = 0; i < views.size(); ++i) {
                        c10d::AllreduceOptions on_host = options;
                        on_host.reduceOp = reductions[i].gloo_op();
                        Tensors one{views[i]};
                        if (one[0].numel() != 0) works.push_back(host->allreduce(one, on_host));
                    }
                    return works;
                },
                [reductions](std::vector<HostArgument>& arguments) {
                    for (size_t i = 0; i < arguments.size(); ++i) {
                        Tensor reduced = arguments[i].exchanged();
                        reductions[i].finish(reduced);
                    }
                }});
}

WorkPtr MpsBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
    const Tensor& tensor = single("reduce", tensors);
    check_root("reduce", options.rootRank, getSize());
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor real = Reduction::real(tensor);
    const Reduction reduction("reduce", options.reduceOp, tensor.scalar_type(), getSize());
    const bool root = getRank() == options.rootRank;
    Tensor exchanged = reduction.prepared(real);
    // gloo adds in the memory of every rank, and those but the root's keep what they had.
    if (!root && exchanged.is_alias_of(real)) exchanged = exchanged.clone();
    std::vector<HostArgument> arguments;
    arguments.emplace_back(real, root ? Access::ReadWrite : Access::Read, exchanged);
    return run({"reduce", Type::REDUCE, tensors, std::move(arguments),
                [host = host_, options, reduction](const Tensors& views) {
                    c10d::ReduceOptions on_host = options;
                    on_host.reduceOp = reduction.gloo_op();
                    Tensors one{views[0]};
                    return views[0].numel() == 0 ? std::vector<WorkPtr>{}
                                                 : std::vector{host->reduce(one, on_host)};
                },
                [reduction, root](std::vector<HostArgument>& arguments) {
                    Tensor reduced = arguments[0].exchanged();
                    if (root) reduction.finish(reduced);
                }});
}

WorkPtr MpsBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) {
    const Tensor& input = single("all_gather", inputs);
    TORCH_CHECK(outputs.size() == 1, "all_gather: expected one list of outputs, got ", outputs.size());
    check_ranks("all_gather", outputs[0], getSize());
    for (const auto& output : outputs[0]) check_dtypes("all_gather", output, input);
    const auto same_size = [&](const Tensor& output) { return output.numel() == input.numel(); };
    if (!std::ranges::all_of(outputs[0], same_size)) return gather_uneven(outputs[0], input, options);
    auto arguments = arguments_of(outputs[0], Access::Write);
    arguments.emplace_back(input, Access::Read);
    return run({"all_gather", Type::ALLGATHER, outputs[0], std::move(arguments),
                [host = host_, options](const Tensors& views) {
                    std::vector<Tensors> out{all_bytes(views, 0, views.size() - 1)};
                    Tensors in = all_bytes(views, views.size() - 1, 1);
                    return in[0].numel() == 0 ? std::vector<WorkPtr>{}
                                              : std::vector{host->allgather(out, in, options)};
                }});
}

WorkPtr MpsBackend::gather_uneven(Tensors& outputs, const Tensor& input,
                                  const c10d::AllgatherOptions& options) {
    TORCH_CHECK(outputs[getRank()].numel() == input.numel(), "all_gather: rank ", getRank(), " gives ",
                input.numel(), " elements, and its output holds ", outputs[getRank()].numel());
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensor own = outputs[getRank()];
    own.copy_(input.view(own.sizes()));
    std::vector<HostArgument> arguments;
    for (int rank = 0; rank < getSize(); ++rank) {
        arguments.emplace_back(outputs[rank], rank == getRank() ? Access::Read : Access::Write);
    }
    return run({"all_gather", Type::ALLGATHER, outputs, std::move(arguments),
                [host = host_, options](const Tensors& views) {
                    std::vector<WorkPtr> works;
                    for (size_t rank = 0; rank < views.size(); ++rank) {
                        if (views[rank].numel() == 0) continue;
                        c10d::BroadcastOptions from;
                        from.rootRank = static_cast<int64_t>(rank);
                        from.timeout = options.timeout;
                        Tensors bytes = all_bytes(views, rank, 1);
                        works.push_back(host->broadcast(bytes, from));
                    }
                    return works;
                }});
}

WorkPtr MpsBackend::_allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) {
    Tensors outputs{output}, inputs{input};
    return allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPtr MpsBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
    constexpr const char* kName = "all_gather_into_tensor";
    TORCH_CHECK(outputs.size() == inputs.size(), kName, ": got ", outputs.size(), " outputs and ",
                inputs.size(), " inputs");
    check(kName, outputs);
    check(kName, inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
        check_dtypes(kName, outputs[i], inputs[i]);
        TORCH_CHECK(outputs[i].numel() == inputs[i].numel() * getSize(),
                    "output tensor size must be equal to world_size times input tensor size");
    }
    auto arguments = arguments_of(outputs, Access::Write);
    for (auto& input : arguments_of(inputs, Access::Read)) arguments.push_back(std::move(input));
    return run({kName, Type::_ALLGATHER_BASE, outputs, std::move(arguments),
                [host = host_, options](const Tensors& views) {
                    std::vector<WorkPtr> works;
                    const size_t count = views.size() / 2;
                    for (size_t i = 0; i < count; ++i) {
                        Tensor out = bytes_of(views[i]), in = bytes_of(views[count + i]);
                        if (in.numel() != 0) works.push_back(host->_allgather_base(out, in, options));
                    }
                    return works;
                }});
}

WorkPtr MpsBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& options) {
    TORCH_CHECK(outputs.size() == static_cast<size_t>(getSize()),
                "all_gather_coalesced: expected a list of tensors for each of ", getSize(), " ranks, got ",
                outputs.size());
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < inputs.size(); ++i) {
        std::vector<Tensors> out(1);
        for (const auto& of_rank : outputs) {
            TORCH_CHECK(of_rank.size() == inputs.size(), "all_gather_coalesced: expected ", inputs.size(),
                        " outputs for each rank, got ", of_rank.size());
            out[0].push_back(of_rank[i]);
        }
        Tensors in{inputs[i]};
        works.push_back(allgather(out, in, options));
    }
    return join(std::move(works), getRank());
}

WorkPtr MpsBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::GatherOptions& options) {
    const Tensor& input = single("gather", inputs);
    check_root("gather", options.rootRank, getSize());
    Tensors list;
    if (getRank() == options.rootRank) {
        TORCH_CHECK(outputs.size() == 1, "gather: expected one list of outputs, got ", outputs.size());
        check_ranks("gather", outputs[0], getSize());
        list = outputs[0];
    } else {
        TORCH_CHECK(outputs.empty(), "gather: requires empty output on non-root");
    }
    for (const auto& output : list) {
        check_dtypes("gather", output, input);
        TORCH_CHECK(output.numel() == input.numel(), "gather: expected outputs of the input's ",
                    input.numel(), " elements, got one of ", output.numel());
    }
    auto arguments = arguments_of(list, Access::Write);
    arguments.emplace_back(input, Access::Read);
    return run(
        {"gather", Type::GATHER, list, std::move(arguments), [host = host_, options](const Tensors& views) {
             const size_t count = views.size() - 1;
             std::vector<Tensors> out;
             if (count != 0) out.push_back(all_bytes(views, 0, count));
             Tensors in = all_bytes(views, count, 1);
             return in[0].numel() == 0 ? std::vector<WorkPtr>{} : std::vector{host->gather(out, in, options)};
         }});
}

WorkPtr MpsBackend::gather_into_tensor(Tensor& output, Tensor& input, const c10d::GatherOptions& options) {
    check("gather_into_tensor", input);
    std::vector<Tensors> outputs;
    if (getRank() == options.rootRank) {
        TORCH_CHECK(output.numel() == input.numel() * getSize(),
                    "output tensor size must be equal to world_size times input tensor size");
        TORCH_CHECK(output.is_contiguous(), "gather_into_tensor: expected a contiguous output");
        outputs.push_back(output.view({-1}).chunk(getSize()));
    }
    Tensors inputs{input};
    return gather(outputs, inputs, options);
}

WorkPtr MpsBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ScatterOptions& options) {
    const Tensor& output = single("scatter", outputs);
    check_root("scatter", options.rootRank, getSize());
    Tensors list;
    if (getRank() == options.rootRank) {
        TORCH_CHECK(inputs.size() == 1, "scatter: expected one list of inputs, got ", inputs.size());
        check_ranks("scatter", inputs[0], getSize());
        list = inputs[0];
    } else {
        TORCH_CHECK(inputs.empty(), "scatter: requires empty input on non-root");
    }
    for (const auto& input : list) {
        check_dtypes("scatter", output, input);
        TORCH_CHECK(output.numel() == input.numel(), "scatter: expected inputs of the output's ",
                    output.numel(), " elements, got one of ", input.numel());
    }
    auto arguments = arguments_of(list, Access::Read);
    arguments.emplace_back(output, Access::Write);
    return run({"scatter", Type::SCATTER, outputs, std::move(arguments),
                [host = host_, options](const Tensors& views) {
                    const size_t count = views.size() - 1;
                    std::vector<Tensors> in;
                    if (count != 0) in.push_back(all_bytes(views, 0, count));
                    Tensors out = all_bytes(views, count, 1);
                    return out[0].numel() == 0 ? std::vector<WorkPtr>{}
                                               : std::vector{host->scatter(out, in, options)};
                }});
}

WorkPtr MpsBackend::reduce_parts(const char* name, Type type, const Tensor& output, const Tensor& flat_input,
                                 const std::vector<int64_t>& elements,
                                 const c10d::ReduceScatterOptions& options) {
    check_dtypes(name, output, flat_input);
    TORCH_CHECK(elements[getRank()] == output.numel(), name, ": rank ", getRank(), " gets ",
                elements[getRank()], " elements, and its output holds ", output.numel());
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Reduction reduction(name, options.reduceOp, output.scalar_type(), getSize());
    const Tensor input = reduction.prepared(Reduction::real(flat_input));
    const Tensor result = Reduction::real(output);
    const Tensor received = at::empty({getSize(), result.numel()}, input.options());
    const auto bytes_of_element = static_cast<int64_t>(input.element_size()) * (output.is_complex() ? 2 : 1);
    std::vector<int64_t> sent, got(getSize(), output.numel() * bytes_of_element);
    for (const int64_t count : elements) sent.push_back(count * bytes_of_element);
    if (type == Type::_REDUCE_SCATTER_BASE) got = sent = {};  // equal parts, in all ranks
    std::vector<HostArgument> arguments;
    arguments.emplace_back(received, Access::Write);
    arguments.emplace_back(input, Access::Read);
    return run({name,
                type,
                {output},
                std::move(arguments),
                [host = host_, sent, got, timeout = options.timeout](const Tensors& views) mutable {
                    Tensor out = bytes_of(views[0]), in = bytes_of(views[1]);
                    c10d::AllToAllOptions all_to_all;
                    all_to_all.timeout = timeout;
                    return in.numel() == 0 ? std::vector<WorkPtr>{}
                                           : std::vector{host->alltoall_base(out, in, got, sent, all_to_all)};
                },
                [reduction, result](std::vector<HostArgument>& arguments) {
                    Tensor to = result;
                    if (to.numel() != 0)
                        to.copy_(reduction.reduced(arguments[0].exchanged()).view(to.sizes()));
                }});
}

WorkPtr MpsBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ReduceScatterOptions& options) {
    const Tensor& output = single("reduce_scatter", outputs);
    TORCH_CHECK(inputs.size() == 1, "reduce_scatter: expected one list of inputs, got ", inputs.size());
    check_ranks("reduce_scatter", inputs[0], getSize());
    std::vector<int64_t> elements;
    for (const auto& input : inputs[0]) elements.push_back(input.numel());
    return reduce_parts("reduce_scatter", Type::REDUCE_SCATTER, output, flat(inputs[0]), elements, options);
}

WorkPtr MpsBackend::_reduce_scatter_base(Tensor& output, Tensor& input,
                                         const c10d::ReduceScatterOptions& options) {
    constexpr const char* kName = "reduce_scatter_tensor";
    check(kName, output);
    check(kName, input);
    TORCH_CHECK(input.numel() == output.numel() * getSize(),
                "input tensor must be the same size as output size times world size");
    return reduce_parts(kName, Type::_REDUCE_SCATTER_BASE, output, flat({input}),
                        std::vector<int64_t>(getSize(), output.numel()), options);
}

WorkPtr MpsBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                    const c10d::ReduceScatterOptions& options) {
    TORCH_CHECK(outputs.size() == inputs.size(), "reduce_scatter_tensor: got ", outputs.size(),
                " outputs and ", inputs.size(), " inputs");
    std::vector<WorkPtr> works;
    for (size_t i = 0; i < outputs.size(); ++i) {
        works.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
    }
    return join(std::move(works), getRank());
}

WorkPtr MpsBackend::alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_splits,
                                  std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
    constexpr const char* kName = "all_to_all_single";
    check(kName, output);
    check(kName, input);
    check_dtypes(kName, output, input);
    auto got = byte_splits(output_splits, output, getSize());
    auto sent = byte_splits(input_splits, input, getSize());
    if (output_splits.empty() && input_splits.empty()) got = sent = {};  // equal parts, in all ranks
    std::vector<HostArgument> arguments;
    arguments.emplace_back(output, Access::Write);
    arguments.emplace_back(input, Access::Read);
    return run({kName,
                Type::ALLTOALL_BASE,
                {output},
                std::move(arguments),
                [host = host_, options, got, sent](const Tensors& views) mutable {
                    Tensor out = bytes_of(views[0]), in = bytes_of(views[1]);
                    return std::vector{host->alltoall_base(out, in, got, sent, options)};
                }});
}

WorkPtr MpsBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
    check_ranks("all_to_all", outputs, getSize());
    check_ranks("all_to_all", inputs, getSize());
    for (const auto& output : outputs) check_dtypes("all_to_all", output, inputs[0]);
    for (const auto& input : inputs) check_dtypes("all_to_all", outputs[0], input);
    auto got = bytes_each(outputs), sent = bytes_each(inputs);
    const auto elements = sum_of(got) / static_cast<int64_t>(outputs[0].element_size());
    std::vector<HostArgument> arguments;
    arguments.emplace_back(at::empty({elements}, outputs[0].options()), Access::Write);
    arguments.emplace_back(flat(inputs), Access::Read);
    return run(
        {"all_to_all", Type::ALLTOALL, outputs, std::move(arguments),
         [host = host_, options, got, sent](const Tensors& views) mutable {
             Tensor out = bytes_of(views[0]), in = bytes_of(views[1]);
             return std::vector{host->alltoall_base(out, in, got, sent, options)};
         },
         [outputs](std::vector<HostArgument>& arguments) { unflatten(arguments[0].exchanged(), outputs); }});
}

WorkPtr MpsBackend::message(const char* name, Type type, Tensors& tensors, Access access,
                            std::function<WorkPtr(Tensors&)> start) {
    const Tensor& tensor = single(name, tensors);
    return run({name, type, tensors, arguments_of({tensor}, access),
                [start = std::move(start)](const Tensors& views) {
                    Tensors bytes = all_bytes(views, 0, 1);
                    return std::vector{start(bytes)};
                }},
               launch_message);
}

WorkPtr MpsBackend::send(Tensors& tensors, int destination, int tag) {
    check_root("send", destination, getSize());
    return message(
        "send", Type::SEND, tensors, Access::Read,
        [host = host_, destination, tag](Tensors& bytes) { return host->send(bytes, destination, tag); });
}

WorkPtr MpsBackend::recv(Tensors& tensors, int source, int tag) {
    check_root("recv", source, getSize());
    return message("recv", Type::RECV, tensors, Access::Write,
                   [host = host_, source, tag](Tensors& bytes) { return host->recv(bytes, source, tag); });
}

WorkPtr MpsBackend::recvAnysource(Tensors& tensors, int tag) {
    return message("recv", Type::RECVANYSOURCE, tensors, Access::Write,
                   [host = host_, tag](Tensors& bytes) { return host->recvAnysource(bytes, tag); });
}

WorkPtr MpsBackend::barrier(const c10d::BarrierOptions& options) {
    return run({"barrier", Type::BARRIER, {}, {}, [host = host_, timeout = options.timeout](const Tensors&) {
                    c10d::BarrierOptions on_host;
                    on_host.timeout = timeout;
                    return std::vector{host->barrier(on_host)};
                }});
}

}  // namespace anymps::distributed
