// logspace: powers of a base at even distances of the exponent.
#include <anymps/ops/logspace_ops.h>
#include <anymps/shaders/logspace.h>

#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/pow.h>

#include <algorithm>
#include <cmath>

#include "kernels/flat_grid.h"

namespace anymps::ops {
namespace {

using shaders::logspace::LogspaceArgs;

// False where exponents are not finite, or as large as only powers of 1 and -1 could need.
bool set_exponents(LogspaceArgs& args, double start, double end, int64_t steps) {
    const double greatest = std::max(std::fabs(start), std::fabs(end));
    if (!(greatest < 1e15) || std::isnan(start) || std::isnan(end)) return false;
    int exponent = 0;
    std::frexp(greatest, &exponent);
    const int point = std::min(61 - exponent, 62);
    const auto fixed = [point](long double value) -> int64_t {
        return std::llround(std::ldexp(value, point));
    };
    args.point = static_cast<uint32_t>(point);
    args.first = fixed(start);
    args.last = fixed(end);
    args.step = fixed((static_cast<long double>(end) - start) / (steps - 1));
    return true;
}

void set_base(LogspaceArgs& args, double base) {
    const long double logarithm = std::log2(std::fabs(static_cast<long double>(base)));
    int exponent = 0;
    const long double mantissa = std::frexp(std::fabs(logarithm), &exponent);
    args.log_bits = static_cast<uint64_t>(std::ldexp(mantissa, 64));
    args.log_scale = exponent - 64;
    args.log_negative = logarithm < 0;
    args.base_negative = base < 0;
}

// Bases without a logarithm, and ends without a distance.
void compose(const Tensor& out, const Scalar& start, const Scalar& end, double base) {
    const auto dtype = out.is_complex() ? at::kComplexFloat : at::kFloat;
    const Tensor exponents = at::linspace(start, end, out.numel(), out.options().dtype(dtype));
    out.copy_(at::pow(base, exponents).view(out.sizes()));
}

void write_complex(const Tensor& out, const Scalar& start, const Scalar& end, double base) {
    const auto first = start.to<c10::complex<double>>(), last = end.to<c10::complex<double>>();
    const double logarithm = std::log(base);
    const auto options = out.options().dtype(at::kFloat);
    const Tensor lengths = at::logspace(first.real(), last.real(), out.numel(), base, options);
    const Tensor angles =
        at::linspace(first.imag() * logarithm, last.imag() * logarithm, out.numel(), options);
    out.copy_(at::polar(lengths, angles).view(out.sizes()));
}

// Raises what the CPU does where an end is not in the type.
void check_ends(Scalar& start, Scalar& end, ScalarType dtype) {
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "logspace_cpu", [&] {
        const auto first = start.to<scalar_t>(), last = end.to<scalar_t>();
        if constexpr (std::is_integral_v<scalar_t>) {
            start = static_cast<int64_t>(first);
            end = static_cast<int64_t>(last);
        }
    });
}

void write_logspace(const Tensor& out, Scalar start, Scalar end, double base) {
    LogspaceArgs args{};
    const int64_t count = out.numel();
    const bool logarithm = base != 0 && std::isfinite(base);
    if (out.is_complex())
        return logarithm && base > 0 ? write_complex(out, start, end, base) : compose(out, start, end, base);
    check_ends(start, end, out.scalar_type());
    if (!logarithm || !set_exponents(args, start.toDouble(), end.toDouble(), count))
        return compose(out, start, end, base);
    set_base(args, base);
    const Tensor flat = out.dim() == 1 ? out : at::empty({count}, out.options());
    constexpr uint32_t kWorkgroup = 128;
    args.out = kernels::address(flat);
    args.count = static_cast<uint64_t>(count);
    args.stride = static_cast<uint64_t>(flat.stride(0));
    args.half = static_cast<uint64_t>(count / 2);
    shaders::logspace::logspace.call({.workgroup = kWorkgroup, .type = kernels::code(out.scalar_type())})
        .write(flat)
        .dispatch(args, kernels::flat_grid(args.count, kWorkgroup));
    if (!flat.is_same(out)) out.copy_(flat.view(out.sizes()));
}

void write_one(const Tensor& out, const Scalar& start, double base) {
    if (at::isIntegralType(out.scalar_type(), false)) {
        out.fill_(std::pow(base, start.to<int64_t>()));
    } else if (out.is_complex()) {
        out.fill_(std::pow(base, start.to<c10::complex<double>>()));
    } else {
        out.fill_(std::pow(base, start.to<double>()));
    }
}

}  // namespace

Tensor& ANYMPS_FUNC(logspace_out)(const Scalar& start, const Scalar& end, int64_t steps, double base,
                                  Tensor& out) {
    TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
    if (out.numel() != steps) out.resize_({steps});
    if (steps == 1) {
        write_one(out, start, base);
    } else if (steps > 1) {
        at::assert_no_internal_overlap(out);
        write_logspace(out, start, end, base);
    }
    return out;
}

}  // namespace anymps::ops
