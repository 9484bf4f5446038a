// Gradient of Tensor.unfold; the forward is a view (view.cpp).
#include <anymps/ops/unfold_ops.h>
#include <anymps/shaders/unfold.h>

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"

namespace anymps::ops {
// grad_in: [..., windows, ..., size], the gradient of x.unfold(dim, size, step) for x of input_sizes.
Tensor ANYMPS_FUNC(unfold_backward)(const Tensor& grad_in, IntArrayRef input_sizes, int64_t dim, int64_t size,
                                    int64_t step) {
    const Tensor out = at::empty(input_sizes, grad_in.options());
    if (out.numel() == 0) return out;
    if (out.dim() == 0 || grad_in.numel() == 0)
        return grad_in.numel() == 0 ? out.zero_() : out.copy_(grad_in[0]);
    kernels::check_implemented(out.is_floating_point() || out.is_complex(), out.scalar_type(),
                               "unfold_backward");
    TORCH_CHECK_NOT_IMPLEMENTED(out.numel() <= std::numeric_limits<uint32_t>::max(),
                                "unfold_backward on MPS: more than 2^32 elements");
    dim = at::maybe_wrap_dim(dim, out.dim());
    // istft hands over one window's gradient for a whole batch.
    auto windows = input_sizes.vec();
    windows[dim] = grad_in.size(dim);
    windows.push_back(size);
    const Tensor grad = grad_in.expand(windows).contiguous();
    const auto count = static_cast<uint32_t>(out.numel());
    const auto inner = static_cast<uint32_t>(c10::multiply_integers(input_sizes.slice(dim + 1)));
    const shaders::unfold::UnfoldBackwardArgs args{.out = kernels::address(out),
                                                   .grad = kernels::address(grad),
                                                   .count = count,
                                                   .length = static_cast<uint32_t>(input_sizes[dim]),
                                                   .inner = inner,
                                                   .windows = static_cast<uint32_t>(grad.size(dim)),
                                                   .size = static_cast<uint32_t>(size),
                                                   .step = static_cast<uint32_t>(step)};
    constexpr uint32_t kWorkgroup = 128;
    shaders::unfold::unfold_backward.call({.workgroup = kWorkgroup, .type = kernels::code(out.scalar_type())})
        .read(grad)
        .write(out)
        .dispatch(args, kernels::flat_grid(uint64_t{count}, kWorkgroup));
    return out;
}

}  // namespace anymps::ops
