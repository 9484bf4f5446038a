#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <utility>

#include "distributed/collective_arguments.h"
#include "distributed/mps_backend.h"
#include "distributed/reduction.h"

namespace anymps::distributed {
namespace {

using Type = c10d::OpType;

// What the rank gets of a reduction.
void check_part(const char* name, int64_t elements, const Tensor& output) {
    TORCH_CHECK(elements == output.numel(), name, ": this rank gets ", elements,
                " elements, and its output holds ", output.numel());
}

}  // namespace

WorkPtr MpsBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
    single("all_reduce", tensors);
    c10d::AllreduceCoalescedOptions same;
    static_cast<c10d::AllreduceOptions&>(same) = options;
    return allreduce_coalesced(tensors, same);
}

WorkPtr MpsBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
    check("all_reduce", tensors);
    follow({}, tensors);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::vector<Reduction> reductions;
    std::vector<HostArgument> arguments;
    std::vector<SchedulePtr> schedules;
    for (const auto& tensor : tensors) {
        const Tensor real = Reduction::real(tensor);
        reductions.emplace_back("all_reduce", options.reduceOp, tensor.scalar_type(), getSize());
        const Reduction& reduction = reductions.back();
        const Tensor exchanged = local_ ? reduction.prepared_locally(real) : reduction.prepared(real);
        arguments.emplace_back(real, Access::ReadWrite, exchanged);
        schedules.push_back(all_reduce(getSize(), whole(static_cast<int>(schedules.size()), exchanged),
                                       exchanged.scalar_type(), reduction.local_op()));
    }
    Exchange exchange{"all_reduce",
                      Type::ALLREDUCE,
                      tensors,
                      std::move(arguments),
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
                      }};
    exchange.sliced = true;
    exchange.schedules = std::move(schedules);
    return run(std::move(exchange), options.timeout);
}

WorkPtr MpsBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
    const Tensor& tensor = single("reduce", tensors);
    check_root("reduce", options.rootRank, getSize());
    const bool root = getRank() == options.rootRank;
    root ? follow({}, tensors) : follow(tensors, {});
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor real = Reduction::real(tensor);
    const Reduction reduction("reduce", options.reduceOp, tensor.scalar_type(), getSize());
    if (local_) {
        const Part all = whole(1, real);
        return reduce_locally("reduce", Type::REDUCE, tensor, {real}, reduction,
                              only(static_cast<int>(options.rootRank), getSize(), all), options.timeout);
    }
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
                }},
               options.timeout);
}

WorkPtr MpsBackend::reduce_parts(const char* name, Type type, const Tensor& output, const Tensor& flat_input,
                                 const std::vector<int64_t>& elements,
                                 const c10d::ReduceScatterOptions& options) {
    check_dtypes(name, output, flat_input);
    check_part(name, elements[getRank()], output);
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
                }},
               options.timeout);
}

WorkPtr MpsBackend::reduce_locally(const char* name, Type type, const Tensor& output, const Tensors& inputs,
                                   const Reduction& reduction, std::vector<Part> give,
                                   std::chrono::milliseconds timeout) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Tensor result = Reduction::real(output);
    const c10::ScalarType dtype = reduction.local_dtype();
    const size_t wider = c10::elementSize(dtype) / result.element_size();
    for (Part& part : give) part = {part.argument, part.offset * wider, part.bytes * wider};
    const Part out{0, 0, give[getRank()].bytes};
    Tensor exchanged;
    if (wider != 1) exchanged = at::empty(result.sizes(), result.options().dtype(dtype));
    std::vector<HostArgument> arguments;
    arguments.emplace_back(result, out.bytes != 0 ? Access::Write : Access::Read, exchanged);
    for (const auto& input : inputs)
        arguments.emplace_back(input, Access::Read, reduction.prepared_locally(input));
    Exchange exchange{name, type, {output}, std::move(arguments), {}};
    exchange.schedules.push_back(
        distributed::reduce_scatter(getRank(), std::move(give), out, dtype, reduction.local_op()));
    return run(std::move(exchange), timeout);
}

WorkPtr MpsBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                   const c10d::ReduceScatterOptions& options) {
    const Tensor& output = single("reduce_scatter", outputs);
    TORCH_CHECK(inputs.size() == 1, "reduce_scatter: expected one list of inputs, got ", inputs.size());
    check_ranks("reduce_scatter", inputs[0], getSize());
    follow(inputs[0], outputs);
    std::vector<int64_t> elements;
    for (const auto& input : inputs[0]) elements.push_back(input.numel());
    if (local_) {
        for (const auto& input : inputs[0]) check_dtypes("reduce_scatter", output, input);
        check_part("reduce_scatter", elements[getRank()], output);
        Tensors parts;
        for (const auto& input : inputs[0]) parts.push_back(Reduction::real(input));
        const Reduction reduction("reduce_scatter", options.reduceOp, output.scalar_type(), getSize());
        return reduce_locally("reduce_scatter", Type::REDUCE_SCATTER, output, parts, reduction,
                              each(1, parts), options.timeout);
    }
    return reduce_parts("reduce_scatter", Type::REDUCE_SCATTER, output, flat(inputs[0]), elements, options);
}

WorkPtr MpsBackend::_reduce_scatter_base(Tensor& output, Tensor& input,
                                         const c10d::ReduceScatterOptions& options) {
    constexpr const char* kName = "reduce_scatter_tensor";
    check(kName, output);
    check(kName, input);
    TORCH_CHECK_TYPE(input.scalar_type() == output.scalar_type(),
                     "input tensor must be the same type as the output tensor.");
    TORCH_CHECK_VALUE(input.numel() == output.numel() * getSize(),
                      "input tensor must be the same size as output size times world size");
    follow({input}, {output});
    if (local_) {
        const Reduction reduction(kName, options.reduceOp, output.scalar_type(), getSize());
        const Tensor real = Reduction::real(input);
        return reduce_locally(kName, Type::_REDUCE_SCATTER_BASE, output, {real}, reduction,
                              split_equally(1, real, getSize()), options.timeout);
    }
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

}  // namespace anymps::distributed
