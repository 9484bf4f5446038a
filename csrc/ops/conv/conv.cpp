// Convolution and its gradients, 1-d to 3-d, transposed or not: all arrive at the two overrideable ops.
//
// A convolution relates a large image x and a small one y by weights w[channel of y, channel of x in its
// group, taps]: position of x = position of y * stride + tap * dilation - padding. The forward pass, the
// gradient of the input and that of the weight each compute one of the three from the other two; a transposed
// convolution has y as its input.
#include <anymps/ops/conv/conv_ops.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ops/conv/conv_params.h"
#include "ops/conv/conv_tensor.h"
#include "ops/conv/depthwise.h"
#include "ops/conv/implicit_gemm.h"
#include "ops/conv/nosmem.h"
#include "ops/conv/phases.h"
#include "ops/conv/wgrad.h"
#include "runtime/device.h"

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
        while (first_tap < tap_step && (phase + padding - first_tap * dilation) % stride != 0) ++first_tap;
        taps =
            first_tap < std::min(tap_step, all_taps) ? (all_taps - first_tap + tap_step - 1) / tap_step : 0;
        start = taps > 0 ? (phase + padding - first_tap * dilation) / stride : 0;
    }
};

struct Convolution {
    ConvParams axes;
    int64_t groups;

    // y from x and w.
    ImplicitGemm forward(const ConvTensor& x, const ConvTensor& w, const Tensor* bias,
                         const ConvTensor& y) const {
        ImplicitGemm c;
        c.g = {y.sizes, y.outer, false};
        c.k = {w.sizes, x.padded, x.is_channels_last()};
        c.strided = {&w.tensor,      0,         w.outer, w.outer_stride, {w.strides, w.channel_stride},
                     w.group_stride, w.pairs(), false,   w.scale()};
        c.im2col = {
            &x.tensor, x.outer_stride, x.channel_stride, axes.stride, axes.dilation, negative(axes.padding),
            x.sizes,   x.strides,      x.group_stride,   x.pairs(),   x.scale()};
        c.target = {&y.tensor, 0, y.channel_stride, {y.strides, y.outer_stride}, y.group_stride, bias};
        c.groups = groups;
        return c;
    }

    // x from y and w, whose outer dimension and channels have changed places. Positions of x that leave the
    // same remainder by the stride are reached by the same taps: each such phase is a GEMM of its own,
    // with a step of 1. Those without taps are the bias, or are left out.
    // planes: where there are some, the phases go there and not to x.
    std::vector<ImplicitGemm> backward(const ConvTensor& y, const ConvTensor& w, const Tensor* bias,
                                       const ConvTensor& x, const Tensor* planes = nullptr) const {
        std::vector<ImplicitGemm> phases;
        const Dim3& s = axes.stride;
        for (int64_t index = 0; index < s[0] * s[1] * s[2]; ++index) {
            const Dim3 phase{index / (s[1] * s[2]), index / s[2] % s[1], index % s[2]};
            ImplicitGemm c;
            c.g = {{}, x.outer, false};
            c.k = {{}, y.padded, y.is_channels_last()};
            c.strided = {&w.tensor,      0,         w.outer, w.outer_stride, {{}, w.channel_stride},
                         w.group_stride, w.pairs(), false,   w.scale()};
            c.im2col = {&y.tensor, y.outer_stride, y.channel_stride, {1, 1, 1}, {},       {},
                        y.sizes,   y.strides,      y.group_stride,   y.pairs(), y.scale()};
            c.target = {&x.tensor, 0, x.channel_stride, {{}, x.outer_stride}, x.group_stride, bias};
            c.groups = groups;
            for (int axis = 0; axis < 3; ++axis) {
                const Phase p(phase[axis], x.sizes[axis], w.sizes[axis], s[axis], axes.padding[axis],
                              axes.dilation[axis]);
                c.g.spatial[axis] = p.positions;
                c.k.spatial[axis] = p.taps;
                c.strided.offset += p.first_tap * w.strides[axis];
                c.strided.k.spatial[axis] = p.tap_step * w.strides[axis];
                c.im2col.k_step[axis] = -p.step;
                c.im2col.start[axis] = p.start;
                c.target.offset += phase[axis] * x.strides[axis];
                c.target.g.spatial[axis] = s[axis] * x.strides[axis];
            }
            if (planes != nullptr) {
                const Dim3& sizes = c.g.spatial;
                const int64_t plane = c.g.positions();
                c.target = {planes,
                            static_cast<int64_t>(phases.size()) * planes->stride(0),
                            plane,
                            {{sizes[1] * sizes[2], sizes[2], 1}, plane * x.channels * groups},
                            plane * x.channels,
                            nullptr};
            }
            if (c.k.count() == 0) c.strided.offset = 0;
            if (c.k.count() > 0 || bias != nullptr) phases.push_back(c);
        }
        return phases;
    }

