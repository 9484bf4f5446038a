// fused_moving_avg_obs_fake_quant: extremes, their moving averages, the scale and zero point that follow from
// them, and fake quantization by these. Nothing is read on the host, not even whether to observe.
#include <anymps/ops/fake_quantize_observer_ops.h>
#include <anymps/shaders/fake_quantize.h>

#include <ATen/ops/aminmax.h>

#include <limits>

#include "kernels/flat_grid.h"
#include "ops/fake_quantize.h"

namespace anymps::ops {
namespace {

// The state of an observer, one element a channel.
struct Observed {
    const Tensor &running_min, &running_max, &scale, &zero_point;
};

void check(const Observed& state, int64_t channels) {
    for (const Tensor& t : {state.running_min, state.running_max})
        TORCH_CHECK(t.scalar_type() == at::kFloat, "expected scalar type Float but found ", t.scalar_type());
    for (const Tensor& t : {state.running_min, state.running_max, state.scale, state.zero_point}) {
        TORCH_CHECK(
            t.numel() == channels && t.is_contiguous(),
            "fused_moving_avg_obs_fake_quant on MPS: the observer's state must be contiguous and have ",
            channels, " elements, but one tensor has ", t.numel());
    }
}

Tensor flag(const Tensor& t) {
    TORCH_CHECK(t.numel() == 1, "a Tensor with ", t.numel(), " elements cannot be converted to Scalar");
    return t;
}

// x: [channels, elements], or all of one channel.
void observe(const Tensor& x, const Tensor& observes, const Tensor& quantizes, const Observed& state,
             bool by_row, double averaging_const, int64_t quant_min, int64_t quant_max, bool symmetric) {
    const auto [minima, maxima] = by_row ? at::aminmax(x, 1) : at::aminmax(x);
    const int64_t channels = minima.numel();
    check(state, channels);
    TORCH_CHECK(quant_min < quant_max, "In ChooseQuantizationParams, qmin should be less than qmax");
    const auto error = runtime::encoder().message_slot(
        "In ChooseQuantizationParams, min should be less than or equal to max");
    const shaders::fake_quantize::ObserveArgs args{.observes = kernels::address(observes),
                                                   .quantizes = kernels::address(quantizes),
                                                   .minima = kernels::address(minima),
                                                   .maxima = kernels::address(maxima),
                                                   .running_minima = kernels::address(state.running_min),
                                                   .running_maxima = kernels::address(state.running_max),
                                                   .scale = kernels::address(state.scale),
                                                   .zero_point = kernels::address(state.zero_point),
                                                   .error = error.address,
                                                   .error_code = error.code,
                                                   .count = static_cast<uint32_t>(channels),
                                                   .step = static_cast<float>(averaging_const),
                                                   .low = static_cast<int32_t>(quant_min),
                                                   .high = static_cast<int32_t>(quant_max),
                                                   .symmetric = symmetric};
    shaders::fake_quantize::fake_quantize_observe
        .call({.workgroup = kernels::flat_workgroup(),
               .flag_type = kernels::code(observes.scalar_type()),
               .other_flag_type = kernels::code(quantizes.scalar_type()),
               .value_type = kernels::code(minima.scalar_type()),
               .scale_type = kernels::code(state.scale.scalar_type()),
               .zero_point_type = kernels::code(state.zero_point.scalar_type())})
        .read(observes)
        .read(quantizes)
        .read(minima)
        .read(maxima)
        .write(state.running_min)
        .write(state.running_max)
        .write(state.scale)
        .write(state.zero_point)
        .dispatch(args, kernels::flat_grid(channels));
}

}  // namespace

// running_min, running_max, scale, zero_point: one element, or with per_row_fake_quant one a place of ch_axis
// (sized here where they are empty). Extremes that are NaN raise at the next synchronization.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_fused_moving_avg_obs_fq_helper)(
    const Tensor& self, const Tensor& observer_on, const Tensor& fake_quant_on, Tensor& running_min,
    Tensor& running_max, Tensor& scale, Tensor& zero_point, double averaging_const, int64_t quant_min,
    int64_t quant_max, int64_t ch_axis, bool per_row_fake_quant, bool symmetric_quant) {
    TORCH_CHECK(ch_axis < self.dim(),
                "Error in fused_moving_avg_obs_fake_quant_cpu: ch_axis must be < self.dim()");
    const Tensor observes = flag(observer_on), quantizes = flag(fake_quant_on);
    Tensor x = self;
    if (per_row_fake_quant) {
        x = self.movedim(ch_axis, 0).flatten(1);
        if (running_min.numel() == 0) {
            constexpr double kInfinity = std::numeric_limits<double>::infinity();
            running_min.resize_(self.size(ch_axis)).fill_(kInfinity);
            running_max.resize_(self.size(ch_axis)).fill_(-kInfinity);
            scale.resize_(self.size(ch_axis));
            zero_point.resize_(self.size(ch_axis));
        }
    }
    observe(x, observes, quantizes, {running_min, running_max, scale, zero_point}, per_row_fake_quant,
            averaging_const, quant_min, quant_max, symmetric_quant);
    if (!per_row_fake_quant)
        return fake_quantized(self, scale.reshape({}), zero_point.reshape({}), quantizes.reshape({}),
                              quant_min, quant_max);
    return fake_quantized(self, along(scale, self, ch_axis), along(zero_point, self, ch_axis),
                          quantizes.reshape({}), quant_min, quant_max);
}

}  // namespace anymps::ops
