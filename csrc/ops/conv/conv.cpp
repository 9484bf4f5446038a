// Convolution and its gradients, 1-d to 3-d, transposed or not: all arrive at the two overrideable ops. And
// anymps::convolution_epilogue, which graphs of torch.compile call where element-wise operators follow one.
#include <anymps/ops/conv/conv_ops.h>

#include <ATen/Context.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/util/StringUtil.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "gemm/epilogue.h"
#include "ops/conv/execute.h"
#include "ops/same_device.h"

namespace anymps::ops {
namespace {

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
                                  bool transposed, const ConvParams& axes, int64_t groups) {
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

// Of transposed convolutions; PyTorch checks the sizes of others before they arrive here.
void check_output(const Tensor& input, IntArrayRef sizes) {
    const IntArrayRef spatial = sizes.slice(2);
    if (std::ranges::all_of(spatial, [](int64_t size) { return size > 0; })) return;
    TORCH_CHECK(false, "Given input size per channel: (", c10::Join(" x ", input.sizes().slice(2)),
                "). Calculated output size per channel: (", c10::Join(" x ", spatial),
                "). Output size is too small");
}

void check_types(const Tensor& input, const Tensor& weight, const Tensor& bias) {
    TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.dtype(),
                ") and weight type (", weight.dtype(), ") should be the same");
    TORCH_CHECK(!bias.defined() || bias.scalar_type() == input.scalar_type(), "Input type (", input.dtype(),
                ") and bias type (", bias.defined() ? bias.dtype() : input.dtype(), ") should be the same");
}

// large: x, or what it will be; small: y.
ConvProblem problem_of(const ConvParams& params, int64_t groups, const Tensor& large, const Tensor& weight,
                       const Tensor& small) {
    ConvProblem p;
    p.params = params;
    p.groups = groups;
    p.x = activation_of(large, groups, kX);
    p.w = filter_of(weight, groups, kW);
    p.y = activation_of(small, groups, kY);
    p.tf32 = at::globalContext().allowTF32CuDNN(at::Float32Op::CONV);
    return p;
}

struct Geometry {
    IntArrayRef stride, padding, dilation, output_padding;
    bool transposed;
    int64_t groups;
};

// What follows the bias: as ConvEpilogue, with the tensors.
struct Following {
    gemm::EpilogueSteps steps;
    Tensor operand, scale, shift;
};

void check_following(const Following& following, const Tensor& out) {
    const Tensor &scale = following.scale, &shift = following.shift;
    TORCH_CHECK(scale.defined() == shift.defined(), "expected a scale and a shift of channels, or neither");
    if (!scale.defined()) return;
    for (const Tensor& t : {scale, shift}) {
        TORCH_CHECK(
            t.scalar_type() == at::kFloat && t.dim() == 1 && t.size(0) == out.size(1) && t.is_contiguous(),
            "expected a dense float32 scale and shift of ", out.size(1), " channels, but got ", t.dtype(),
            " and ", t.sizes());
    }
    TORCH_CHECK(at::isFloatingType(out.scalar_type()), "expected floating point results, but got ",
                out.dtype());
}

Tensor convolve(const Tensor& input, const Tensor& weight, const Tensor& bias, const Geometry& g,
                const Following& following) {
    check_types(input, weight, bias);
    const ConvParams params(g.stride, g.padding, g.dilation, input.dim() - 2);
    const auto sizes = output_sizes(input, weight, g.output_padding, g.transposed, params, g.groups);
    if (g.transposed) check_output(input, sizes);
    const Tensor out = fresh(sizes, input, result_format(input, weight));
    check_following(following, out);
    const Tensor operand = gemm::epilogue_operand(following.steps, following.operand, out);
    if (out.numel() == 0) return out;
    const Tensor &large = g.transposed ? out : input, &small = g.transposed ? input : out;
    ConvProblem p = problem_of(params, g.groups, large, weight, small);
    p.image_out = activation_of(out, g.groups, kImageOut);
    p.fprop = !g.transposed;
    p.dgrad = g.transposed;
    if (bias.defined()) {
        p.bias = memory_of(bias, kBias);
        p.bias_stride = bias.stride(0);
    }
    p.epilogue.steps = following.steps.code;
    if (operand.defined()) p.epilogue.operand = memory_of(operand, kOperand);
    if (following.scale.defined()) {
        p.epilogue.scale = memory_of(following.scale, kScale);
        p.epilogue.shift = memory_of(following.shift, kShift);
    }
    execute(*plan_for(p), {large, weight, small, bias, out, {}, operand, following.scale, following.shift});
    return out;
}

}  // namespace