    // A bit for each phase of the gradient of x that taps reach.
    uint32_t reached(const ConvTensor& w, const ConvTensor& x) const {
        const Dim3& s = axes.stride;
        uint32_t result = 0;
        for (int64_t index = 0; index < s[0] * s[1] * s[2]; ++index) {
            const Dim3 phase{index / (s[1] * s[2]), index / s[2] % s[1], index % s[2]};
            bool taps = true;
            for (int axis = 0; axis < 3; ++axis)
                taps = taps && Phase(phase[axis], x.sizes[axis], w.sizes[axis], s[axis], axes.padding[axis],
                                     axes.dilation[axis])
                                       .taps > 0;
            if (taps) result |= 1u << index;
        }
        return result;
    }

    // w from x and y. Sums are long: batch times positions of y.
    ImplicitGemm weight(const ConvTensor& x, const ConvTensor& y, const ConvTensor& w) const {
        ImplicitGemm c;
        c.g = {w.sizes, x.padded, x.is_channels_last() || w.is_channels_last()};
        c.k = {y.sizes, y.outer, false};
        c.strided = {&y.tensor,
                     0,
                     y.channels,
                     y.channel_stride,
                     {y.strides, y.outer_stride},
                     y.group_stride,
                     y.pairs(),
                     y.padded % 8 == 0 && y.padded > y.channels,
                     y.scale()};
        c.im2col = {
            &x.tensor, x.channel_stride, x.outer_stride, axes.dilation, axes.stride, negative(axes.padding),
            x.sizes,   x.strides,        x.group_stride, x.pairs(),     x.scale()};
        c.target = {&w.tensor,      0,       w.outer_stride, {w.strides, w.channel_stride},
                    w.group_stride, nullptr, x.channels};
        c.groups = groups;
        return c;
    }

  private:
    static Dim3 negative(const Dim3& v) { return {-v[0], -v[1], -v[2]}; }
};

