#include "ops/pool/windows.h"

#include <limits>
#include <string>

#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::Compute;
using kernels::FastDivider;

// Twin of PoolArgs in shaders/pool.slang.
struct PoolArgs {
    uint64_t input, output, indices;
    uint32_t total;
    FastDivider digits[4];
    uint32_t in_size[3], out_size[3];
    uint32_t kernel[3], stride[3], padding[3], dilation[3];
    uint32_t in_stride[5], out_stride[5], index_stride[5];
    uint32_t count_padding;
    int32_t divisor;
};

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(), "pooling: a size or stride of ", value,
                " elements is too large for the mps device");
    return static_cast<uint32_t>(value);
}

// Sizes or strides as batch, channel, depth, height, width; missing dimensions are `neutral`.
std::array<int64_t, 5> five(const Tensor& tensor, c10::IntArrayRef values, int64_t spatial, int64_t neutral) {
    std::array<int64_t, 5> result;
    result.fill(neutral);
    const int64_t dims = tensor.dim();
    for (int64_t i = 0; i < spatial; ++i) result[5 - spatial + i] = values[dims - spatial + i];
    result[1] = values[dims - spatial - 1];
    if (dims > spatial + 1) result[0] = values[0];
    return result;
}

void fill_strides(uint32_t (&strides)[5], const Tensor& tensor, int64_t spatial) {
    if (!tensor.defined()) return;
    const auto sizes = five(tensor, tensor.sizes(), spatial, 1), values = five(tensor, tensor.strides(), spatial, 0);
    for (int i = 0; i < 5; ++i) strides[i] = sizes[i] > 1 ? narrow(values[i]) : 0;
}

struct Operands {
    const Tensor& input;  // or its gradient
    const Tensor& output;
    const Tensor& indices;
    bool backward;  // the input's side is the result
};

void launch(const std::string& kernel, const Windows& w, const Operands& t) {
    const Tensor& result = t.backward ? t.input : t.output;
    if (result.numel() == 0) return;
    const auto sizes = five(result, result.sizes(), w.spatial, 1);
    if (result.numel() > std::numeric_limits<uint32_t>::max() && sizes[0] > 1) {
        const auto half = [&](const Tensor& tensor, int64_t first, int64_t count) {
            return tensor.defined() ? tensor.narrow(0, first, count) : tensor;
        };
        const int64_t middle = sizes[0] / 2, rest = sizes[0] - middle;
        launch(kernel, w, {half(t.input, 0, middle), half(t.output, 0, middle), half(t.indices, 0, middle), t.backward});
        launch(kernel, w, {half(t.input, middle, rest), half(t.output, middle, rest), half(t.indices, middle, rest),
                           t.backward});
        return;
    }
    PoolArgs args{};
    args.input = kernels::address(t.input);
    args.output = kernels::address(t.output);
    args.indices = t.indices.defined() ? kernels::address(t.indices) : 0;
    args.total = static_cast<uint32_t>(result.numel());
    const auto in = five(t.input, t.input.sizes(), w.spatial, 1), out = five(t.output, t.output.sizes(), w.spatial, 1);
    for (int axis = 0; axis < 3; ++axis) {
        args.in_size[axis] = narrow(in[2 + axis]);
        args.out_size[axis] = narrow(out[2 + axis]);
        args.kernel[axis] = narrow(w.kernel[axis]);
        args.stride[axis] = narrow(w.stride[axis]);
        args.padding[axis] = narrow(w.padding[axis]);
        args.dilation[axis] = narrow(w.dilation[axis]);
    }
    fill_strides(args.in_stride, t.input, w.spatial);
    fill_strides(args.out_stride, t.output, w.spatial);
    fill_strides(args.index_stride, t.indices, w.spatial);
    args.count_padding = w.count_padding;
    args.divisor = w.divisor;
    const bool channels_fast = !result.is_contiguous() && result.stride(result.dim() - w.spatial - 1) == 1;
    const int order[4] = {channels_fast ? 1 : 4, channels_fast ? 4 : 3, channels_fast ? 3 : 2, channels_fast ? 2 : 1};
    for (int i = 0; i < 4; ++i) args.digits[i] = FastDivider(narrow(sizes[order[i]]));
    const uint32_t workgroup = runtime::device().info().is_software ? 8 : 256;
    kernels::KernelCall call(kernel, {workgroup, 0, kernels::code(result.scalar_type()), channels_fast, w.adaptive});
    call.read(t.backward ? t.output : t.input).write(result);
    if (t.indices.defined()) t.backward ? call.read(t.indices) : call.write(t.indices);
    call.dispatch_pointer(args, kernels::Grid::linear((uint64_t{args.total} + workgroup - 1) / workgroup));
}

void refuse(const char* op, const Tensor& tensor) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "\"", op, "\" not implemented for '", c10::toString(tensor.scalar_type()), "'");
}

}  // namespace

Windows Windows::fixed(int64_t spatial, c10::IntArrayRef kernel, c10::IntArrayRef stride, c10::IntArrayRef padding,
                       c10::IntArrayRef dilation) {
    Windows w;
    w.spatial = spatial;
    const auto at = [](c10::IntArrayRef values, int64_t i) { return values.size() == 1 ? values[0] : values[i]; };
    for (int64_t i = 0; i < spatial; ++i) {
        const int64_t axis = 3 - spatial + i;
        w.kernel[axis] = at(kernel, i);
        w.stride[axis] = at(stride.empty() ? kernel : stride, i);
        w.padding[axis] = at(padding, i);
        w.dilation[axis] = at(dilation, i);
    }
    return w;
}

Windows Windows::adapting(int64_t spatial) {
    Windows w;
    w.spatial = spatial;
    w.adaptive = true;
    return w;
}

void max_pool(const char* op, const Windows& windows, const Tensor& input, const Tensor& output, const Tensor& indices) {
    const auto type = input.scalar_type();
    const Compute compute = kernels::compute_of(type);
    if (type == at::kBool || compute == Compute::C64 || (compute == Compute::I64 && type != at::kLong)) refuse(op, input);
    launch(std::string("max_pool_") + kernels::suffix(compute), windows, {input, output, indices, false});
}

void max_pool_backward(const char* op, const Windows& windows, const Tensor& grad_output, const Tensor& indices,
                       const Tensor& grad_input) {
    if (!at::isFloatingType(grad_output.scalar_type())) refuse(op, grad_output);
    launch("max_pool_backward", windows, {grad_input, grad_output, indices, true});
}

void avg_pool(const char* op, const Windows& windows, const Tensor& input, const Tensor& output) {
    const Compute compute = kernels::compute_of(input.scalar_type());
    if (compute != Compute::F32 && input.scalar_type() != at::kLong) refuse(op, input);
    launch(std::string("avg_pool_") + kernels::suffix(compute), windows, {input, output, Tensor(), false});
}

void avg_pool_backward(const char* op, const Windows& windows, const Tensor& grad_output, const Tensor& grad_input) {
    if (!at::isFloatingType(grad_output.scalar_type())) refuse(op, grad_output);
    launch("avg_pool_backward", windows, {grad_input, grad_output, Tensor(), true});
}

}  // namespace anymps::ops
