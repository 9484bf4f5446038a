// Convolution and its gradients, 1-d to 3-d, transposed or not: all arrive at the two overrideable ops.
//
// A convolution relates a large image x and a small one y by weights w[channel of y, channel of x in its
// group, taps]: position of x = position of y * stride + tap * dilation - padding. The forward pass, the
// gradient of the input and that of the weight each compute one of the three from the other two; a transposed
// convolution has y as its input.
#include <anymps/ops/conv/conv_ops.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <numeric>

#include "ops/conv/contraction.h"

namespace anymps::ops {
namespace {

// The parameters of the three spatial axes, unused leading ones neutral.
struct Axes {
    Triple stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};
    Axes(IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, int64_t spatial) {
        const auto at = [](IntArrayRef values, int64_t i) {
            return values.size() == 1 ? values[0] : values[i];
        };
        for (int64_t i = 0; i < spatial; ++i) {
            const int64_t axis = 3 - spatial + i;
            stride[axis] = at(strides, i);
            padding[axis] = at(paddings, i);
            dilation[axis] = at(dilations, i);
        }
    }
};

// A [batch, channels, ...] image or [channels of y, channels of x, taps...] weight, with three spatial
// dimensions.
struct Image {
    const Tensor& tensor;
    Triple sizes{1, 1, 1}, strides{0, 0, 0};

    explicit Image(const Tensor& t) : tensor(t) {
        const int64_t dims = tensor.dim() - 2;
        for (int64_t i = 0; i < dims; ++i) {
            sizes[3 - dims + i] = tensor.size(2 + i);
            strides[3 - dims + i] = tensor.stride(2 + i);
        }
    }
    int64_t size(int64_t dim) const { return tensor.size(dim); }
    int64_t stride(int64_t dim) const { return tensor.stride(dim); }
    // Channels follow one another, positions do not.
    bool channels_fastest() const {
        return size(1) > 1 && stride(1) == 1 && (sizes[2] == 1 || strides[2] != 1);
    }
};

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
        while (first_tap < tap_step && (phase + padding - first_tap * dilation) % stride != 0) ++first_tap;
        taps =
            first_tap < std::min(tap_step, all_taps) ? (all_taps - first_tap + tap_step - 1) / tap_step : 0;
        start = taps > 0 ? (phase + padding - first_tap * dilation) / stride : 0;
    }
};

struct Convolution {
    Axes axes;
    int64_t groups;

    // y from x and w.
    void forward(const Image& x, const Image& w, const Tensor* bias, const Image& y) const {
        const int64_t fy = y.size(1) / groups, fx = x.size(1) / groups;
        Contraction c;
        c.g = {y.sizes, y.size(0), false};
        c.k = {w.sizes, fx, x.channels_fastest()};
        c.affine = {&w.tensor, 0, fy, w.stride(0), {w.strides, w.stride(1)}, fy * w.stride(0)};
        c.gathered = {&x.tensor,   x.stride(0),   x.stride(1),
                      axes.stride, axes.dilation, negative(axes.padding),
                      x.sizes,     x.strides,     fx * x.stride(1)};
        c.target = {&y.tensor, 0, y.stride(1), {y.strides, y.stride(0)}, fy * y.stride(1), bias};
        c.groups = groups;
        run_contractions({c});
    }

    // x from y and w. Positions of x that leave the same remainder by the stride are reached by the same
    // taps: each such phase is a contraction of its own, with a step of 1.
    void backward(const Image& y, const Image& w, const Tensor* bias, const Image& x) const {
        const int64_t fy = y.size(1) / groups, fx = x.size(1) / groups;
        std::vector<Contraction> phases;
        const Triple& s = axes.stride;
        for (int64_t index = 0; index < s[0] * s[1] * s[2]; ++index) {
            const Triple phase{index / (s[1] * s[2]), index / s[2] % s[1], index % s[2]};
            Contraction c;
            c.g = {{}, x.size(0), false};
            c.k = {{}, fy, y.channels_fastest()};
            c.affine = {&w.tensor, 0, fx, w.stride(1), {{}, w.stride(0)}, fy * w.stride(0)};
            c.gathered = {&y.tensor, y.stride(0), y.stride(1), {1, 1, 1},       {},
                          {},        y.sizes,     y.strides,   fy * y.stride(1)};
            c.target = {&x.tensor, 0, x.stride(1), {{}, x.stride(0)}, fx * x.stride(1), bias};
            c.groups = groups;
            for (int axis = 0; axis < 3; ++axis) {
                const Phase p(phase[axis], x.sizes[axis], w.sizes[axis], s[axis], axes.padding[axis],
                              axes.dilation[axis]);
                c.g.spatial[axis] = p.positions;
                c.k.spatial[axis] = p.taps;
                c.affine.offset += p.first_tap * w.strides[axis];
                c.affine.k.spatial[axis] = p.tap_step * w.strides[axis];
                c.gathered.k_step[axis] = -p.step;
                c.gathered.start[axis] = p.start;
                c.target.offset += phase[axis] * x.strides[axis];
                c.target.g.spatial[axis] = s[axis] * x.strides[axis];
            }
            if (c.k.count() == 0) c.affine.offset = 0;
            phases.push_back(c);
        }
        run_contractions(std::move(phases));
    }

