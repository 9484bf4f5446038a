// Activations of a norm's result under autocast, which is float32: for the gradient it is computed again from
// the norm's 16-bit input, which autograd keeps anyway. PyTorch's own keeps the float32, and an in-place
// activation a copy of it.
#include <ATen/SavedTensorHooks.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/hardswish_backward.h>
#include <ATen/ops/hardswish_ops.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/mish_ops.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/tanh.h>
#include <anymps/shaders/norm/channel_norm.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <vector>

#include "ops/autocast_activation.h"
#include "ops/norm/autocast_norm.h"
#include "ops/norm/norm_source.h"

namespace anymps::ops {
namespace {

using at::Scalar;
using at::Tensor;
using c10::DispatchKeySet;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
namespace shader = shaders::channel_norm;

using Parameters = std::array<double, 2>;  // in ATen's order

// One an activation: its operators, its code in the kernel, and its gradient by operators that have
// gradients.
struct Silu {
    using Op = at::_ops::silu;
    using InPlace = at::_ops::silu_;
    static constexpr uint32_t kCode = shader::kSilu;
    static Tensor backward(const Tensor& grad, const Tensor& x, const Parameters&) {
        const Tensor sigmoid = at::sigmoid(x);
        return grad * sigmoid * (1 + x * (1 - sigmoid));
    }
};
struct Mish {
    using Op = at::_ops::mish;
    using InPlace = at::_ops::mish_;
    static constexpr uint32_t kCode = shader::kMish;
    static Tensor backward(const Tensor& grad, const Tensor& x, const Parameters&) {
        const Tensor t = at::tanh(at::softplus(x));
        return grad * (t + x * at::sigmoid(x) * (1 - t * t));
    }
};
struct Hardswish {
    using Op = at::_ops::hardswish;
    using InPlace = at::_ops::hardswish_;
    static constexpr uint32_t kCode = shader::kHardswish;
    static Tensor backward(const Tensor& grad, const Tensor& x, const Parameters&) {
        return at::hardswish_backward(grad, x);
    }
};
struct Hardtanh {
    using Op = at::_ops::hardtanh;
    using InPlace = at::_ops::hardtanh_;
    static constexpr uint32_t kCode = shader::kHardtanh;
    static Tensor backward(const Tensor& grad, const Tensor& x, const Parameters& p) {
        return at::hardtanh_backward(grad, x, p[0], p[1]);
    }
};
struct LeakyRelu {
    using Op = at::_ops::leaky_relu;
    using InPlace = at::_ops::leaky_relu_;
    static constexpr uint32_t kCode = shader::kLeakyRelu;
    static Tensor backward(const Tensor& grad, const Tensor& x, const Parameters& p) {
        return at::leaky_relu_backward(grad, x, p[0], false);
    }
};

template <class Activation, class Op>
struct NormActivation : torch::autograd::Function<NormActivation<Activation, Op>> {
    static constexpr bool is_traceable = true;
    static constexpr bool kInPlace = std::is_same_v<Op, typename Activation::InPlace>;

    template <class... Scalars>
    static Tensor forward(AutogradContext* ctx, Tensor input, const NormSource& source, DispatchKeySet keys,
                          const Scalars&... scalars) {
        const at::AutoDispatchBelowADInplaceOrView guard;
        const Tensor out =
            Op::redispatch(keys_below(c10::DispatchKey::ADInplaceOrView, keys), input, scalars...);
        ctx->set_materialize_grads(false);
        ctx->save_for_backward({source.input, source.weight, source.bias, source.mean, source.deviation});
        ctx->saved_data["training"] = source.training;
        ctx->saved_data["inner"] = source.inner;
        ctx->saved_data["groups"] = source.groups;
        ctx->saved_data["eps"] = source.eps;
        std::vector<double> parameters{scalars.toDouble()...};
        parameters.resize(std::tuple_size_v<Parameters>);
        ctx->saved_data["parameters"] = parameters;
        ctx->saved_data["arguments"] = static_cast<int64_t>(3 + sizeof...(scalars));
        if (kInPlace) mark_changed(ctx, out);
        return out;
    }

    static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
        const variable_list saved = ctx->get_saved_variables();
        auto& data = ctx->saved_data;
        variable_list result(static_cast<size_t>(data["arguments"].toInt()));
        const Tensor& grad = grads[0];
        if (!grad.defined()) return result;
        const NormSource source{.input = saved[0],
                                .weight = saved[1],
                                .bias = saved[2],
                                .mean = saved[3],
                                .deviation = saved[4],
                                .training = data["training"].toBool(),
                                .inner = data["inner"].toInt(),
                                .groups = data["groups"].toInt(),
                                .eps = data["eps"].toDouble()};
        const std::vector<double> given = data["parameters"].toDoubleVector();
        const Parameters parameters{given[0], given[1]};
        result[0] = !at::GradMode::is_enabled() && has_plain_saved(grad, saved)
                        ? norm_activation_backward(
                              source, grad,
                              {Activation::kCode,
                               {static_cast<float>(parameters[0]), static_cast<float>(parameters[1])}})
                        : Activation::backward(grad, norm_again(source), parameters);
        return result;
    }
};

std::optional<NormSource> usual_source(const Tensor& input) {
    const bool usual = may_keep_less(input) && !input.is_leaf() && !input.is_view() &&
                       input.numel() < int64_t{1} << 32 && !at::SavedTensorDefaultHooks::get_hooks();
    return usual ? source_of_norm(input) : std::nullopt;
}

template <class Activation, class Op, class = typename Op::schema>
struct Autocast;

template <class Activation, class Op, class Result, class Self, class... Scalars>
struct Autocast<Activation, Op, Result(Self, Scalars...)> {
    static Result call(DispatchKeySet keys, Self self, Scalars... scalars) {
        const DispatchKeySet rest = keys_below(c10::DispatchKey::AutocastMPS, keys);
        const std::optional<NormSource> source = usual_source(self);
        if (!source) return Op::redispatch(rest, self, scalars...);
        const Tensor out = NormActivation<Activation, Op>::apply(self, *source, rest, scalars...);
        if constexpr (std::is_reference_v<Result>) {
            return self;
        } else {
            return out;
        }
    }
};

template <class Activation>
void add(torch::Library& m) {
    using Op = typename Activation::Op;
    using InPlace = typename Activation::InPlace;
    m.impl(Op::name, TORCH_FN((Autocast<Activation, Op>::call)));
    m.impl(InPlace::name, TORCH_FN((Autocast<Activation, InPlace>::call)));
}

TORCH_LIBRARY_IMPL(aten, AutocastMPS, m) {
    add<Silu>(m);
    add<Mish>(m);
    add<Hardswish>(m);
    add<Hardtanh>(m);
    add<LeakyRelu>(m);
}

}  // namespace
}  // namespace anymps::ops
