// linear and its backward: one product over all rows of the input, the bias added as it is written.
#include <anymps/ops/matmul/linear_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sum.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "gemm/gemm.h"
#include "ops/default_dispatch.h"

namespace anymps::ops {
namespace {

// The rows of a tensor [..., columns] as matrices: one where a single stride leads from row to row, else one
// for each index of the first dimension; else of a contiguous copy.
struct Rows {
    Tensor tensor;  // 3-d: batch, rows, columns
    explicit Rows(const Tensor& input) {
        const int64_t columns = input.size(-1);
        int64_t rows = 1;
        for (const int64_t size : input.sizes().slice(0, input.dim() - 1)) rows *= size;
        const auto flat = [&](const Tensor& t) {
            return at::detail::computeStride(t.sizes(), t.strides(), std::vector<int64_t>{1, rows, columns})
                .has_value();
        };
        if (input.dim() == 3 && !flat(input)) {
            tensor = input;
        } else {
            tensor = input.reshape({1, rows, columns});
        }
    }
};

constexpr auto kComposite = &at::compositeimplicitautograd::linear;

bool fits(const Tensor& input, const Tensor& weight, const Tensor& bias) {
    return input.dim() > 0 && (weight.dim() == 1 || weight.dim() == 2) && input.size(-1) == weight.size(-1) &&
           input.dtype() == weight.dtype() &&
           (!bias.defined() || (bias.dtype() == weight.dtype() && bias.dim() <= 1));
}

}  // namespace

// input [..., in], weight [out, in] or [in], bias [out], [1] or [] -> [..., out] or [...].
Tensor ANYMPS_FUNC(linear)(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias_opt) {
    const Tensor bias = bias_opt.value_or(Tensor());
    // PyTorch's errors, whose words depend on its version; and a bias for each row
    if (!fits(input, weight, bias)) return kComposite(input, weight, bias);
    const Tensor weights = weight.dim() == 2 ? weight : weight.unsqueeze(0);
    std::vector<int64_t> sizes(input.sizes().begin(), input.sizes().end() - 1);
    if (weight.dim() == 2) sizes.push_back(weight.size(0));
    const Tensor out = at::empty(sizes, input.options());
    const Rows rows(input);
    const Tensor& x = rows.tensor;
    const int64_t m = x.size(1), n = weights.size(0);
    gemm::Gemm gemm{"linear",
                    x.size(0),
                    m,
                    n,
                    x.size(2),
                    gemm::matrices(x),
                    gemm::matrices(weights).transposed(),
                    {&out, m * n, n, 1},
                    gemm::kNoMatrices};
    Tensor expanded;
    if (bias.defined()) {
        const int64_t shape[] = {x.size(0) * m, n};
        expanded = *at::expand_size(bias, shape, "addmm");
        gemm.self = {&expanded, m * expanded.stride(0), expanded.stride(0), expanded.stride(1)};
    }
    gemm.run();
    return out;
}

// Gradients of linear: grad [..., out] @ weight, grad^T @ input over all rows, grad summed over all rows;
// weight and input conjugated.
std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(linear_backward)(const Tensor& self, const Tensor& grad_output,
                                                                const Tensor& weight,
                                                                std::array<bool, 3> output_mask) {
    const auto conjugated = [](const Tensor& t) { return t.is_complex() ? t.conj().resolve_conj() : t; };
    const Tensor weights = conjugated(weight.dim() == 2 ? weight : weight.unsqueeze(0));
    const Tensor grad = weight.dim() == 2 ? grad_output : grad_output.unsqueeze(-1);
    const int64_t in = weights.size(1), out = weights.size(0);
    Tensor grad_input, grad_weight, grad_bias;
    if (output_mask[0]) {
        grad_input = at::empty(self.sizes(), self.options());
        const Rows rows(grad);
        const Tensor& g = rows.tensor;
        const int64_t m = g.size(1);
        gemm::Gemm{"linear_backward",
                   g.size(0),
                   m,
                   in,
                   out,
                   gemm::matrices(g),
                   {&weights, 0, weights.stride(0), weights.stride(1)},
                   {&grad_input, m * in, in, 1},
                   gemm::kNoMatrices}
            .run();
    }
    if (output_mask[1] || output_mask[2]) {
        const int64_t count = c10::multiply_integers(grad.sizes().slice(0, grad.dim() - 1));
        const Tensor g = grad.reshape({count, out});
        if (output_mask[1]) {
            const Tensor x = conjugated(self.reshape({count, in}));
            grad_weight = at::empty(weight.sizes(), weight.options());
            gemm::Gemm{"linear_backward",
                       1,
                       out,
                       in,
                       g.size(0),
                       gemm::matrices(g).transposed(),
                       gemm::matrices(x),
                       {&grad_weight, 0, in, 1},
                       gemm::kNoMatrices}
                .run();
        }
        if (output_mask[2]) grad_bias = at::sum(g, at::IntArrayRef{0});
    }
    return {grad_input, grad_weight, grad_bias};
}

namespace {

// By the formula of derivatives.yaml, linear_backward, which the key of nested tensors still leads to. That
// of second derivatives does not conjugate.
Tensor differentiable_linear(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
                             const std::optional<Tensor>& bias) {
    const bool has_bias_of_rows = bias.has_value() && bias->defined() && bias->dim() > 1;
    if (input.is_complex() || has_bias_of_rows) return kComposite(input, weight, bias);
    return at::_ops::linear::redispatch(keys.add(c10::DispatchKey::AutogradNestedTensor), input, weight,
                                        bias);
}

// linear_backward of a batch of cotangents: torch.autograd.grad(is_grads_batched=True).
std::tuple<Tensor, Tensor, Tensor> batched_linear_backward(const Tensor& self, const Tensor& grad_output,
                                                           const Tensor& weight, std::array<bool, 3> wanted) {
    const Tensor weights = weight.dim() == 2 ? weight : weight.unsqueeze(0);
    const Tensor grad = weight.dim() == 2 ? grad_output : grad_output.unsqueeze(-1);
    const auto rows = [](const Tensor& t) { return t.dim() == 1 ? t.unsqueeze(0) : t.flatten(0, -2); };
    Tensor grad_input, grad_weight, grad_bias;
    if (wanted[0]) grad_input = at::matmul(grad, weights.conj());
    if (wanted[1]) grad_weight = at::matmul(rows(grad).mT(), rows(self).conj()).view_as(weight);
    if (wanted[2]) grad_bias = rows(grad).sum(0);
    return {grad_input, grad_weight, grad_bias};
}

TORCH_LIBRARY_IMPL(aten, FuncTorchBatchedDecomposition, m) {
    m.impl("linear_backward", TORCH_FN(batched_linear_backward));
}
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    m.impl("linear", TORCH_FN((DefaultDispatchOr<&differentiable_linear, kComposite>::call)));
}

}  // namespace

}  // namespace anymps::ops