// Runs `plain`, which is build(first, second), with its factors in the order of memory that the kernels like:
// matrix units read 16-byte vectors, and what does not allow it is packed first, one pass over it. The same
// pass splits floats into their terms; convolutions with several taps, which read an element that many times,
// have that done in any case. Where packed factors are none that the tiles can read, lanes read the images as
// they are.
//
// Where there are `ranges` a pass makes halves of floats that fit, and what it would without of others: both
// ways are recorded, and the device takes one.
//
// read_first: the first image as another GEMM has read it, or itself. Returns what this one read.
template <class Build>
ConvTensor run(std::vector<ImplicitGemm> plain, const Build& build, const ConvTensor& first,
               const ConvTensor& read_first, const ConvTensor& second, int64_t taps, const AmaxStates* amaxes,
               bool first_is_strided = false, int64_t longest_sum = UINT32_MAX) {
    const Arithmetic arithmetic = arithmetic_of(plain[0]);
    const Vectorizable words = is_vectorizable(plain);
    const bool cut = arithmetic == Arithmetic::BF16x2;
    const bool as_they_are = arithmetic == Arithmetic::Simt || (!(cut && taps > 1) && words.both());
    constexpr int64_t kFewColumns = 512, kFewRows = 128;
    const int64_t groups = plain[0].groups;
    const Form form = cut ? Form::Bf16x2 : Form::Plain;
    const auto pack = [&](Form wanted) {
        // One tap reads what lies in words as it is; floats, if not many times.
        const bool few = first_is_strided || plain[0].strided.rows <= kFewRows;
        if (taps == 1 && words.both() && few) return std::pair(first, second);
        const ConvTensor& image = read_first.form == wanted ? read_first : first;
        // Gradients of weights read that of the output as it is where they can: floats, if not many times.
        const bool once = wanted == Form::Plain || plain[0].g.count() <= kFewColumns;
        const bool keep = first_is_strided && words.strided && image.form == Form::Plain && once;
        return std::pair(keep ? image : packed(image, groups, wanted, amaxes),
                         packed(second, groups, wanted, amaxes));
    };
    // GEMMs point into their images.
    const auto run_as = [&](const std::pair<ConvTensor, ConvTensor>& images,
                            const ScaleCondition* condition) {
        const ConvTensor by_first = images.first.as(form), by_second = images.second.as(form);
        std::vector<ImplicitGemm> read = build(by_first, by_second);
        run_implicit_gemms(is_vectorizable(read).both() ? std::move(read) : std::move(plain), longest_sum,
                           condition);
        return images.first;
    };
    const bool floats = amaxes != nullptr;
    const bool may_skip_smem = !first_is_strided && may_skip_smem_of(plain, first, taps, amaxes);
    const bool positions = may_skip_smem && taps == 1 && reads_positions(plain[0]);
    const bool fused_amax = first.fused_amax && positions;
    // Results may lie in other ways than was thought when the image was left to the product.
    if (first.fused_amax && !first_is_strided && !fused_amax) compute_amax(first, groups);
    const ScaleCondition scale_valid{amaxes, true, fused_amax}, others{amaxes, false};
    if (!first_is_strided && !fused_amax && plain.size() == 1 && may_be_nosmem_bf16x2(plain[0], taps)) {
        std::vector<ImplicitGemm> nosmem = build(first, second);
        const std::vector<Tensor> weights = nosmem_filter(nosmem, first, second, nullptr);
        run_implicit_gemms(std::move(nosmem), longest_sum);
        return first;
    }
    if (may_skip_smem) {
        const ConvTensor read = positions ? first : to_blocked(first, amaxes);
        ConvTensor image = read, by = second;
        if (floats) {
            image = positions ? read.as(Form::ScaledF16) : scaled_blocked(read);
            by.form = Form::ScaledF16;
        }
        std::vector<ImplicitGemm> nosmem = build(image, by);
        const std::vector<Tensor> weights = nosmem_filter(nosmem, image, second, amaxes);
        run_implicit_gemms(std::move(nosmem), longest_sum, floats ? &scale_valid : nullptr);
        if (floats && positions)
            run_implicit_gemms(std::move(plain), longest_sum, &others);
        else if (floats)
            run_as({read, packed(second, groups, Form::Bf16x2OrScaledF16, amaxes)}, &others);
        return first;
    }
    if (floats) {
        const auto images = pack(as_they_are ? Form::ScaledF16 : Form::Bf16x2OrScaledF16);
        const ConvTensor by_first = images.first.as(Form::ScaledF16),
                         by_second = images.second.as(Form::ScaledF16);
        std::vector<ImplicitGemm> halves = build(by_first, by_second);
        if (is_vectorizable(halves).both()) {
            run_implicit_gemms(std::move(halves), longest_sum, &scale_valid);
            if (!as_they_are) return run_as(images, &others);
            run_implicit_gemms(std::move(plain), longest_sum, &others);
            return images.first;
        }
    }
    if (!as_they_are) return run_as(pack(form), nullptr);
    run_implicit_gemms(std::move(plain), longest_sum);
    return first;
}

// The most terms of a sum: matrix units add with truncation, and small terms are lost in long sums.
constexpr int64_t kLongestSum = 4096;

// A single tap without padding reads every stride-th position alone.
void skip_positions(Convolution& convolution, ConvTensor& x, const ConvTensor& w, const ConvTensor& y) {
    if (w.positions() != 1 || convolution.axes.padding != Dim3{0, 0, 0}) return;
    for (int axis = 0; axis < 3; ++axis) x.strides[axis] *= convolution.axes.stride[axis];
    x.sizes = y.sizes;
    convolution.axes.stride = {1, 1, 1};
}

// True where the products gain more as halves than it takes to find out the ranges of so many elements.
bool worth_scaled_f16(double products, double elements, int64_t taps) {
    const vulkan::DeviceInfo& device = runtime::device().info();
    if (device.is_software) return true;  // for tests
    const vulkan::DeviceProfile& profile = *device.profile;
    const vulkan::Tradeoff& costs = profile.costs->conv_scaled_f16;
    const double gain = (taps > 1 ? costs.product : profile.costs->conv_scaled_f16_1x1) *
                        profile.product_scale(vulkan::Rate::MatrixF16);
    return products * gain >
           costs.dispatches * profile.launch_scale() + elements * costs.element * profile.bytes_scale();
}

// Which of the three is computed of the two others, by kernels that may want to know of ranges.
struct Uses {
    bool forward, backward, weight;
};

// Planes for the phases of the gradient of x, where these are not stored as they lie in it.
std::optional<Phases> separate_phases(const Convolution& convolution, const ConvTensor& w, const Tensor* bias,
                                      const ConvTensor& x) {
    if (bias != nullptr || w.tensor.numel() == 0 || !Phases::suit(x, convolution.axes)) return {};
    const uint32_t reached = convolution.reached(w, x);
    if (reached == 0) return {};
    return Phases(x, convolution.axes, reached);
}

const Tensor* planes_of(const std::optional<Phases>& separate) {
    return separate ? &separate->planes : nullptr;
}