// input [batch, channels, ...], weight [out, in / groups, taps...], or [in, out / groups, taps...] when
// transposed.
ANYMPS_ROW(convolution_overrideable,
           convolve(input, weight, bias.value_or(Tensor()),
                    {stride, padding, dilation, output_padding, transposed, groups}, {}))

std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(convolution_backward_overrideable)(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> output_mask) {
    const ConvParams params(stride, padding, dilation, input.dim() - 2);
    const MemoryFormat format = result_format(input, weight);
    Tensor grad_input, grad_weight, grad_bias;
    const Tensor &large = transposed ? grad_output : input, &small = transposed ? input : grad_output;
    ConvProblem p = problem_of(params, groups, large, weight, small);
    if (output_mask[0]) {
        grad_input = fresh(input.sizes(), input, format);
        p.image_out = activation_of(grad_input, groups, kImageOut);
        (transposed ? p.fprop : p.dgrad) = grad_input.numel() > 0;
    }
    if (output_mask[1]) {
        grad_weight = fresh(weight.sizes(), weight, format);
        p.filter_out = filter_of(grad_weight, groups, kFilterOut);
        p.wgrad = grad_weight.numel() > 0;
    }
    if (p.fprop || p.dgrad || p.wgrad)
        execute(*plan_for(p), {large, weight, small, {}, grad_input, grad_weight});
    if (output_mask[2]) {
        std::vector<int64_t> dims{0};
        for (int64_t dim = 2; dim < grad_output.dim(); ++dim) dims.push_back(dim);
        grad_bias = at::sum(grad_output, dims);
    }
    return {grad_input, grad_weight, grad_bias};
}

namespace {

// The steps of (convolution + bias) * scale + shift, of channels; operand: of the steps that have one, of the
// result's sizes and dtype.
Tensor convolution_epilogue(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                            IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups,
                            const std::optional<Tensor>& scale, const std::optional<Tensor>& shift,
                            std::string_view steps, const std::optional<Tensor>& operand) {
    const Tensor bias_or_not = bias.value_or(Tensor()), operand_or_not = operand.value_or(Tensor()),
                 scale_or_not = scale.value_or(Tensor()), shift_or_not = shift.value_or(Tensor());
    check_same_device("convolution_epilogue", {{"input", input},
                                               {"weight", weight},
                                               {"bias", bias_or_not},
                                               {"scale", scale_or_not},
                                               {"shift", shift_or_not},
                                               {"operand", operand_or_not}});
    TORCH_CHECK(input.dim() >= 3 && input.dim() <= 5 && weight.dim() == input.dim() &&
                    input.size(1) == weight.size(1) * groups,
                "input and weight do not fit (", input.sizes(), " and ", weight.sizes(), ", groups ", groups,
                ")");
    return convolve(input, weight, bias_or_not, {stride, padding, dilation, {}, false, groups},
                    {gemm::epilogue_steps(steps), operand_or_not, scale_or_not, shift_or_not});
}

Tensor convolution_epilogue_meta(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                                 c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                 c10::SymIntArrayRef dilation, int64_t groups, const std::optional<Tensor>&,
                                 const std::optional<Tensor>&, std::string_view,
                                 const std::optional<Tensor>&) {
    const std::vector<c10::SymInt> none(stride.size(), 0);
    const Tensor result =
        at::convolution_symint(input, weight, bias, stride, padding, dilation, false, none, groups);
    return at::empty_symint(result.sym_sizes(), result.options(), result_format(input, weight));
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def(
        "convolution_epilogue(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, "
        "SymInt[] dilation, int groups, Tensor? scale, Tensor? shift, str steps, Tensor? operand=None) -> "
        "Tensor");
}
TORCH_LIBRARY_IMPL(anymps, MPS, m) {
    m.impl("convolution_epilogue", TORCH_FN(convolution_epilogue));
}
TORCH_LIBRARY_IMPL(anymps, Meta, m) {
    m.impl("convolution_epilogue", TORCH_FN(convolution_epilogue_meta));
}

}  // namespace
}  // namespace anymps::ops
