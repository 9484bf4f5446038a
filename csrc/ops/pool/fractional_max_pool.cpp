// fractional_max_pool2d, fractional_max_pool3d and their gradients.
#include <anymps/ops/pool/fractional_max_pool_ops.h>
#include <anymps/shaders/pool/fractional_max_pool.h>

#include <ATen/native/FractionalMaxPooling.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "kernels/image.h"
#include "ops/indexing/indexed_copy.h"

namespace anymps::ops {
namespace {

using kernels::Image;

constexpr const char* kLabels[] = {"fractional_max_pool2d_out_frame", "fractional_max_pool3d_out_frame"};

void fractional_max_pool(int64_t spatial, const Tensor& self, std::array<int64_t, 3> kernel,
                         const Tensor& samples, const Tensor& output, const Tensor& indices) {
    spatial == 2 ? at::native::fractional_max_pool_check_shape<2>(self, samples)
                 : at::native::fractional_max_pool_check_shape<3>(self, samples);
    kernels::check_floating(self.scalar_type(), kLabels[spatial - 2]);
    if (output.numel() == 0) return;
    TORCH_CHECK(output.numel() <= std::numeric_limits<uint32_t>::max(),
                "fractional_max_pool on MPS: ", output.numel(), " elements are more than 2^32 - 1");
    const Image in(self, spatial), out(output, spatial), index(indices, spatial);
    shaders::fractional_max_pool::FractionalPoolArgs args{.input = kernels::address(self),
                                                          .output = kernels::address(output),
                                                          .indices = kernels::address(indices),
                                                          .samples = kernels::address(samples),
                                                          .total = static_cast<uint32_t>(output.numel())};
    args.index = out.index();
    for (int axis = 0; axis < 3; ++axis) {
        args.in_size[axis] = in.size(2 + axis);
        args.out_size[axis] = out.size(2 + axis);
        args.kernel[axis] = static_cast<uint32_t>(kernel[axis]);
        args.sample_strides[axis] = static_cast<uint32_t>(samples.stride(axis));
    }
    args.in_strides = in.strides();
    args.out_strides = out.strides();
    args.index_strides = index.strides();
    const uint32_t workgroup = kernels::flat_workgroup();
    shaders::fractional_max_pool::fractional_max_pool
        .call({.workgroup = workgroup,
               .type = kernels::code(self.scalar_type()),
               .spatial = static_cast<uint32_t>(spatial)})
        .read(self)
        .read(samples)
        .write(output)
        .write(indices)
        .dispatch(args, kernels::flat_grid(args.total));
}

// Windows may overlap, so that several gradients meet in one place: they are added up in float.
Tensor backward(int64_t spatial, const Tensor& grad_output, const Tensor& self, const Tensor& indices) {
    const Tensor sum = at::zeros(self.sizes(), self.options().dtype(at::kFloat));
    if (grad_output.numel() == 0) return sum;
    const Tensor gradient = grad_output.to(at::kFloat);
    indexed_copy_dim(
        sum.flatten(-spatial), gradient.flatten(-spatial), indices.flatten(-spatial), self.dim() - spatial,
        {.op = spatial == 2 ? "fractional_max_pool2d_backward" : "fractional_max_pool3d_backward",
         .indexed_destination = true,
         .operation = IndexedOperation::Add});
    return sum;
}

void check_backward3d(const Tensor& grad_output, const Tensor& self, IntArrayRef output_size) {
    const char* name = "fractional_max_pool3d_backward_out(): gradOutput ";
    TORCH_CHECK(output_size[0] == grad_output.size(-3), name, "time unexpected");
    TORCH_CHECK(output_size[1] == grad_output.size(-2), name, "height unexpected");
    TORCH_CHECK(output_size[2] == grad_output.size(-1), name, "width unexpected");
}

}  // namespace

ANYMPS_ROW(fractional_max_pool2d_output,
           fractional_max_pool(2, self, {1, kernel_size[0], kernel_size[1]}, random_samples, output, indices))
ANYMPS_ROW(fractional_max_pool2d_backward_grad_input,
           void(grad_input.copy_(backward(2, grad_output, self, indices))))
ANYMPS_ROW(fractional_max_pool3d_output,
           fractional_max_pool(3, self, {poolSizeT, poolSizeH, poolSizeW}, random_samples, output, indices))

Tensor& ANYMPS_FUNC(fractional_max_pool3d_backward_grad_input)(const Tensor& grad_output, const Tensor& self,
                                                               IntArrayRef kernel_size,
                                                               IntArrayRef output_size, const Tensor& indices,
                                                               Tensor& grad_input) {
    check_backward3d(grad_output, self, output_size);
    grad_input.resize_as_(self);
    return grad_input.copy_(backward(3, grad_output, self, indices));
}

Tensor ANYMPS_FUNC(fractional_max_pool3d_backward)(const Tensor& grad_output, const Tensor& self,
                                                   IntArrayRef kernel_size, IntArrayRef output_size,
                                                   const Tensor& indices) {
    check_backward3d(grad_output, self, output_size);
    return backward(3, grad_output, self, indices).to(self.scalar_type());
}

}  // namespace anymps::ops