// Finds out whether images fit halves, where the GEMMs that use them may ask for it.
std::optional<AmaxStates> prepare_amax(Convolution convolution, Uses uses, ConvTensor& x, ConvTensor& w,
                                       ConvTensor& y, const std::optional<Phases>& separate = {}) {
    constexpr int64_t kMinRows = 8;
    const int64_t groups = convolution.groups;
    if (!may_use_scaled_f16(x.tensor) || (groups > 1 && std::min(w.outer, w.channels) < kMinRows)) return {};
    ConvTensor read_x = x;
    // Whoever takes pairs need not know of ranges.
    const auto needs_amax = [&](std::span<const ImplicitGemm> some, const ConvTensor& read,
                                ConvTensor& image) {
        image.fused_amax = some.size() == 1 && may_fuse_amax(some[0], read, w.positions());
        return image.fused_amax || some.size() != 1 || !may_be_nosmem_bf16x2(some[0], w.positions());
    };
    if (uses.backward)
        uses.backward =
            needs_amax(convolution.backward(y, transposed(w), nullptr, x, planes_of(separate)), y, y);
    skip_positions(convolution, read_x, w, y);
    if (uses.forward)
        uses.forward = needs_amax(std::array{convolution.forward(read_x, w, nullptr, y)}, read_x, x);
    if (!uses.forward && !uses.backward && !uses.weight) return {};
    struct Factor {
        bool used;
        ConvTensor& image;
        const ConvTensor& read;
    };
    const Factor factors[] = {{uses.forward || uses.weight, x, read_x},
                              {uses.forward || uses.backward, w, w},
                              {uses.backward || uses.weight, y, y}};
    double elements = 0;
    int64_t count = 0;
    for (const Factor& f : factors) {
        if (f.used)
            elements += static_cast<double>(f.read.outer) * groups * f.read.channels * f.read.positions();
        count += f.used;
    }
    const double products = static_cast<double>(y.outer) * groups * y.channels * y.positions() * w.channels *
                            w.positions() * (uses.forward + uses.backward + uses.weight);
    if (!worth_scaled_f16(products, elements, w.positions())) {
        x.fused_amax = y.fused_amax = false;
        return {};
    }
    AmaxStates amaxes(count);
    for (const Factor& f : factors) {
        if (!f.used) continue;
        f.image.amax_state = amaxes.address(--count);
        ConvTensor read = f.read;
        read.amax_state = f.image.amax_state;
        if (f.image.fused_amax)
            sample_amax(read, groups);
        else
            compute_amax(read, groups);
    }
    return amaxes;
}

void run_forward(Convolution convolution, ConvTensor x, const ConvTensor& w, const Tensor* bias,
                 const ConvTensor& y, const AmaxStates* amaxes) {
    skip_positions(convolution, x, w, y);
    const auto build = [&](const ConvTensor& from, const ConvTensor& by) {
        return std::vector{convolution.forward(from, by, bias, y)};
    };
    run(build(x, w), build, x, x, w, w.positions(), amaxes);
}

// Returns y as it was read, which the gradient of the weight may share.
ConvTensor run_backward(const Convolution& convolution, const ConvTensor& y, const ConvTensor& w,
                        const Tensor* bias, const ConvTensor& x, const AmaxStates* amaxes,
                        const std::optional<Phases>& separate) {
    const ConvTensor turned = transposed(w);
    const auto build = [&](const ConvTensor& from, const ConvTensor& by) {
        return convolution.backward(from, by, bias, x, planes_of(separate));
    };
    auto phases = build(y, turned);
    const Dim3& stride = convolution.axes.stride;
    const bool all = static_cast<int64_t>(phases.size()) == stride[0] * stride[1] * stride[2];
    if (!all && !separate) x.tensor.zero_();
    if (phases.empty()) return y;
    const ConvTensor read = run(std::move(phases), build, y, y, turned, w.positions(), amaxes);
    if (separate) separate->join(x, convolution.axes);
    return read;
}

// The gradient of the weight: what computes it is chosen before anybody looks for ranges.
bool is_wgrad_1x1(Convolution convolution, ConvTensor x, const ConvTensor& y, const ConvTensor& w) {
    skip_positions(convolution, x, w, y);
    return may_be_wgrad_1x1(convolution.weight(x, y, w), x, y);
}

