// relu under autocast. Its float32 result, of a batch_norm as a rule, would live on for the gradient alone:
// what comes next reads a copy in 16 bits. The gradient needs a bit an element.
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/where.h>
#include <anymps/shaders/relu_bits.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/autocast_activation.h"
#include "ops/default_dispatch.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using c10::DispatchKeySet;
using kernels::address;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
namespace shader = shaders::relu_bits;

constexpr uint32_t kWorkgroup = 128;
constexpr uint64_t kElements = 8;  // of a thread

// relu or its gradient: `in` and `out` have one layout and may be one tensor; bits are written, or read.
void launch(const auto& kernel, const Tensor& in, const Tensor& bits, const Tensor& out, bool writes_bits) {
    const auto count = static_cast<uint64_t>(in.numel());
    auto call = kernel.call({.workgroup = kWorkgroup, .aligned = (address(in) | address(out)) % 16 == 0});
    call.read(in).write(out);
    writes_bits ? call.write(bits) : call.read(bits);
    call.dispatch({address(out), address(bits), address(in), count},
                  kernels::Grid::linear(kernels::ceil_div(count, kElements * kWorkgroup)));
}

// The bits as elements, by operators, so that modes and transforms see them.
Tensor mask_of(const Tensor& bits, at::IntArrayRef sizes, at::IntArrayRef strides) {
    const Tensor shifts = at::arange(static_cast<int64_t>(kElements), bits.options());
    return at::bitwise_and(at::bitwise_right_shift(bits.unsqueeze(-1), shifts), 1)
        .to(at::kBool)
        .reshape({-1})
        .as_strided(sizes, strides);
}

// grad where a bit is 1, else 0. The bits lie as the elements of a tensor with these strides.
Tensor passed(const Tensor& grad, const Tensor& bits, at::IntArrayRef strides) {
    const bool plain = no_mode_is_active() && has_default_dispatch(grad) && has_default_dispatch(bits);
    if (!plain || grad.scalar_type() != at::kFloat)
        return at::where(mask_of(bits, grad.sizes(), strides), grad, 0.0);
    const at::AutoDispatchBelowADInplaceOrView below;
    const Tensor out = at::empty_strided(grad.sizes(), strides, grad.options());
    const Tensor in = grad.strides() == strides ? grad : at::empty_like(out).copy_(grad);
    launch(shader::relu_bits_backward, in, bits, out, false);
    return out;
}

// Its own gradient.
struct Passed : torch::autograd::Function<Passed> {
    static constexpr bool is_traceable = true;

    static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& bits,
                          at::IntArrayRef strides) {
        ctx->save_for_backward({bits});
        ctx->saved_data["strides"] = strides;
        return passed(grad, bits, strides);
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        return {of(grads[0], ctx->get_saved_variables()[0], ctx->saved_data["strides"].toIntVector()),
                Tensor(), Tensor()};
    }

    static Tensor of(const Tensor& grad, const Tensor& bits, at::IntArrayRef strides) {
        if (!grad.defined()) return grad;
        const bool differentiable = at::GradMode::is_enabled() && grad.requires_grad();
        return differentiable ? apply(grad, bits, strides) : passed(grad, bits, strides);
    }
};

struct AutocastRelu : torch::autograd::Function<AutocastRelu> {
    static constexpr bool is_traceable = true;

    static Tensor forward(AutogradContext* ctx, const Tensor& input, bool in_place) {
        const at::AutoDispatchBelowADInplaceOrView below;
        const Tensor out = in_place ? input : at::empty_like(input);
        const auto bytes =
            static_cast<int64_t>(kernels::ceil_div(static_cast<uint64_t>(input.numel()), kElements));
        const Tensor bits = at::empty(at::IntArrayRef(bytes), input.options().dtype(at::kByte));
        launch(shader::relu_bits, input, bits, out, true);
        ctx->set_materialize_grads(false);
        ctx->save_for_backward({bits});
        ctx->saved_data["strides"] = input.strides();
        if (in_place) mark_changed(ctx, out);
        return out;
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        return {Passed::of(grads[0], ctx->get_saved_variables()[0], ctx->saved_data["strides"].toIntVector()),
                Tensor()};
    }
};

bool is_usual(const Tensor& input) {
    return may_keep_less(input) && !input.is_inference() && input.scalar_type() == at::kFloat &&
           input.is_non_overlapping_and_dense();
}

Tensor autocast_relu(DispatchKeySet keys, const Tensor& input) {
    if (is_usual(input)) return AutocastRelu::apply(input, false);
    return at::_ops::relu::redispatch(keys_below(c10::DispatchKey::AutocastMPS, keys), input);
}

// Leaves raise, and views have two histories: PyTorch's own.
Tensor& autocast_relu_(DispatchKeySet keys, Tensor& self) {
    if (!is_usual(self) || self.is_leaf() || self.is_view())
        return at::_ops::relu_::redispatch(keys_below(c10::DispatchKey::AutocastMPS, keys), self);
    AutocastRelu::apply(self, true);
    return self;
}

TORCH_LIBRARY_IMPL(aten, AutocastMPS, m) {
    m.impl("relu", TORCH_FN(autocast_relu));
    m.impl("relu_", TORCH_FN(autocast_relu_));
}

}  // namespace
}  // namespace anymps::ops
