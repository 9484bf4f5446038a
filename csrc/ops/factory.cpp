// Tensors whose values follow from the element's number: arange, linspace, eye, indices of triangles.
#include <anymps/ops/factory_ops.h>
#include <anymps/shaders/factory.h>

#include <ATen/Dispatch_v2.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check_dtype.h"

namespace anymps::ops {
namespace {

using kernels::Grid;
namespace shader = shaders::factory;

constexpr uint32_t kWorkgroup = 128;
constexpr int64_t kGroupElements = shader::kPerThread * kWorkgroup;

shader::Constants constants(const Tensor& out) {
    return {.workgroup = kWorkgroup, .type = kernels::code(out.scalar_type())};
}

Grid grid(int64_t elements) {
    return Grid::linear((elements + kGroupElements - 1) / kGroupElements);
}

void dispatch_sequence(const Tensor& out, shader::SequenceArgs args) {
    args.out = kernels::address(out);
    args.count = out.numel();
    args.stride = out.stride(0);
    shader::sequence.call(constants(out)).write(out).dispatch(args, grid(out.numel()));
}

void integer_sequence(const Tensor& out, int64_t first, int64_t step) {
    dispatch_sequence(out, {.half = static_cast<uint64_t>(out.numel()), .first = first, .step = step});
}

// first + i * step for i < half, from last backwards after that; 61 bits of precision of the greatest value.
void float_sequence(const Tensor& out, long double first, long double last, long double step, int64_t half) {
    const long double greatest = std::max(std::fabs(first), std::fabs(last));
    int exponent = 0;
    std::frexp(greatest, &exponent);
    const int shift = 61 - exponent;
    const auto fixed = [shift](long double value) -> int64_t {
        return std::llround(std::ldexp(value, shift));
    };
    dispatch_sequence(out, {.half = static_cast<uint64_t>(half),
                            .first = fixed(first),
                            .last = fixed(last),
                            .step = out.numel() > 1 ? fixed(step) : 0,
                            .scale0 = std::ldexp(1.0f, -shift / 2),
                            .scale1 = std::ldexp(1.0f, -shift + shift / 2)});
    // An end that is small beside the greatest value has few of these bits.
    const auto small = [&](long double end) {
        return end != 0 && std::fabs(end) < std::ldexp(greatest, -36);
    };
    if (small(first)) out.select(0, 0).fill_(static_cast<double>(first));
    if (small(last) && half < out.numel()) out.select(0, -1).fill_(static_cast<double>(last));
}

// Runs write on out, or on a dense tensor that is then copied to it, of one dimension.
template <class Write>
void write_flat(const Tensor& out, Write write) {
    if (out.numel() == 0) return;
    at::assert_no_internal_overlap(out);
    if (out.dim() == 1) return write(out);
    if (out.is_contiguous()) return write(out.view(-1));
    const Tensor dense = at::empty({out.numel()}, out.options());
    write(dense);
    out.copy_(dense.view(out.sizes()));
}

void check_real(const Tensor& out, const char* op) {
    kernels::check_implemented(!out.is_complex() && out.scalar_type() != at::kBool, out.scalar_type(), op);
}

void write_range(const Tensor& out, const Scalar& start, const Scalar& step) {
    write_flat(out, [&](const Tensor& flat) {
        if (!flat.is_floating_point()) return integer_sequence(flat, start.to<int64_t>(), step.to<int64_t>());
        const long double first = start.to<double>(), by = step.to<double>();
        float_sequence(flat, first, first + by * (flat.numel() - 1), by, flat.numel());
    });
}

// A scalar as the output's dtype holds it.
double rounded(const Scalar& value, ScalarType dtype) {
    switch (dtype) {
        case at::kHalf:
            return value.to<at::Half>();
        case at::kBFloat16:
            return value.to<at::BFloat16>();
        default:
            return value.to<float>();
    }
}

void float_linspace(const Tensor& out, double first, double last) {
    if (!std::isfinite(first) || !std::isfinite(last)) {
        out.fill_(std::numeric_limits<double>::quiet_NaN());
        return;
    }
    const int64_t count = out.numel();
    float_sequence(out, first, last, (static_cast<long double>(last) - first) / (count - 1), count / 2);
}

// first and last of out's type, its bits extended to 64.
void integer_linspace(const Tensor& out, int64_t first, int64_t last) {
    const auto from = static_cast<uint64_t>(first), to = static_cast<uint64_t>(last);
    const bool down = out.scalar_type() == at::kUInt64 ? to < from : last < first;
    const uint64_t span = down ? from - to : to - from, steps = out.numel() - 1;
    TORCH_CHECK_NOT_IMPLEMENTED(steps <= std::numeric_limits<uint32_t>::max(),
                                "linspace on MPS: more than 2^32 integers");
    shader::integer_linspace.call(constants(out))
        .write(out)
        .dispatch({.out = kernels::address(out),
                   .count = static_cast<uint64_t>(out.numel()),
                   .stride = static_cast<uint64_t>(out.stride(0)),
                   .first = first,
                   .quotient = span / steps,
                   .remainder = span % steps,
                   .down = down},
                  grid(out.numel()));
}

void write_linspace(const Tensor& out, const Scalar& start, const Scalar& end) {
    if (out.is_complex()) {
        const auto first = start.to<c10::complex<double>>(), last = end.to<c10::complex<double>>();
        const Tensor parts = at::view_as_real(out);
        float_linspace(parts.select(-1, 0), first.real(), last.real());
        float_linspace(parts.select(-1, 1), first.imag(), last.imag());
    } else if (out.is_floating_point()) {
        float_linspace(out, rounded(start, out.scalar_type()), rounded(end, out.scalar_type()));
    } else {
        int64_t first = 0, last = 0;
        // What the type does not hold raises, or wraps, as on the CPU.
        AT_DISPATCH_V2(out.scalar_type(), "linspace", AT_WRAP([&] {
                           first = static_cast<int64_t>(start.to<scalar_t>());
                           last = static_cast<int64_t>(end.to<scalar_t>());
                       }),
                       AT_EXPAND(AT_INTEGRAL_TYPES_V2));
        integer_linspace(out, first, last);
    }
}

Tensor triangle_indices(int64_t rows, int64_t columns, int64_t offset, bool upper,
                        std::optional<ScalarType> dtype, std::optional<Layout> layout,
                        std::optional<Device> device, std::optional<bool> pin_memory) {
    at::native::check_args(rows, columns, layout);
    const int64_t lower = at::native::get_tril_size(rows, columns, upper ? offset - 1 : offset);
    const int64_t count = upper ? rows * columns - lower : lower;
    const auto options = TensorOptions()
                             .dtype(dtype.value_or(at::kLong))
                             .layout(layout)
                             .device(device)
                             .pinned_memory(pin_memory);
    Tensor out = at::empty({2, count}, options);
    if (count == 0) return out;
    shader::triangle_indices.call(constants(out))
        .write(out)
        .dispatch({.out = kernels::address(out),
                   .count = static_cast<uint64_t>(count),
                   .rows = rows,
                   .columns = columns,
                   .offset = offset,
                   .upper = upper},
                  grid(count));
    return out;
}

}  // namespace

Tensor& ANYMPS_FUNC(arange_start_out)(const Scalar& start, const Scalar& end, const Scalar& step,
                                      Tensor& out) {
    check_real(out, "arange");
    const int64_t size = out.scalar_type() == at::kLong
                             ? at::native::compute_arange_size<int64_t>(start, end, step)
                             : at::native::compute_arange_size<float>(start, end, step);
    if (out.numel() != size) {
        if (out.numel() > 0) {
            TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
                       " which does not match the computed number of elements ", size,
                       ". Note that this may occur as a result of rounding error. "
                       "The out tensor will be resized to a tensor of shape (",
                       size, ",).");
        }
        out.resize_({size});
    }
    write_range(out, start, step);
    return out;
}

