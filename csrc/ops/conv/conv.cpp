// Convolution and its gradients, 1-d to 3-d, transposed or not: all arrive at the two overrideable ops.
//
// A convolution relates a large image x and a small one y by weights w[channel of y, channel of x in its
// group, taps]: position of x = position of y * stride + tap * dilation - padding. The forward pass, the
// gradient of the input and that of the weight each compute one of the three from the other two; a transposed
// convolution has y as its input.
#include <anymps/ops/conv/conv_ops.h>

#include <ATen/TensorUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "ops/conv/contraction.h"

namespace anymps::ops {
namespace {

using Triple = std::array<int64_t, 3>;

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
    Tensor tensor;
    Triple sizes{1, 1, 1}, strides{0, 0, 0};
    int64_t spatial = 1;  // sizes multiplied
    int64_t spatial_stride = 0;
    bool flat = true;  // spatial_stride leads through all positions

    explicit Image(Tensor t) : tensor(std::move(t)) {
        const int64_t dims = tensor.dim() - 2;
        for (int64_t i = 0; i < dims; ++i) {
            sizes[3 - dims + i] = tensor.size(2 + i);
            strides[3 - dims + i] = tensor.size(2 + i) > 1 ? tensor.stride(2 + i) : 0;
        }
        for (int axis = 2; axis >= 0; --axis) {
            if (sizes[axis] == 1) continue;
            if (spatial == 1)
                spatial_stride = strides[axis];
            else
                flat = flat && strides[axis] == spatial_stride * spatial;
            spatial *= sizes[axis];
        }
    }
    int64_t batch() const { return tensor.size(0); }
    int64_t channels() const { return tensor.size(1); }
    int64_t stride(int64_t dim) const { return tensor.size(dim) > 1 ? tensor.stride(dim) : 0; }
    bool channels_fastest() const {
        return tensor.size(1) > 1 && tensor.stride(1) == 1 && spatial_stride != 1;
    }
};

// Of a tensor whose positions may need a copy to be reached by one stride.
Image flat_image(const Tensor& tensor) {
    Image image(tensor);
    return image.flat ? image : Image(tensor.contiguous());
}

struct Convolution {
    Axes axes;
    int64_t groups;

    // y from x and w.
    void forward(const Image& x, const Image& w, const Tensor* bias, const Image& y) const {
        const int64_t fy = y.channels() / groups, fx = x.channels() / groups;
        const bool fast = x.channels_fastest();
        Contraction c{affine_of(w, fy, 0, fx, 1, fast), {}, target_of(y, fy, bias), groups};
        c.gathered = {&x.tensor,
                      {x.batch(), x.stride(0), y.sizes, false},
                      {fx, x.stride(1), w.sizes, fast},
                      axes.stride,
                      axes.dilation,
                      negative(axes.padding),
                      {1, 1, 1},
                      x.sizes,
                      x.strides,
                      fx * x.stride(1)};
        c.run();
    }

    // x from y and w: the taps that reach a position lie at whole multiples of the stride.
    void backward(const Image& y, const Image& w, const Tensor* bias, const Image& x) const {
        const int64_t fy = y.channels() / groups, fx = x.channels() / groups;
        const bool fast = y.channels_fastest();
        Contraction c{affine_of(w, fx, 1, fy, 0, fast), {}, target_of(x, fx, bias), groups};
        c.gathered = {&y.tensor,
                      {y.batch(), y.stride(0), x.sizes, false},
                      {fy, y.stride(1), w.sizes, fast},
                      {1, 1, 1},
                      negative(axes.dilation),
                      axes.padding,
                      axes.stride,
                      y.sizes,
                      y.strides,
                      fy * y.stride(1)};
        c.run();
    }

    // w from x and y. Sums are long: batch times positions of y.
    void weight(const Image& x, const Image& y, const Image& w) const {
        const int64_t fy = y.channels() / groups, fx = x.channels() / groups;
        const bool fast = w.channels_fastest();
        Contraction c{
            {&y.tensor, fy, y.stride(1), y.spatial, y.spatial_stride, y.stride(0), fy * y.stride(1)},
            {},
            {},
            groups,
            kLongestSum};
        c.gathered = {&x.tensor,
                      {fx, x.stride(1), w.sizes, fast},
                      {x.batch(), x.stride(0), y.sizes, false},
                      axes.dilation,
                      axes.stride,
                      negative(axes.padding),
                      {1, 1, 1},
                      x.sizes,
                      x.strides,
                      fx * x.stride(1)};
        c.target = {&w.tensor,
                    w.stride(0),
                    fast ? fx : w.spatial,
                    fast ? w.stride(1) : w.spatial_stride,
                    fast ? w.spatial_stride : w.stride(1),
                    fy * w.stride(0),
                    nullptr};
        c.run();
    }

  private:
    static constexpr int64_t kLongestSum = 4096;

    static Triple negative(const Triple& v) { return {-v[0], -v[1], -v[2]}; }

    // Weights as the affine factor: rows along one channel dimension, k along the other and the taps.
    AffineFactor affine_of(const Image& w, int64_t rows, int64_t row_dim, int64_t channels, int64_t k_dim,
                           bool channels_fast) const {
        const int64_t group_stride = w.stride(0) * (row_dim == 0 ? rows : channels);
        if (channels_fast) {
            return {&w.tensor,        rows,        w.stride(row_dim), channels, w.stride(k_dim),
                    w.spatial_stride, group_stride};
        }
        return {&w.tensor,       rows,        w.stride(row_dim), w.spatial, w.spatial_stride,
                w.stride(k_dim), group_stride};
    }

    ConvTarget target_of(const Image& image, int64_t rows, const Tensor* bias) const {
        return {&image.tensor,   image.stride(1),        image.spatial, image.spatial_stride,
                image.stride(0), rows * image.stride(1), bias};
    }
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
    const Image w = flat_image(weight);
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
        const Image g(grad_output), w = flat_image(weight), result(grad_input);
        if (grad_input.numel() > 0 && transposed)
            convolution.forward(g, w, nullptr, result);
        else if (grad_input.numel() > 0)
            convolution.backward(g, w, nullptr, result);
    }
    if (output_mask[1]) {
        grad_weight = fresh(weight.sizes(), weight, format);
        const Image result(grad_weight);
        if (grad_weight.numel() > 0 && transposed)
            convolution.weight(Image(grad_output), flat_image(input), result);
        else if (grad_weight.numel() > 0)
            convolution.weight(Image(input), flat_image(grad_output), result);
    }
    if (output_mask[2]) {
        std::vector<int64_t> dims{0};
        for (int64_t dim = 2; dim < grad_output.dim(); ++dim) dims.push_back(dim);
        grad_bias = at::sum(grad_output, dims);
    }
    return {grad_input, grad_weight, grad_bias};
}

}  // namespace anymps::ops
