// max_pool2d_with_indices, max_pool3d_with_indices and their gradients; max_pool1d and max_pool2d are made of
// them.
#include <anymps/ops/pool/max_pool_ops.h>

#include <ATen/native/Pool.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>

#include "ops/pool/windows.h"

namespace anymps::ops {
namespace {

// A list of one or three numbers, as max_pool3d takes them.
std::array<int64_t, 3> triple(IntArrayRef values, const char* message) {
    TORCH_CHECK(values.size() == 1 || values.size() == 3, message);
    return values.size() == 1 ? std::array<int64_t, 3>{values[0], values[0], values[0]}
                              : std::array<int64_t, 3>{values[0], values[1], values[2]};
}

// Checks the arguments of max_pool3d and returns the sizes of its result.
std::vector<int64_t> max_pool3d_sizes(const Tensor& input, IntArrayRef kernel_size, IntArrayRef stride,
                                      IntArrayRef padding, IntArrayRef dilation, bool ceil_mode,
                                      const char* name) {
    const auto k =
        triple(kernel_size, "max_pool3d: kernel_size must either be a single int, or a tuple of three ints");
    const auto s = stride.empty()
                       ? k
                       : triple(stride,
                                "max_pool3d: stride must either be omitted, a single int, or a tuple of "
                                "three ints");
    const auto p =
        triple(padding, "max_pool3d: padding must either be a single int, or a tuple of three ints");
    const auto d =
        triple(dilation, "max_pool3d: dilation must be either a single int, or a tuple of three ints");
    TORCH_CHECK(input.dim() == 4 || input.dim() == 5,
                "non-empty 4D or 5D (batch mode) tensor expected for input");
    const int64_t dims = input.dim();
    std::array<int64_t, 3> out;
    for (int i = 0; i < 3; ++i) {
        out[i] = at::native::pooling_output_shape<int64_t>(input.size(dims - 3 + i), k[i], p[i], s[i], d[i],
                                                           ceil_mode);
    }
    at::native::pool3d_shape_check(input, input.size(dims - 4), k[0], k[1], k[2], s[0], s[1], s[2], p[0],
                                   p[1], p[2], d[0], d[1], d[2], input.size(dims - 3), input.size(dims - 2),
                                   input.size(dims - 1), out[0], out[1], out[2], name);
    std::vector<int64_t> sizes(input.sizes().begin(), input.sizes().end() - 3);
    sizes.insert(sizes.end(), out.begin(), out.end());
    return sizes;
}

}  // namespace

ANYMPS_ROW(max_pool2d_with_indices_out,
           max_pool("max_pool2d", Windows::fixed(2, kernel_size, stride, padding, dilation), self, out,
                    indices))
ANYMPS_ROW(max_pool2d_with_indices_backward_grad_input,
           max_pool_backward("max_pool2d_backward", Windows::fixed(2, kernel_size, stride, padding, dilation),
                             grad_output, indices, grad_input))

std::tuple<Tensor&, Tensor&> ANYMPS_FUNC(max_pool3d_with_indices_out)(const Tensor& self,
                                                                      IntArrayRef kernel_size,
                                                                      IntArrayRef stride, IntArrayRef padding,
                                                                      IntArrayRef dilation, bool ceil_mode,
                                                                      Tensor& out, Tensor& indices) {
    const auto sizes = max_pool3d_sizes(self, kernel_size, stride, padding, dilation, ceil_mode,
                                        "max_pool3d_with_indices_out_cpu_template()");
    at::native::resize_output(out, sizes);
    at::native::resize_output(indices, sizes);
    max_pool("max_pool3d", Windows::fixed(3, kernel_size, stride, padding, dilation), self, out, indices);
    return {out, indices};
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(max_pool3d_with_indices)(const Tensor& self, IntArrayRef kernel_size,
                                                                IntArrayRef stride, IntArrayRef padding,
                                                                IntArrayRef dilation, bool ceil_mode) {
    const auto sizes = max_pool3d_sizes(self, kernel_size, stride, padding, dilation, ceil_mode,
                                        "max_pool3d_with_indices_out_cpu_template()");
    Tensor out = empty_pooled(self, 3, sizes, self.scalar_type());
    Tensor indices = empty_pooled(self, 3, sizes, at::kLong);
    max_pool("max_pool3d", Windows::fixed(3, kernel_size, stride, padding, dilation), self, out, indices);
    return {out, indices};
}

// The gradient of max_pool2d where the positions of the largest elements were not kept.
Tensor ANYMPS_FUNC(max_pool2d_backward)(const Tensor& grad_output, const Tensor& self,
                                        IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding,
                                        IntArrayRef dilation, bool ceil_mode) {
    const auto indices =
        std::get<1>(at::max_pool2d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode));
    return at::max_pool2d_with_indices_backward(grad_output, self, kernel_size, stride, padding, dilation,
                                                ceil_mode, indices);
}

Tensor& ANYMPS_FUNC(max_pool3d_with_indices_backward_grad_input)(const Tensor& grad_output,
                                                                 const Tensor& self, IntArrayRef kernel_size,
                                                                 IntArrayRef stride, IntArrayRef padding,
                                                                 IntArrayRef dilation, bool ceil_mode,
                                                                 const Tensor& indices, Tensor& grad_input) {
    const auto sizes = max_pool3d_sizes(self, kernel_size, stride, padding, dilation, ceil_mode,
                                        "max_pool3d_with_indices_backward_out_cpu_template()");
    for (const Tensor* tensor : {&grad_output, &indices}) {
        for (int64_t dim = 0; dim < self.dim(); ++dim) {
            at::check_dim_size(*tensor, self.dim(), dim, sizes[dim]);
        }
    }
    at::native::resize_output(grad_input, self.sizes());
    max_pool_backward("max_pool3d_backward", Windows::fixed(3, kernel_size, stride, padding, dilation),
                      grad_output, indices, grad_input);
    return grad_input;
}

Tensor ANYMPS_FUNC(max_pool3d_with_indices_backward)(const Tensor& grad_output, const Tensor& self,
                                                     IntArrayRef kernel_size, IntArrayRef stride,
                                                     IntArrayRef padding, IntArrayRef dilation,
                                                     bool ceil_mode, const Tensor& indices) {
    const auto format = self.dim() == 5 ? self.suggest_memory_format() : MemoryFormat::Contiguous;
    Tensor grad_input = at::empty(self.sizes(), self.options().memory_format(format));
    return max_pool3d_with_indices_backward_grad_input(grad_output, self, kernel_size, stride, padding,
                                                       dilation, ceil_mode, indices, grad_input);
}

}  // namespace anymps::ops