// Like arange, with the end where it is reached.
Tensor& ANYMPS_FUNC(range_out)(const Scalar& start, const Scalar& end, const Scalar& step, Tensor& out) {
    check_real(out, "range");
    at::native::arange_check_bounds(start, end, step);
    const bool floating = out.is_floating_point();
    const int64_t size =
        floating ? static_cast<int64_t>((end.to<double>() - start.to<double>()) / step.to<double>() + 1)
                 : (end.to<int64_t>() - start.to<int64_t>()) / step.to<int64_t>() + 1;
    if (out.numel() != size) out.resize_({size});
    write_range(out, start, step);
    return out;
}

// Values that are not finite give NaN everywhere.
Tensor& ANYMPS_FUNC(linspace_out)(const Scalar& start, const Scalar& end, int64_t steps, Tensor& out) {
    TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
    kernels::check_implemented(out.scalar_type() != at::kBool, out.scalar_type(), "linspace");
    if (out.numel() != steps) out.resize_({steps});
    if (steps == 1) {
        out.fill_(start);
    } else {
        write_flat(out, [&](const Tensor& flat) { write_linspace(flat, start, end); });
    }
    return out;
}

Tensor& ANYMPS_FUNC(eye_m_out)(int64_t n, int64_t m, Tensor& out) {
    TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
    TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
    out.resize_({n, m});
    out.zero_();
    out.diagonal().fill_(1);
    return out;
}

ANYMPS_ROW(eye_out, eye_m_out(n, n, out))
ANYMPS_ROW(tril_indices, triangle_indices(row, col, offset, false, dtype, layout, device, pin_memory))
ANYMPS_ROW(triu_indices, triangle_indices(row, col, offset, true, dtype, layout, device, pin_memory))

}  // namespace anymps::ops
