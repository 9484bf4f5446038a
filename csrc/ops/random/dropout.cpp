// Dropout in one pass: the mask is drawn, stored and applied by the same kernel.
#include <anymps/ops/random/dropout_ops.h>
#include <anymps/shaders/random/dropout.h>

#include <ATen/ops/dropout_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "kernels/launch_config.h"
#include "ops/default_dispatch.h"
#include "runtime/generator.h"

namespace anymps::ops {
namespace {

using kernels::Grid;
namespace shader = shaders::dropout;

constexpr uint32_t kWorkgroup = 128;

// Whether every address is a multiple of `count` elements.
bool all_aligned(std::initializer_list<Tensor> tensors, uint64_t count) {
    return std::ranges::all_of(tensors, [&](const Tensor& tensor) {
        return kernels::address(tensor) % (count * tensor.element_size()) == 0;
    });
}

Grid grid_of(uint64_t count, uint64_t of_thread) {
    return Grid::linear(kernels::ceil_div(count, of_thread * kWorkgroup));
}

double scale_of(double p) {
    return p == 1 ? 0 : 1 / (1 - p);
}

// Complex numbers, which native_dropout has no derivative for, and integers, which raise.
std::tuple<Tensor, Tensor> composed(const Tensor& input, double p) {
    const Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
    return {input.mul(mask).mul_(scale_of(p)), mask};
}

}  // namespace

// (input * mask / (1 - p), mask) with mask true with probability 1 - p; (a copy of input, true) when train is
// false.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(native_dropout)(const Tensor& input, double p,
                                                       std::optional<bool> train) {
    TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
    if (input.numel() == 0) return {input, at::empty_like(input, input.options().dtype(at::kBool))};
    if (!train.value_or(true)) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
    if (!input.is_floating_point()) return composed(input, p);
    // A clone keeps the order of dimensions, where contiguous() does not.
    const Tensor source = input.is_non_overlapping_and_dense() ? input : input.clone();
    Tensor out = at::empty_like(source);
    Tensor mask = at::empty_like(source, source.options().dtype(at::kBool));
    const auto count = static_cast<uint64_t>(source.numel());
    const double scale = scale_of(p);
    const auto keep_below = static_cast<uint32_t>(std::ceil(double{static_cast<float>(1 - p)} * 0x1p24));
    const bool aligned = all_aligned({out, mask, source}, 4);
    const bool words = !kernels::launch_config().software && source.element_size() == 2 && count % 8 == 0 &&
                       all_aligned({out, mask, source}, 8);
    (words ? shader::dropout_words : shader::dropout)
        .call({.workgroup = kWorkgroup, .type = kernels::code(source.scalar_type()), .aligned = aligned})
        .read(source)
        .write(out)
        .write(mask)
        .dispatch({.out = kernels::address(out),
                   .mask = kernels::address(mask),
                   .input = kernels::address(source),
                   .random = runtime::reserve_philox(std::nullopt, count),
                   .count = count,
                   .keep_below = keep_below,
                   .scale = static_cast<float>(scale)},
                  grid_of(count, words ? 8 : 4));
    return {out, mask};
}

// grad * mask * scale
Tensor ANYMPS_FUNC(native_dropout_backward)(const Tensor& grad, const Tensor& mask, double scale) {
    TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be Bool Scalar Type", mask.scalar_type());
    if (grad.numel() == 0 || grad.strides() != mask.strides() || grad.sizes() != mask.sizes() ||
        !grad.is_non_overlapping_and_dense() || !grad.is_floating_point()) {
        return grad.mul(mask).mul(scale);
    }
    Tensor out = at::empty_like(grad);
    const auto count = static_cast<uint64_t>(grad.numel());
    shader::dropout_backward
        .call({.workgroup = kWorkgroup,
               .type = kernels::code(grad.scalar_type()),
               .aligned = all_aligned({out, mask, grad}, 4)})
        .read(grad)
        .read(mask)
        .write(out)
        .dispatch({.out = kernels::address(out),
                   .mask = kernels::address(mask),
                   .grad = kernels::address(grad),
                   .count = count,
                   .scale = static_cast<float>(scale)},
                  grid_of(count, 4));
    return out;
}

namespace {

// PyTorch's own dropout takes its fused path on CUDA only. native_dropout has the derivative.
Tensor dropout(const Tensor& input, double p, bool train) {
    TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
    if (p == 0 || !train || input.numel() == 0) return input;
    return std::get<0>(input.is_floating_point() ? at::native_dropout(input, p, true) : composed(input, p));
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
    m.impl("dropout", dropout);
}
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    m.impl("dropout", TORCH_FN((DefaultDispatchOr<&dropout, &at::compositeimplicitautograd::dropout>::call)));
}

}  // namespace

}  // namespace anymps::ops
