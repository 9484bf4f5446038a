// Resampling: nearest, linear and cubic, and their gradients; one kernel for all, shaders/upsample.slang.
#include <anymps/ops/upsample_ops.h>

#include <limits>

#include "kernels/image.h"
#include "kernels/kernel_call.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

enum class Mode : uint32_t { Nearest, NearestExact, Linear, Cubic };

// Twin of UpsampleArgs in shaders/upsample.slang.
struct UpsampleArgs {
    uint64_t input, output;
    uint32_t total;
    kernels::ImageIndex index;
    uint32_t in_size[3], out_size[3];
    float scale[3];
    kernels::ImageStrides in_strides, out_strides;
};

struct Resampling {
    const char* op;
    Mode mode;
    bool align_corners;
    std::array<std::optional<double>, 3> scales;  // of the last axes: output sizes for each input size, as given
    int64_t spatial;

    // Input positions for each output position along an axis: ATen's area_pixel_compute_scale in float.
    float scale(int axis, uint32_t in, uint32_t out) const {
        if (align_corners) return out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
        const auto given = axis >= 3 - spatial ? scales[axis - (3 - spatial)] : std::nullopt;
        if (given && *given > 0) return static_cast<float>(1.0 / *given);
        return static_cast<float>(in) / static_cast<float>(out);
    }

    // input and output, or their gradients; the result is the output, or of the gradients the input's.
    void run(const Tensor& input, const Tensor& output, bool backward) const {
        const Tensor& result = backward ? input : output;
        const bool known = at::isFloatingType(result.scalar_type()) ||
                           (result.scalar_type() == at::kByte && mode <= Mode::NearestExact && !backward);
        TORCH_CHECK_NOT_IMPLEMENTED(known, "\"", op, "\" not implemented for '", c10::toString(result.scalar_type()), "'");
        if (result.numel() == 0) return;
        TORCH_CHECK(result.numel() <= std::numeric_limits<uint32_t>::max(), op,
                    ": more than 2^32 elements are too many for the mps device");
        const kernels::Image in(input, spatial), out(output, spatial);
        const kernels::Image& image = backward ? in : out;
        UpsampleArgs args{};
        args.input = kernels::address(input);
        args.output = kernels::address(output);
        args.total = static_cast<uint32_t>(result.numel());
        args.index = image.index();
        args.in_strides = in.strides();
        args.out_strides = out.strides();
        for (int axis = 0; axis < 3; ++axis) {
            args.in_size[axis] = in.size(2 + axis);
            args.out_size[axis] = out.size(2 + axis);
            args.scale[axis] = scale(axis, in.size(2 + axis), out.size(2 + axis));
        }
        const uint32_t workgroup = runtime::device().info().is_software ? 8 : 256;
        const uint32_t taps = mode == Mode::Cubic ? 4 : mode == Mode::Linear ? 2 : 1;
        kernels::KernelCall(backward ? "upsample_backward" : "upsample",
                            {workgroup, 0, kernels::code(result.scalar_type()), image.channels_fast(),
                             static_cast<uint32_t>(mode), align_corners, taps})
            .read(backward ? output : input)
            .write(result)
            .dispatch_pointer(args, kernels::Grid::linear((uint64_t{args.total} + workgroup - 1) / workgroup));
    }
};

using Scale = std::optional<double>;

}  // namespace

TORCH_IMPL_FUNC(upsample_nearest1d_out)(const Tensor& self, IntArrayRef, Scale s, const Tensor& out) {
    Resampling{"upsample_nearest1d", Mode::Nearest, false, {s}, 1}.run(self, out, false);
}

TORCH_IMPL_FUNC(upsample_nearest2d_out)(const Tensor& self, IntArrayRef, Scale h, Scale w, const Tensor& out) {
    Resampling{"upsample_nearest2d", Mode::Nearest, false, {h, w}, 2}.run(self, out, false);
}

TORCH_IMPL_FUNC(upsample_nearest3d_out)(const Tensor& self, IntArrayRef, Scale d, Scale h, Scale w, const Tensor& out) {
    Resampling{"upsample_nearest3d", Mode::Nearest, false, {d, h, w}, 3}.run(self, out, false);
}

TORCH_IMPL_FUNC(_upsample_nearest_exact1d_out)(const Tensor& self, IntArrayRef, Scale s, const Tensor& out) {
    Resampling{"upsample_nearest1d", Mode::NearestExact, false, {s}, 1}.run(self, out, false);
}