    // w from x and y. Sums are long: batch times positions of y.
    void weight(const Image& x, const Image& y, const Image& w) const {
        const int64_t fy = y.size(1) / groups, fx = x.size(1) / groups;
        Contraction c;
        c.g = {w.sizes, fx, w.channels_fastest()};
        c.k = {y.sizes, y.size(0), false};
        c.affine = {&y.tensor, 0, fy, y.stride(1), {y.strides, y.stride(0)}, fy * y.stride(1)};
        c.gathered = {&x.tensor,     x.stride(1), x.stride(0),
                      axes.dilation, axes.stride, negative(axes.padding),
                      x.sizes,       x.strides,   fx * x.stride(1)};
        c.target = {&w.tensor, 0, w.stride(0), {w.strides, w.stride(1)}, fy * w.stride(0), nullptr};
        c.groups = groups;
        run_contractions({c}, kLongestSum);
    }

  private:
    static constexpr int64_t kLongestSum = 4096;

    static Triple negative(const Triple& v) { return {-v[0], -v[1], -v[2]}; }
};

// CPU's choice: channels last where an input or the weight is.
MemoryFormat result_format(const Tensor& input, const Tensor& weight) {
    const MemoryFormat last = input.dim() == 5 ? MemoryFormat::ChannelsLast3d : MemoryFormat::ChannelsLast;
    if (input.dim() != 4 && input.dim() != 5) return MemoryFormat::Contiguous;
    const bool chosen = input.suggest_memory_format() == last || weight.suggest_memory_format() == last;
    return chosen ? last : MemoryFormat::Contiguous;
}

Tensor fresh(IntArrayRef sizes, const Tensor& like, MemoryFormat format) {
    return at::empty(sizes, like.options().memory_format(format));
}

std::vector<int64_t> output_sizes(const Tensor& input, const Tensor& weight, IntArrayRef output_padding,
                                  bool transposed, const Axes& axes, int64_t groups) {
    const int64_t spatial = input.dim() - 2;
    std::vector<int64_t> sizes{input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
    for (int64_t i = 0; i < spatial; ++i) {
        const int64_t axis = 3 - spatial + i;
        const int64_t reach = axes.dilation[axis] * (weight.size(2 + i) - 1) + 1;
        const int64_t extra = output_padding.empty() ? 0 : output_padding[output_padding.size() == 1 ? 0 : i];
        const int64_t size = input.size(2 + i);
        sizes.push_back(transposed ? (size - 1) * axes.stride[axis] - 2 * axes.padding[axis] + reach + extra
                                   : (size + 2 * axes.padding[axis] - reach) / axes.stride[axis] + 1);
    }
    return sizes;
}

void check_types(const Tensor& input, const Tensor& weight, const Tensor& bias) {
    TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.dtype(),
                ") and weight type (", weight.dtype(), ") should be the same");
    TORCH_CHECK(!bias.defined() || bias.scalar_type() == input.scalar_type(), "Input type (", input.dtype(),
                ") and bias type (", bias.defined() ? bias.dtype() : input.dtype(), ") should be the same");
}

}  // namespace

// input [batch, channels, ...], weight [out, in / groups, taps...], or [in, out / groups, taps...] when
// transposed.
Tensor ANYMPS_FUNC(convolution_overrideable)(const Tensor& input, const Tensor& weight,
                                             const std::optional<Tensor>& bias_opt, IntArrayRef stride,
                                             IntArrayRef padding, IntArrayRef dilation, bool transposed,
                                             IntArrayRef output_padding, int64_t groups) {
    const Tensor bias = bias_opt.value_or(Tensor());
    check_types(input, weight, bias);
    const Axes axes(stride, padding, dilation, input.dim() - 2);
    const auto sizes = output_sizes(input, weight, output_padding, transposed, axes, groups);
    const Tensor out = fresh(sizes, input, result_format(input, weight));
    if (out.numel() == 0) return out;
    const Convolution convolution{axes, groups};
    const Image w(weight);
    const Tensor* bias_or_null = bias.defined() ? &bias : nullptr;
    if (transposed)
        convolution.backward(Image(input), w, bias_or_null, Image(out));
    else
        convolution.forward(Image(input), w, bias_or_null, Image(out));
    return out;
}

std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(convolution_backward_overrideable)(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> output_mask) {
    const Convolution convolution{Axes(stride, padding, dilation, input.dim() - 2), groups};
    const MemoryFormat format = result_format(input, weight);
    Tensor grad_input, grad_weight, grad_bias;
    if (output_mask[0]) {
        grad_input = fresh(input.sizes(), input, format);
        const Image g(grad_output), w(weight), result(grad_input);
        if (grad_input.numel() > 0 && transposed)
            convolution.forward(g, w, nullptr, result);
        else if (grad_input.numel() > 0)
            convolution.backward(g, w, nullptr, result);
    }
    if (output_mask[1]) {
        grad_weight = fresh(weight.sizes(), weight, format);
        const Image result(grad_weight);
        if (grad_weight.numel() > 0 && transposed)
            convolution.weight(Image(grad_output), Image(input), result);
        else if (grad_weight.numel() > 0)
            convolution.weight(Image(input), Image(grad_output), result);
    }
    if (output_mask[2]) {
        std::vector<int64_t> dims{0};
        for (int64_t dim = 2; dim < grad_output.dim(); ++dim) dims.push_back(dim);
        grad_bias = at::sum(grad_output, dims);
    }
    return {grad_input, grad_weight, grad_bias};
}

}  // namespace anymps::ops
