// segment_reduce and its gradient: lengths become offsets, a thread reduces one segment.
#include <anymps/ops/reduction/segment_reduce_ops.h>
#include <anymps/shaders/reduction/segment_reduce.h>

#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReductionType.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "kernels/geometry.h"

namespace anymps::ops {
namespace {

using at::native::ReductionType;

namespace shader = shaders::segment_reduce;
using shader::SegmentArgs;

void check_type(const Tensor& data) {
    kernels::check_floating(data.scalar_type(), "_segment_reduce_cpu");
}

// The offsets of segments, [..., segments + 1], of the axis that is their last.
Tensor offsets_of(const std::optional<Tensor>& lengths, const std::optional<Tensor>& offsets) {
    const bool given = offsets.has_value() && offsets->defined();
    const Tensor& edges = given ? *offsets : *lengths;
    kernels::check_implemented(edges.scalar_type() == at::kLong || edges.scalar_type() == at::kInt,
                               edges.scalar_type(), "_segment_reduce_", given ? "offsets" : "lengths",
                               "_cpu_kernel1");
    return given ? edges.contiguous() : at::constant_pad_nd(edges.cumsum(-1), {1, 0}).contiguous();
}

SegmentArgs arguments(const Tensor& data, const Tensor& offsets, const Tensor& output,
                      const std::optional<Scalar>& initial) {
    const int64_t axis = offsets.dim() - 1;
    TORCH_CHECK(output.numel() <= std::numeric_limits<uint32_t>::max() &&
                    data.size(axis) <= std::numeric_limits<uint32_t>::max(),
                "segment_reduce on MPS: more than 2^32 - 1 elements");
    const auto error = runtime::encoder().error_slot("segment_reduce");
    const int64_t inner = c10::multiply_integers(data.sizes().slice(axis + 1));
    return {.data = kernels::address(data),
            .offsets = kernels::address(offsets),
            .output = kernels::address(output),
            .grad_output = 0,
            .grad_data = 0,
            .error = error.address,
            .error_code = error.code,
            .count = static_cast<uint32_t>(output.numel()),
            .inner = kernels::FastDivider(static_cast<uint32_t>(inner)),
            .segments = kernels::FastDivider(static_cast<uint32_t>(output.size(axis))),
            .size = static_cast<uint32_t>(data.size(axis)),
            .initial = initial.has_value() ? initial->to<float>() : 0.0f,
            .has_initial = initial.has_value()};
}

shader::Constants constants(const Tensor& data, const Tensor& offsets, ReductionType reduction) {
    return {.workgroup = kernels::flat_workgroup(),
            .type = kernels::code(data.scalar_type()),
            .offset_type = kernels::code(offsets.scalar_type()),
            .reduction = static_cast<uint32_t>(reduction)};
}

kernels::Grid grid_of(const SegmentArgs& args) {
    return kernels::flat_grid(args.count);
}

void check_axis(const char* name, int64_t axis, const Tensor& data, const Tensor& edges) {
    TORCH_CHECK(data.get_device() == edges.get_device());
    TORCH_CHECK(data.dim() >= edges.dim());
    TORCH_CHECK(axis == edges.dim() - 1, "segment_reduce(): Expected axis to be the last dimension of ", name,
                " but got ", axis, ".");
}

}  // namespace

// Segments along `axis` of data, by lengths [..., segments] or offsets [..., segments + 1]. Offsets out of
// range raise at the next synchronization.
Tensor ANYMPS_FUNC(segment_reduce)(const Tensor& data, c10::string_view reduce,
                                   const std::optional<Tensor>& lengths, const std::optional<Tensor>& indices,
                                   const std::optional<Tensor>& offsets, int64_t axis, bool unsafe,
                                   const std::optional<Scalar>& initial) {
    axis = at::maybe_wrap_dim(axis, data.dim());
    TORCH_CHECK(!indices.has_value(), "segment_reduce(): indices based reduction is not supported yet.");
    TORCH_CHECK(lengths.has_value() || offsets.has_value(),
                "segment_reduce(): Either lengths or offsets must be defined.");
    const ReductionType reduction = at::native::get_reduction_enum(reduce);
    if (offsets.has_value()) {
        check_axis("offsets", axis, data, *offsets);
    } else {
        check_axis("lengths", axis, data, *lengths);
        if (!unsafe) {
            TORCH_CHECK(lengths->min().item<int64_t>() >= 0, "lengths contains negative value!");
            TORCH_CHECK(lengths->sum(-1).eq(data.size(axis)).all().item<bool>(),
                        "segment_reduce(): Expected all rows of lengths along axis to sum to "
                        "data.size(lengths.dim()-1) when !unsafe.");
        }
    }
    check_type(data);
    const Tensor edges = offsets_of(lengths, offsets), values = data.contiguous();
    auto sizes = data.sizes().vec();
    sizes[axis] = edges.size(-1) - 1;
    const Tensor output = at::empty(sizes, data.options());
    if (output.numel() == 0) return output;
    const SegmentArgs args = arguments(values, edges, output, initial);
    shader::segment_reduce.call(constants(values, edges, reduction))
        .read(values)
        .read(edges)
        .write(output)
        .dispatch(args, grid_of(args));
    return output;
}

Tensor ANYMPS_FUNC(_segment_reduce_backward)(const Tensor& grad, const Tensor& output, const Tensor& data,
                                             c10::string_view reduce, const std::optional<Tensor>& lengths,
                                             const std::optional<Tensor>& offsets, int64_t axis,
                                             const std::optional<Scalar>& initial) {
    TORCH_CHECK(lengths.has_value() || offsets.has_value(),
                "segment_reduce(): Either lengths or offsets must be defined.");
    check_type(data);
    const Tensor edges = offsets_of(lengths, offsets);
    const Tensor grad_data = at::zeros(data.sizes(), grad.options());
    if (output.numel() == 0) return grad_data;
    const Tensor values = data.contiguous(), result = output.contiguous(), gradient = grad.contiguous();
    SegmentArgs args = arguments(values, edges, result, initial);
    args.grad_output = kernels::address(gradient);
    args.grad_data = kernels::address(grad_data);
    shader::segment_reduce_backward.call(constants(values, edges, at::native::get_reduction_enum(reduce)))
        .read(values)
        .read(edges)
        .read(result)
        .read(gradient)
        .write(grad_data)
        .dispatch(args, grid_of(args));
    return grad_data;
}

}  // namespace anymps::ops