TORCH_IMPL_FUNC(_upsample_nearest_exact2d_out)(const Tensor& self, IntArrayRef, Scale h, Scale w, const Tensor& out) {
    Resampling{"upsample_nearest2d", Mode::NearestExact, false, {h, w}, 2}.run(self, out, false);
}

TORCH_IMPL_FUNC(_upsample_nearest_exact3d_out)
(const Tensor& self, IntArrayRef, Scale d, Scale h, Scale w, const Tensor& out) {
    Resampling{"upsample_nearest3d", Mode::NearestExact, false, {d, h, w}, 3}.run(self, out, false);
}

TORCH_IMPL_FUNC(upsample_linear1d_out)(const Tensor& self, IntArrayRef, bool align, Scale s, const Tensor& out) {
    Resampling{"upsample_linear1d", Mode::Linear, align, {s}, 1}.run(self, out, false);
}

TORCH_IMPL_FUNC(upsample_bilinear2d_out)
(const Tensor& self, IntArrayRef, bool align, Scale h, Scale w, const Tensor& out) {
    Resampling{"upsample_bilinear2d", Mode::Linear, align, {h, w}, 2}.run(self, out, false);
}

TORCH_IMPL_FUNC(upsample_trilinear3d_out)
(const Tensor& self, IntArrayRef, bool align, Scale d, Scale h, Scale w, const Tensor& out) {
    Resampling{"upsample_trilinear3d", Mode::Linear, align, {d, h, w}, 3}.run(self, out, false);
}

TORCH_IMPL_FUNC(upsample_bicubic2d_out)
(const Tensor& self, IntArrayRef, bool align, Scale h, Scale w, const Tensor& out) {
    Resampling{"upsample_bicubic2d", Mode::Cubic, align, {h, w}, 2}.run(self, out, false);
}

TORCH_IMPL_FUNC(upsample_nearest1d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, Scale s, const Tensor& grad_input) {
    Resampling{"upsample_nearest1d_backward", Mode::Nearest, false, {s}, 1}.run(grad_input, grad, true);
}

TORCH_IMPL_FUNC(upsample_nearest2d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, Scale h, Scale w, const Tensor& grad_input) {
    Resampling{"upsample_nearest2d_backward", Mode::Nearest, false, {h, w}, 2}.run(grad_input, grad, true);
}

TORCH_IMPL_FUNC(upsample_nearest3d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, Scale d, Scale h, Scale w, const Tensor& grad_input) {
    Resampling{"upsample_nearest3d_backward", Mode::Nearest, false, {d, h, w}, 3}.run(grad_input, grad, true);
}

TORCH_IMPL_FUNC(_upsample_nearest_exact1d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, Scale s, const Tensor& grad_input) {
    Resampling{"upsample_nearest1d_backward", Mode::NearestExact, false, {s}, 1}.run(grad_input, grad, true);
}

TORCH_IMPL_FUNC(_upsample_nearest_exact2d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, Scale h, Scale w, const Tensor& grad_input) {
    Resampling{"upsample_nearest2d_backward", Mode::NearestExact, false, {h, w}, 2}.run(grad_input, grad, true);
}

TORCH_IMPL_FUNC(_upsample_nearest_exact3d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, Scale d, Scale h, Scale w, const Tensor& grad_input) {
    Resampling{"upsample_nearest3d_backward", Mode::NearestExact, false, {d, h, w}, 3}.run(grad_input, grad, true);
}

TORCH_IMPL_FUNC(upsample_linear1d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, bool align, Scale s, const Tensor& grad_input) {
    Resampling{"upsample_linear1d_backward", Mode::Linear, align, {s}, 1}.run(grad_input, grad, true);
}

TORCH_IMPL_FUNC(upsample_bilinear2d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, bool align, Scale h, Scale w, const Tensor& grad_input) {
    Resampling{"upsample_bilinear2d_backward", Mode::Linear, align, {h, w}, 2}.run(grad_input, grad, true);
}

TORCH_IMPL_FUNC(upsample_trilinear3d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, bool align, Scale d, Scale h, Scale w, const Tensor& grad_input) {
    Resampling{"upsample_trilinear3d_backward", Mode::Linear, align, {d, h, w}, 3}.run(grad_input, grad, true);
}

TORCH_IMPL_FUNC(upsample_bicubic2d_backward_grad_input)
(const Tensor& grad, IntArrayRef, IntArrayRef, bool align, Scale h, Scale w, const Tensor& grad_input) {
    Resampling{"upsample_bicubic2d_backward", Mode::Cubic, align, {h, w}, 2}.run(grad_input, grad, true);
}

}  // namespace anymps::ops