// read_y: y as the gradient of the input has read it, or y.
void run_weight(Convolution convolution, ConvTensor x, const ConvTensor& y, const ConvTensor& read_y,
                const ConvTensor& w, const AmaxStates* amaxes, bool by_rows) {
    skip_positions(convolution, x, w, y);
    const auto build = [&](const ConvTensor& by, const ConvTensor& from) {
        return std::vector{convolution.weight(from, by, w)};
    };
    std::vector<ImplicitGemm> plain = build(y, x);
    if (by_rows) return wgrad_1x1(plain[0], x, y, kLongestSum);
    if (may_be_wgrad_3x3(plain[0], convolution.axes, x, y)) return wgrad_3x3(plain[0], x, y, kLongestSum);
    run(std::move(plain), build, y, read_y, x, w.positions(), amaxes, true, kLongestSum);
}

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

const AmaxStates* pointer(const std::optional<AmaxStates>& amaxes) {
    return amaxes ? &*amaxes : nullptr;
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
    const ConvParams axes(stride, padding, dilation, input.dim() - 2);
    const auto sizes = output_sizes(input, weight, output_padding, transposed, axes, groups);
    const Tensor out = fresh(sizes, input, result_format(input, weight));
    if (out.numel() == 0) return out;
    const Tensor* bias_or_null = bias.defined() ? &bias : nullptr;
    if (is_depthwise(weight, groups)) {
        depthwise(input, weight, bias_or_null, out, axes, transposed);
        return out;
    }
    const Convolution convolution{axes, groups};
    ConvTensor x = activation_of(input, groups), w = filter_of(weight, groups),
               y = activation_of(out, groups);
    if (transposed) {
        const auto separate = separate_phases(convolution, w, bias_or_null, y);
        const auto amaxes = prepare_amax(convolution, {false, true, false}, y, w, x, separate);
        run_backward(convolution, x, w, bias_or_null, y, pointer(amaxes), separate);
    } else {
        const auto amaxes = prepare_amax(convolution, {true, false, false}, x, w, y);
        run_forward(convolution, x, w, bias_or_null, y, pointer(amaxes));
    }
    return out;
}

std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(convolution_backward_overrideable)(
    const Tensor& grad_output, const Tensor& input, const Tensor& weight, IntArrayRef stride,
    IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> output_mask) {
    const ConvParams axes(stride, padding, dilation, input.dim() - 2);
    const Convolution convolution{axes, groups};
    const bool by_channel = is_depthwise(weight, groups);
    const MemoryFormat format = result_format(input, weight);
    Tensor grad_input, grad_weight, grad_bias;
    ConvTensor w = filter_of(weight, groups), x = activation_of(input, groups),
               g = activation_of(grad_output, groups);
    // The large image and the small one.
    ConvTensor &large = transposed ? g : x, &small = transposed ? x : g;
    if (output_mask[0]) grad_input = fresh(input.sizes(), input, format);
    std::optional<AmaxStates> found;
    std::optional<Phases> separate;
    bool by_rows = false;
    if (!by_channel && weight.numel() > 0 && grad_output.numel() > 0) {
        if (output_mask[0] && !transposed && grad_input.numel() > 0)
            separate = separate_phases(convolution, w, nullptr, activation_of(grad_input, groups));
        by_rows = output_mask[1] && is_wgrad_1x1(convolution, large, small, w);
        const bool others = output_mask[1] && !by_rows;
        found =
            prepare_amax(convolution, {transposed && output_mask[0], !transposed && output_mask[0], others},
                         large, w, small, separate);
    }
    const AmaxStates* amaxes = pointer(found);
    ConvTensor read = g;
    if (output_mask[0]) {
        const ConvTensor result = activation_of(grad_input, groups);
        if (grad_input.numel() > 0 && by_channel)
            depthwise(grad_output, weight, nullptr, grad_input, axes, !transposed);
        else if (grad_input.numel() > 0 && transposed)
            run_forward(convolution, g, w, nullptr, result, amaxes);
        else if (grad_input.numel() > 0)
            read = run_backward(convolution, g, w, nullptr, result, amaxes, separate);
    }
    if (output_mask[1]) {
        grad_weight = fresh(weight.sizes(), weight, format);
        const ConvTensor result = filter_of(grad_weight, groups);
        if (grad_weight.numel() > 0 && by_channel)
            depthwise_weight(large.tensor, small.tensor, grad_weight, axes);
        else if (grad_weight.numel() > 0)
            run_weight(convolution, large, small, transposed ? small : read, result, amaxes, by_rows);
    }
    if (output_mask[2]) {
        std::vector<int64_t> dims{0};
        for (int64_t dim = 2; dim < grad_output.dim(); ++dim) dims.push_back(dim);
        grad_bias = at::sum(grad_output, dims);
    }
    return {grad_input, grad_weight, grad_bias};
}

}  // namespace anymps::ops
