// Reflection and replication padding of the last one to three dimensions.
#include <anymps/ops/resample/pad_ops.h>

#include <ATen/native/Padding.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include <vector>

#include "kernels/check_dtype.h"
#include "ops/memory_format.h"
#include "ops/resample/resample.h"
#include "runtime/torch_version.h"

namespace anymps::ops {
namespace {

constexpr auto kReflect = ResampleMode::Reflect;
constexpr auto kReplicate = ResampleMode::Replicate;

void check_dtype(const Tensor& tensor, const char* op) {
    kernels::check_implemented(tensor.scalar_type() != at::kBool, tensor.scalar_type(), op);
}

// padding: before and after, of the last dimension first.
std::vector<ResampleAxis> axes_of(IntArrayRef padding, IntArrayRef input_sizes) {
    std::vector<ResampleAxis> axes;
    for (size_t k = padding.size() / 2; k-- > 0;) {
        const int64_t input = input_sizes[input_sizes.size() - 1 - k];
        axes.push_back(
            {.input = input, .output = input + padding[2 * k] + padding[2 * k + 1], .pad = padding[2 * k]});
    }
    return axes;
}

void pad(const Tensor& out, const Tensor& self, IntArrayRef padding, ResampleMode mode, const char* op) {
    check_dtype(self, op);
    resample(out, self, mode, axes_of(padding, self.sizes()));
}

void pad_backward(const Tensor& grad_input, const Tensor& grad_output, IntArrayRef padding, ResampleMode mode,
                  const char* op) {
    check_dtype(grad_output, op);
    const auto axes = axes_of(padding, grad_input.sizes());
    const int64_t first = grad_input.dim() - static_cast<int64_t>(axes.size());
    static constexpr const char* kNames[] = {"depth", "height", "width"};
    for (size_t k = axes.size(); k-- > 0;) {
        const int64_t got = grad_output.size(first + static_cast<int64_t>(k));
        TORCH_CHECK(axes[k].output == got, "grad_output ", kNames[3 - axes.size() + k],
                    " unexpected. Expected: ", axes[k].output, ", Got: ", got);
    }
    resample(grad_input, grad_output, mode, axes, false, true);
}

// Shape of the 2-d reflection, whose overload is not structured.
std::vector<int64_t> reflected_shape(const Tensor& input, IntArrayRef padding) {
#if ANYMPS_TORCH_UNTIL(2, 14)
    at::native::padding::check_valid_input<2>(input, padding);
#else
    at::native::padding::check_valid_input(input, padding, 2);
#endif
    const int64_t h = input.size(-2), w = input.size(-1);
    TORCH_CHECK(
        padding[0] < w && padding[1] < w,
        "Argument #4: Padding size should be less than the corresponding input dimension, but got: padding (",
        padding[0], ", ", padding[1], ") at dimension ", input.dim() - 1, " of input ", input.sizes());
    TORCH_CHECK(
        padding[2] < h && padding[3] < h,
        "Argument #6: Padding size should be less than the corresponding input dimension, but got: padding (",
        padding[2], ", ", padding[3], ") at dimension ", input.dim() - 2, " of input ", input.sizes());
    const int64_t out_h = h + padding[2] + padding[3], out_w = w + padding[0] + padding[1];
    TORCH_CHECK(out_w >= 1 || out_h >= 1, "input (H: ", h, ", W: ", w,
                ") is too small. Calculated output H: ", out_h, " W: ", out_w);
    auto shape = input.sizes().vec();
    shape[shape.size() - 2] = out_h;
    shape[shape.size() - 1] = out_w;
    return shape;
}

Tensor& backward_out(Tensor& grad_input, const Tensor& grad_output, const Tensor& self, IntArrayRef padding,
                     ResampleMode mode, const char* op) {
    TORCH_CHECK(static_cast<int64_t>(padding.size()) <= 2 * self.dim(),
                "padding size is expected to be at most ", 2 * self.dim(), ", but got: ", padding.size());
    at::native::resize_output(grad_input, self.sizes());
    pad_backward(grad_input, grad_output, padding, mode, op);
    return grad_input;
}

Tensor backward(const Tensor& grad_output, const Tensor& self, IntArrayRef padding, ResampleMode mode,
                const char* op) {
    Tensor grad_input = at::empty(self.sizes(), self.options(), self.suggest_memory_format());
    return backward_out(grad_input, grad_output, self, padding, mode, op);
}

}  // namespace

ANYMPS_ROW(reflection_pad1d_out, pad(out, self, padding, kReflect, "reflection_pad1d"))

TORCH_IMPL_FUNC(reflection_pad3d_out)(const Tensor& self, IntArrayRef padding, const Tensor& out) {
    take_memory_format(out, self);
    pad(out, self, padding, kReflect, "reflection_pad3d");
}

ANYMPS_ROW(replication_pad1d_out, pad(out, self, padding, kReplicate, "replication_pad1d"))

TORCH_IMPL_FUNC(replication_pad2d_out)(const Tensor& self, IntArrayRef padding, const Tensor& out) {
    take_memory_format(out, self);
    pad(out, self, padding, kReplicate, "replication_pad2d");
}

TORCH_IMPL_FUNC(replication_pad3d_out)(const Tensor& self, IntArrayRef padding, const Tensor& out) {
    take_memory_format(out, self);
    pad(out, self, padding, kReplicate, "replication_pad3d");
}

Tensor& ANYMPS_FUNC(reflection_pad2d_out)(const Tensor& self, IntArrayRef padding, Tensor& out) {
    at::native::resize_output(out, reflected_shape(self, padding));
    pad(out, self, padding, kReflect, "reflection_pad2d");
    return out;
}

Tensor ANYMPS_FUNC(reflection_pad2d)(const Tensor& self, IntArrayRef padding) {
    const auto format = self.suggest_memory_format();
    const auto shape = reflected_shape(self, padding);
    Tensor out = at::empty(shape, self.options(), shape.size() == 4 ? format : at::MemoryFormat::Contiguous);
    return reflection_pad2d_out(self, padding, out);
}

ANYMPS_ROW(reflection_pad1d_backward_grad_input,
           pad_backward(grad_input, grad_output, padding, kReflect, "reflection_pad1d_backward"))

TORCH_IMPL_FUNC(reflection_pad3d_backward_grad_input)
(const Tensor& grad_output, const Tensor& self, IntArrayRef padding, const Tensor& grad_input) {
    take_memory_format(grad_input, self);
    pad_backward(grad_input, grad_output, padding, kReflect, "reflection_pad3d_backward");
}

ANYMPS_ROW(replication_pad1d_backward_grad_input,
           pad_backward(grad_input, grad_output, padding, kReplicate, "replication_pad1d_backward"))
ANYMPS_ROW(reflection_pad2d_backward_grad_input,
           backward_out(grad_input, grad_output, self, padding, kReflect, "reflection_pad2d_backward"))
ANYMPS_ROW(reflection_pad2d_backward,
           backward(grad_output, self, padding, kReflect, "reflection_pad2d_backward"))
ANYMPS_ROW(replication_pad2d_backward_grad_input,
           backward_out(grad_input, grad_output, self, padding, kReplicate, "replication_pad2d_backward"))
ANYMPS_ROW(replication_pad2d_backward,
           backward(grad_output, self, padding, kReplicate, "replication_pad2d_backward"))
ANYMPS_ROW(replication_pad3d_backward_grad_input,
           backward_out(grad_input, grad_output, self, padding, kReplicate, "replication_pad3d_backward"))
ANYMPS_ROW(replication_pad3d_backward,
           backward(grad_output, self, padding, kReplicate, "replication_pad3d_backward"))

}  // namespace anymps::ops
