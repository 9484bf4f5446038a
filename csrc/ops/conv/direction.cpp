#include "ops/conv/direction.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <utility>
#include <vector>

#include "ops/conv/depthwise.h"

namespace anymps::ops {
namespace {

// The taps of one axis that reach the positions q * stride + phase, as an arithmetic progression; for such a
// position tap number m reads y at q + start - m * step.
struct Phase {
    int64_t positions, first_tap, tap_step, taps, start, step;

    Phase(int64_t phase, int64_t size, int64_t all_taps, int64_t stride, int64_t padding, int64_t dilation) {
        positions = phase < size ? (size - phase + stride - 1) / stride : 0;
        const int64_t common = std::gcd(stride, dilation);
        tap_step = stride / common;
        step = dilation / common;
        first_tap = 0;
        // Among the first tap_step taps at most one lands on a whole position.
        const int64_t first_taps = std::min(tap_step, all_taps);
        while (first_tap < first_taps && (phase + padding - first_tap * dilation) % stride != 0) ++first_tap;
        taps = first_tap < first_taps ? (all_taps - first_tap + tap_step - 1) / tap_step : 0;
        start = taps > 0 ? (phase + padding - first_tap * dilation) / stride : 0;
    }
};

Phase phase_of(const ConvParams& p, const ConvTensor& w, const ConvTensor& x, int axis, int64_t phase) {
    return Phase(phase, x.sizes[axis], w.sizes[axis], p.stride[axis], p.padding[axis], p.dilation[axis]);
}

Dim3 negative(const Dim3& v) {
    return {-v[0], -v[1], -v[2]};
}

StridedOperand filter_operand(const ConvTensor& w, const Dim3& strides) {
    return {w.memory,       0,         w.outer, w.outer_stride, {strides, w.channel_stride},
            w.group_stride, w.pairs(), false,   w.scale()};
}

// y from x and w.
ImplicitGemm fprop_gemm(const Direction& d, const ConvTensor& x, const ConvTensor& w) {
    const ConvTensor& y = d.result;
    ImplicitGemm c{};
    c.g = {y.sizes, y.outer, false};
    c.k = {w.sizes, x.padded, x.is_channels_last()};
    c.strided = filter_operand(w, w.strides);
    c.im2col = {x.memory,        x.outer_stride,    x.channel_stride,
                d.params.stride, d.params.dilation, negative(d.params.padding),
                x.sizes,         x.strides,         x.group_stride,
                x.pairs(),       x.scale()};
    c.target = {y.memory,       0,      y.channel_stride, {y.strides, y.outer_stride},
                y.group_stride, d.bias, d.bias_stride};
    c.target.epilogue = d.epilogue;
    c.groups = d.groups;
    return c;
}

// x from y and w, whose outer dimension and channels have changed places. Positions of x that leave the same
// remainder by the stride are reached by the same taps: each such phase is a GEMM of its own, with a step
// of 1. Those without taps are the bias, or are left out.
std::vector<ImplicitGemm> dgrad_gemms(const Direction& d, const ConvTensor& y, const ConvTensor& w) {
    const ConvTensor& x = d.result;
    const Dim3& s = d.params.stride;
    // Of a long stride most phases have no taps or, where it exceeds x, no positions.
    std::array<std::vector<std::pair<int64_t, Phase>>, 3> phases;
    for (int axis = 0; axis < 3; ++axis) {
        for (int64_t phase = 0; phase < std::min(s[axis], x.sizes[axis]); ++phase) {
            const Phase p = phase_of(d.params, w, x, axis, phase);
            if (p.taps > 0 || d.bias.defined()) phases[axis].emplace_back(phase, p);
        }
    }
    const Dim3 count{std::ssize(phases[0]), std::ssize(phases[1]), std::ssize(phases[2])};
    std::vector<ImplicitGemm> gemms;
    for (int64_t index = 0; index < count[0] * count[1] * count[2]; ++index) {
        const std::pair<int64_t, Phase> axes[] = {phases[0][index / (count[1] * count[2])],
                                                  phases[1][index / count[2] % count[1]],
                                                  phases[2][index % count[2]]};
        ImplicitGemm c{};
        c.g = {{}, x.outer, false};
        c.k = {{}, y.padded, y.is_channels_last()};
        c.strided = filter_operand(w, {});
        c.im2col = {y.memory, y.outer_stride, y.channel_stride, {1, 1, 1}, {},       {},
                    y.sizes,  y.strides,      y.group_stride,   y.pairs(), y.scale()};
        c.target = {x.memory,       0,      x.channel_stride, {{}, x.outer_stride},
                    x.group_stride, d.bias, d.bias_stride};
        c.groups = d.groups;
        for (int axis = 0; axis < 3; ++axis) {
            const auto& [phase, p] = axes[axis];
            c.g.spatial[axis] = p.positions;
            c.k.spatial[axis] = p.taps;
            c.strided.offset += p.first_tap * w.strides[axis];
            c.strided.k.spatial[axis] = p.tap_step * w.strides[axis];
            c.im2col.k_step[axis] = -p.step;
            c.im2col.start[axis] = p.start;
            c.target.offset += phase * x.strides[axis];
            c.target.g.spatial[axis] = s[axis] * x.strides[axis];
        }
        if (d.phases) {
            const Dim3& sizes = c.g.spatial;
            const int64_t plane = c.g.positions();
            c.target = {d.phases->planes,
                        static_cast<int64_t>(gemms.size()) * d.phases->phase_stride,
                        plane,
                        {{sizes[1] * sizes[2], sizes[2], 1}, plane * x.channels * d.groups},
                        plane * x.channels};
        }
        if (c.k.count() == 0) c.strided.offset = 0;
        gemms.push_back(c);
    }
    return gemms;
}

// w from x and y. Sums are long: batch times positions of y.
ImplicitGemm wgrad_gemm(const Direction& d, const ConvTensor& y, const ConvTensor& x) {
    const ConvTensor& w = d.result;
    ImplicitGemm c{};
    c.g = {w.sizes, x.padded, x.is_channels_last() || w.is_channels_last()};
    c.k = {y.sizes, y.outer, false};
    c.strided = {y.memory,
                 0,
                 y.channels,
                 y.channel_stride,
                 {y.strides, y.outer_stride},
                 y.group_stride,
                 y.pairs(),
                 y.padded % 8 == 0 && y.padded > y.channels,
                 y.scale()};
    c.im2col = {x.memory,          x.channel_stride, x.outer_stride,
                d.params.dilation, d.params.stride,  negative(d.params.padding),
                x.sizes,           x.strides,        x.group_stride,
                x.pairs(),         x.scale()};
    c.target = {w.memory, 0, w.outer_stride, {w.strides, w.channel_stride}, w.group_stride};
    c.target.nc_end = x.channels;
    c.groups = d.groups;
    return c;
}

// A bit for each of at most 32 phases of the gradient of x that taps reach.
uint32_t reached(const ConvParams& params, const ConvTensor& w, const ConvTensor& x) {
    const Dim3& s = params.stride;
    uint32_t result = 0;
    for (int64_t index = 0; index < s[0] * s[1] * s[2]; ++index) {
        const int64_t phases[] = {index / (s[1] * s[2]), index / s[2] % s[1], index % s[2]};
        bool all = true;
        for (int axis = 0; axis < 3; ++axis) all &= phase_of(params, w, x, axis, phases[axis]).taps > 0;
        if (all) result |= 1u << index;
    }
    return result;
}

// A single tap without padding reads every stride-th position alone.
void skip_positions(Direction& d, ConvTensor& x, const ConvTensor& y) {
    if (d.taps != 1 || d.params.padding != Dim3{0, 0, 0}) return;
    for (int axis = 0; axis < 3; ++axis) x.strides[axis] *= d.params.stride[axis];
    x.sizes = y.sizes;
    d.params.stride = {1, 1, 1};
}

}  // namespace

std::vector<ImplicitGemm> Direction::gemms(const ConvTensor& first, const ConvTensor& second) const {
    if (kind == Kind::Dgrad) return dgrad_gemms(*this, first, second);
    return {kind == Kind::Fprop ? fprop_gemm(*this, first, second) : wgrad_gemm(*this, first, second)};
}

std::vector<Direction> directions_of(const ConvProblem& p, const ConvDevice& device) {
    std::vector<Direction> result;
    const auto add = [&](Direction::Kind kind, const ConvTensor& first, const ConvTensor& second,
                         const ConvTensor& out) -> Direction& {
        Direction d{kind, p.params, p.groups, p.w.positions(), first, second, out, p.bias, p.bias_stride};
        d.depthwise = !p.epilogue.used() && is_depthwise(p, kind, device);
        return result.emplace_back(std::move(d));
    };
    if (p.fprop) {
        Direction& d = add(Direction::Kind::Fprop, p.x, p.w, p.image_out);
        d.epilogue = p.epilogue;
        skip_positions(d, d.first, p.y);
    }
    if (p.dgrad) {
        Direction& d = add(Direction::Kind::Dgrad, p.y, transposed(p.w), p.image_out);
        const bool empty = p.w.numel(p.groups) == 0 || p.y.numel(p.groups) == 0;
        if (!d.depthwise && !empty && !p.bias.defined() &&
            Phases::suit(device.info, d.result, d.params, d.groups)) {
            const uint32_t present = reached(d.params, p.w, d.result);
            if (present != 0) d.phases = Phases(d.result, d.params, d.groups, present);
        }
    }
    if (p.wgrad) {
        Direction& d = add(Direction::Kind::Wgrad, p.y, p.x, p.filter_out);
        skip_positions(d, d.second, p.y);
    }
    for (Direction& d : result) d.plain = d.gemms(d.first, d.second);
    return result;
}

}  // namespace anymps::ops
