// Distributions that are drawn by rejection: poisson, binomial, gamma and Dirichlet.
#include <anymps/ops/random/distributions_ops.h>
#include <anymps/shaders/random/distribution_gradients.h>
#include <anymps/shaders/random/distributions.h>

#include <ATen/Dispatch.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>

#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "runtime/generator.h"

namespace anymps::ops {
namespace {

using shaders::distribution_gradients::GradientKernel;
using shaders::distributions::DistributionKernel;

Tensor gradient(const GradientKernel& kernel, const char* label, const Tensor& a, const Tensor& b,
                const Tensor& c) {
    kernels::check_floating(a.scalar_type(), label);
    const Tensor out = at::empty(a.sizes(), a.options());
    if (out.numel() == 0) return out;
    const auto dense = [&](const Tensor& t) {
        if (!t.defined()) return t;
        TORCH_CHECK(t.scalar_type() == a.scalar_type(), "Found dtype ", t.scalar_type(), " but expected ",
                    a.scalar_type());
        return t.expand(a.sizes()).contiguous();
    };
    const Tensor first = a.contiguous(), second = dense(b), third = dense(c);
    const GradientKernel::Args args{.out = kernels::address(out),
                                    .a = kernels::address(first),
                                    .b = kernels::address(second),
                                    .c = kernels::address_or_0(third),
                                    .count = static_cast<uint64_t>(out.numel())};
    kernel.call({.workgroup = kernels::flat_workgroup(), .type = kernels::code(out.scalar_type())})
        .read(first)
        .read(second)
        .read(third)
        .write(out)
        .dispatch(args, kernels::flat_grid(args.count));
    return out;
}

// A number for each element of `a` (and of b, of the same sizes), in the order of the elements.
Tensor draw(const DistributionKernel& kernel, const char* label, const Tensor& a, const Tensor& b,
            const std::optional<Generator>& generator) {
    runtime::check_drawn_device(a);
    kernels::check_floating(a.scalar_type(), label);
    const Tensor out = at::empty(a.sizes(), a.options());
    if (out.numel() == 0) return out;
    const Tensor first = a.contiguous(), second = b.defined() ? b.contiguous() : b;
    const auto count = static_cast<uint64_t>(out.numel());
    const DistributionKernel::Args args{
        .out = kernels::address(out),
        .a = kernels::address(first),
        .b = kernels::address_or_0(second),
        .random = runtime::reserve_philox(generator, count * runtime::kNumbersPerBlock),
        .count = count};
    kernel.call({.workgroup = kernels::flat_workgroup(), .type = kernels::code(out.scalar_type())})
        .read(first)
        .read(second)
        .write(out)
        .dispatch(args, kernels::flat_grid(count));
    return out;
}

}  // namespace

// Waits for the device: a negative rate raises here, as on the CPU.
Tensor ANYMPS_FUNC(poisson)(const Tensor& self, std::optional<Generator> generator) {
    TORCH_CHECK(self.numel() == 0 || !at::isFloatingType(self.scalar_type()) || self.ge(0).all().item<bool>(),
                "invalid Poisson rate, expected rate to be non-negative");
    return draw(shaders::distributions::draw_poisson, "poisson_cpu", self, Tensor(), generator);
}

Tensor ANYMPS_FUNC(binomial)(const Tensor& count, const Tensor& prob, std::optional<Generator> generator) {
    for (const auto& [tensor, name] : {std::pair(&count, "count"), std::pair(&prob, "prob")}) {
        TORCH_CHECK_VALUE(at::isFloatingType(tensor->scalar_type()),
                          "binomial only supports floating-point dtypes for ", name,
                          ", got: ", tensor->scalar_type());
    }
    TORCH_CHECK(count.scalar_type() == prob.scalar_type(), "Found dtype ", prob.scalar_type(),
                " but expected ", count.scalar_type());
    const auto [n, p] = at::expand_outplace(count, prob);
    return draw(shaders::distributions::draw_binomial, "binomial_cpu", *n, *p, generator);
}

ANYMPS_ROW(_standard_gamma, draw(shaders::distributions::draw_gamma, "gamma_cpu", self, Tensor(), generator))

// d output / d self for gamma numbers `output` of the shapes `self`.
ANYMPS_ROW(_standard_gamma_grad, gradient(shaders::distribution_gradients::standard_gamma_gradient,
                                          "_standard_gamma_grad_cpu", self, output, Tensor()))

// d x / d alpha, divided by 1 - x, for beta numbers x of alpha and total - alpha.
ANYMPS_ROW(_dirichlet_grad, gradient(shaders::distribution_gradients::dirichlet_gradient,
                                     "_dirichlet_grad_cpu", x, alpha, total))

// Gamma numbers divided by their sum over the last dimension, by their logarithms: those of small parameters
// are all below the smallest float. Never 0 nor 1.
Tensor ANYMPS_FUNC(_sample_dirichlet)(const Tensor& self, std::optional<Generator> generator) {
    kernels::check_floating(self.scalar_type(), "dirichlet");
    const Tensor logarithms =
        draw(shaders::distributions::draw_log_gamma, "dirichlet", self.to(at::kFloat), Tensor(), generator);
    const Tensor parts = at::softmax(logarithms, -1).to(self.scalar_type());
    return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "dirichlet", [&] {
        const double largest = 1 - static_cast<double>(std::numeric_limits<scalar_t>::epsilon()) / 2;
        return parts.clamp_(static_cast<double>(std::numeric_limits<scalar_t>::min()), largest);
    });
}

}  // namespace anymps::ops
