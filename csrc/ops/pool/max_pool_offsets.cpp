// max_pool1d, max_pool2d and max_pool3d where nobody asks for indices: PyTorch's composites write int64 ones
// all the same. Without a gradient there are none; with one there is a byte, the offset in the window, and
// the input is not kept. What is unusual stays with the composites.
#include <ATen/native/Pool.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool1d_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool2d_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/max_pool3d_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/max_pool3d_with_indices_backward.h>
#include <ATen/ops/remainder.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "ops/default_dispatch.h"
#include "ops/pool/windows.h"

namespace anymps::ops {
namespace {

using at::IntArrayRef;
using at::MemoryFormat;
using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
namespace composite = at::compositeimplicitautograd;

// Arguments of an operator, and what follows from them.
struct Pool {
    int64_t spatial;
    IntArrayRef kernel, stride, padding, dilation;
    bool ceil_mode;

    Windows windows() const { return Windows::fixed(spatial, kernel, stride, padding, dilation); }

    // The sizes of the result; nothing where arguments are wrong or offsets could not say what the window
    // chose.
    std::optional<std::vector<int64_t>> sizes(const Tensor& input) const {
        constexpr int64_t kOffsets = 256;
        const auto is_list = [&](IntArrayRef list) {
            return list.size() == 1 || std::cmp_equal(list.size(), spatial);
        };
        if (!at::isFloatingType(input.scalar_type()) || input.numel() == 0) return std::nullopt;
        if (input.dim() != spatial + 1 && input.dim() != spatial + 2) return std::nullopt;
        if (!is_list(kernel) || !(stride.empty() || is_list(stride)) || !is_list(padding) ||
            !is_list(dilation))
            return std::nullopt;
        const Windows w = windows();
        std::vector<int64_t> result = input.sizes().vec();
        int64_t elements = 1;
        for (int64_t axis = 3 - spatial; axis < 3; ++axis) {
            const int64_t k = w.kernel[axis], padding = w.padding[axis];
            if (k <= 0 || k > kOffsets || w.stride[axis] <= 0 || w.dilation[axis] != 1) return std::nullopt;
            if (padding < 0 || padding > k / 2) return std::nullopt;
            elements *= k;
            int64_t& size = result[input.dim() - 3 + axis];
            size = at::native::pooling_output_shape<int64_t>(size, k, padding, w.stride[axis], 1, ceil_mode);
            if (size < 1 || elements > kOffsets) return std::nullopt;
        }
        return result;
    }
};

// int64 positions in the input's plane, by operators: modes, transforms and second derivatives know those.
Tensor positions(const Tensor& offsets, const Pool& pool, IntArrayRef input_sizes) {
    const Windows w = pool.windows();
    Tensor rest = offsets.to(at::kLong), result;
    int64_t step = 1;
    for (int64_t axis = 2; axis >= 3 - pool.spatial; --axis) {
        const int64_t dim = offsets.dim() - 3 + axis;
        at::DimVector shape(offsets.dim(), 1);
        shape[dim] = offsets.size(dim);
        const Tensor first = at::arange(shape[dim], rest.options()).mul(w.stride[axis]).sub(w.padding[axis]);
        const Tensor at = rest.remainder(w.kernel[axis]).add(first.view(shape)).mul(step);
        result = result.defined() ? result.add(at) : at;
        rest = rest.div(w.kernel[axis], "floor");
        step *= input_sizes[dim];
    }
    return result;
}

struct MaxPool : torch::autograd::Function<MaxPool> {
    static constexpr bool is_traceable = true;

    static Tensor forward(AutogradContext* ctx, const Tensor& input, const Pool& pool, IntArrayRef sizes) {
        const at::AutoDispatchBelowADInplaceOrView below;
        const Tensor out = empty_pooled(input, pool.spatial, sizes, input.scalar_type());
        const Tensor offsets = empty_pooled(input, pool.spatial, sizes, at::kByte);
        max_pool("max_pool", pool.windows(), input, out, offsets);
        ctx->set_materialize_grads(false);
        ctx->save_for_backward({offsets});
        auto& data = ctx->saved_data;
        data["kernel"] = pool.kernel;
        data["stride"] = pool.stride;
        data["padding"] = pool.padding;
        data["dilation"] = pool.dilation;
        data["ceil_mode"] = pool.ceil_mode;
        data["sizes"] = input.sizes();
        const bool is_batch = input.dim() == pool.spatial + 2;
        data["format"] =
            static_cast<int64_t>(is_batch ? input.suggest_memory_format() : MemoryFormat::Contiguous);
        data["spatial"] = pool.spatial;
        return out;
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const Tensor& grad = grads[0];
        if (!grad.defined()) return {Tensor(), Tensor(), Tensor()};
        const Tensor offsets = ctx->get_saved_variables()[0];
        auto& data = ctx->saved_data;
        const auto kernel = data["kernel"].toIntVector(), stride = data["stride"].toIntVector();
        const auto padding = data["padding"].toIntVector(), dilation = data["dilation"].toIntVector();
        const auto sizes = data["sizes"].toIntVector();
        const Pool pool{data["spatial"].toInt(),   kernel, stride, padding, dilation,
                        data["ceil_mode"].toBool()};
        const auto format = static_cast<MemoryFormat>(data["format"].toInt());
        const Tensor input = at::empty(sizes, grad.options().memory_format(format));
        const bool plain = no_mode_is_active() && has_default_dispatch(grad) && has_default_dispatch(offsets);
        if (plain && !(at::GradMode::is_enabled() && grad.requires_grad())) {
            const at::AutoDispatchBelowADInplaceOrView below;
            max_pool_offsets_backward(pool.windows(), grad, offsets, input);
            return {input, Tensor(), Tensor()};
        }
        // The operators ask the input for its sizes and strides alone.
        const auto gradient =
            pool.spatial == 3 ? &at::max_pool3d_with_indices_backward : &at::max_pool2d_with_indices_backward;
        return {gradient(grad, input, kernel, stride, padding, dilation, pool.ceil_mode,
                         positions(offsets, pool, sizes)),
                Tensor(), Tensor()};
    }
};

using MaxPoolFunction = Tensor (*)(const Tensor&, IntArrayRef, IntArrayRef, IntArrayRef, IntArrayRef, bool);

template <int64_t kSpatial, MaxPoolFunction kComposite>
Tensor max_pool_without_indices(const Tensor& self, IntArrayRef kernel, IntArrayRef stride,
                                IntArrayRef padding, IntArrayRef dilation, bool ceil_mode) {
    const Pool pool{kSpatial, kernel, stride, padding, dilation, ceil_mode};
    const auto sizes = pool.sizes(self);
    if (!sizes) return kComposite(self, kernel, stride, padding, dilation, ceil_mode);
    if (at::GradMode::is_enabled() && self.requires_grad()) return MaxPool::apply(self, pool, *sizes);
    const at::AutoDispatchBelowADInplaceOrView below;
    const Tensor out = empty_pooled(self, kSpatial, *sizes, self.scalar_type());
    max_pool("max_pool", pool.windows(), self, out, Tensor());
    return out;
}

// As max_pool1d is made of max_pool2d on the CPU.
Tensor max_pool1d_without_indices(const Tensor& self, IntArrayRef kernel, IntArrayRef stride,
                                  IntArrayRef padding, IntArrayRef dilation, bool ceil_mode) {
    if (!Pool{1, kernel, stride, padding, dilation, ceil_mode}.sizes(self))
        return composite::max_pool1d(self, kernel, stride, padding, dilation, ceil_mode);
    const int64_t step = stride.empty() ? kernel[0] : stride[0];
    return at::max_pool2d(self.unsqueeze(-2), {1, kernel[0]}, {1, step}, {0, padding[0]}, {1, 1}, ceil_mode)
        .squeeze(-2);
}

void register_kernels(torch::Library& m) {
    m.impl("max_pool1d",
           TORCH_FN((DefaultDispatchOr<&max_pool1d_without_indices, &composite::max_pool1d>::call)));
    m.impl("max_pool2d", TORCH_FN((DefaultDispatchOr<&max_pool_without_indices<2, &composite::max_pool2d>,
                                                     &composite::max_pool2d>::call)));
    m.impl("max_pool3d", TORCH_FN((DefaultDispatchOr<&max_pool_without_indices<3, &composite::max_pool3d>,
                                                     &composite::max_pool3d>::call)));
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    register_kernels(m);
}
// Tensors of inference mode.
TORCH_LIBRARY_IMPL(aten, MPS, m) {
    register_kernels(m);
}

}  // namespace
}  // namespace anymps::ops
