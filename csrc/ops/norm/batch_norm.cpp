// Batch norm in all of ATen's spellings, and its gradients.
#include <ATen/mps/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_like.h>
#include <anymps/ops/norm/batch_norm_ops.h>
#include <anymps/ops/reduction_rows.h>

#include "ops/materialize.h"
#include "ops/norm/batch_norm.h"

#include "kernels/channel_norm.h"
#include "kernels/check_dtype.h"
#include "kernels/reduce_nc_hw.h"
#include "kernels/reduce_outer.h"
#include "kernels/route.h"
#include "ops/norm/norm_dtypes.h"
#include "ops/norm/norm_routes.h"

namespace anymps::ops {

namespace {

using kernels::ChannelNorm;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using ThreeOut = std::tuple<Tensor&, Tensor&, Tensor&>;

Tensor empty_floats(const Tensor& like, int64_t count) {
    return Tensor(at::detail::empty_mps({count}, like.options().dtype(at::kFloat)));
}

Tensor optional(const std::optional<Tensor>& tensor) {
    return tensor ? *tensor : Tensor();
}

Tensor dense(const Tensor& tensor) {
    return tensor.defined() ? tensor.contiguous() : tensor;
}

// The layout that results have: the input's if it is dense, with channels last or not.
at::MemoryFormat format_of(const Tensor& input) {
    const at::MemoryFormat format = input.suggest_memory_format();
    return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d
               ? format
               : at::MemoryFormat::Contiguous;
}

ChannelNorm shape_of(const Tensor& input) {
    const int64_t channels = input.size(1);
    const bool last = format_of(input) != at::MemoryFormat::Contiguous;
    const int64_t slices = input.size(0) * channels;
    return {channels, last || slices == 0 ? 1 : input.numel() / slices};
}

kernels::DimMask all_but_channels(const Tensor& input) {
    return kernels::dim_mask(input, std::nullopt).reset(1);
}

int64_t samples(const Tensor& input) {
    return input.size(1) == 0 ? 0 : input.numel() / input.size(1);
}

BatchNormProblem problem_of(const Tensor& input) {
    const ChannelNorm norm = shape_of(input);
    const bool channels_last = format_of(input) != at::MemoryFormat::Contiguous;
    return {.type = input.scalar_type(),
            .address = kernels::address(input),
            .channels_last = channels_last,
            .planes = {static_cast<uint64_t>(channels_last ? samples(input) : input.size(0)),
                       static_cast<uint64_t>(norm.channels), static_cast<uint64_t>(norm.inner)}};
}

struct FindStatistics {
    const Tensor& input;
    const kernels::ChannelStatistics& statistics;
};

kernels::Matrix matrix_of(const BatchNormProblem& p) {
    const auto bytes = static_cast<int64_t>(p.planes.channels * c10::elementSize(p.type));
    return {p.type, p.address, p.planes.images, p.planes.channels, bytes};
}

bool has_outer_moments(const BatchNormProblem& p, const kernels::RouteDevice& device) {
    return p.channels_last && kernels::supports_reduce_outer_moments(matrix_of(p), device);
}

bool has_nc_hw_moments(const BatchNormProblem& p, const kernels::RouteDevice& device) {
    return !p.channels_last && kernels::supports_reduce_nc_hw_moments(p.type, p.address, p.planes, device);
}

void statistics_by_reduction(const BatchNormProblem&, const FindStatistics& c) {
    kernels::reduce(rows::moments, c.input, all_but_channels(c.input),
                    {c.statistics.variance, c.statistics.mean});
    kernels::channel_norm_statistics(c.statistics);
}

constexpr kernels::Route<BatchNormProblem, const FindStatistics> kStatistics[] = {
    {"reduce_outer_moments", has_outer_moments,
     [](const BatchNormProblem& p, const FindStatistics& c) {
         kernels::reduce_outer_moments(c.input, matrix_of(p), c.statistics);
     }},
    {"reduce_nc_hw_moments", has_nc_hw_moments,
     [](const BatchNormProblem& p, const FindStatistics& c) {
         kernels::reduce_nc_hw_moments(c.input, p.planes, c.statistics);
     }},
    {"reduce", kernels::always, statistics_by_reduction},
};

// Mean and biased variance of every channel, and what follows from them, into what `statistics` has.
void find_statistics(const Tensor& input, kernels::ChannelStatistics statistics) {
    const at::TensorBase mean = statistics.running_mean, variance = statistics.running_variance;
    // The schema does not say that these are written.
    materialize(mean);
    materialize(variance);
    // Kernels take dense ones; what moved in a copy goes back.
    if (mean.defined()) statistics.running_mean = mean.contiguous();
    if (variance.defined()) statistics.running_variance = variance.contiguous();
    const FindStatistics call{input, statistics};
    kernels::launch_first("batch_norm", kStatistics, problem_of(input), call);
    if (!statistics.running_mean.is_same(mean)) Tensor(mean).copy_(Tensor(statistics.running_mean));
    if (!statistics.running_variance.is_same(variance))
        Tensor(variance).copy_(Tensor(statistics.running_variance));
}

// PyTorch checks them before it calls native_batch_norm, which others call, too.
void check_elements(const char* name, const Tensor& tensor, int64_t channels) {
    TORCH_CHECK(!tensor.defined() || tensor.numel() == channels, name, " should contain ", channels,
                " elements not ", tensor.numel());
}

// Writes the output; returns what the backward pass wants: mean and 1 / sqrt(variance + eps), empty in
// evaluation.
std::pair<Tensor, Tensor> forward(const Tensor& input_any, const BatchNorm& given, const Tensor& out_any) {
    kernels::check_floating(input_any.scalar_type(), "batch_norm");
    const int64_t channels = input_any.size(1);
    check_elements("running_mean", given.running_mean, channels);
    check_elements("running_var", given.running_variance, channels);
    check_elements("weight", given.weight, channels);
    check_elements("bias", given.bias, channels);
    check_norm_dtypes(input_any, {given.weight, given.bias, given.running_mean, given.running_variance});
    const at::MemoryFormat format = format_of(input_any);
    const Tensor input = input_any.contiguous(format);
    const Tensor out =
        out_any.is_contiguous(format) ? out_any : at::empty_like(input, out_any.options(), format);
    ChannelNorm norm = shape_of(input);
    norm.weight = dense(given.weight);
    norm.bias = dense(given.bias);
    Tensor save_mean = empty_floats(input, 0), save_rstd = empty_floats(input, 0);
    if (given.training) {
        const Tensor variance = empty_floats(input, input.size(1));
        save_mean = empty_floats(input, input.size(1));
        save_rstd = empty_floats(input, input.size(1));
        const auto n = static_cast<double>(samples(input));
        find_statistics(input, {save_mean, variance, save_rstd, given.running_mean, given.running_variance,
                                given.eps, given.momentum, n / (n - 1)});
        norm.mean = save_mean;
        norm.deviation = save_rstd;
    } else {
        TORCH_CHECK(given.running_mean.defined() && given.running_variance.defined(),
                    "running_mean and running_var must be defined in evaluation mode");
        norm.mean = dense(given.running_mean);
        norm.deviation = dense(given.running_variance);
        norm.variance = true;
        norm.eps = given.eps;
    }
    kernels::channel_norm_forward(norm, input, out);
    if (!out.is_same(out_any)) out_any.copy_(out);
    return {save_mean, save_rstd};
}

ThreeOut forward_out(const Tensor& input, const BatchNorm& norm, Tensor& out, Tensor& save_mean,
                     Tensor& save_rstd) {
    at::native::resize_output(out, input.sizes());
    auto [mean, rstd] = forward(input, norm, out);
    at::native::resize_output(save_mean, mean.sizes());
    at::native::resize_output(save_rstd, rstd.sizes());
    save_mean.copy_(mean);
    save_rstd.copy_(rstd);
    return {out, save_mean, save_rstd};
}

// A channel's statistic for every element.
Tensor spread(const Tensor& statistic, const Tensor& input) {
    c10::SmallVector<int64_t, 6> shape(static_cast<size_t>(input.dim()), 1);
    shape[1] = input.size(1);
    return statistic.view(shape).expand(input.sizes());
}

// rstd of running variances.
Tensor fixed_rstd(const Tensor& variance, double eps) {
    Tensor rstd = empty_floats(variance, variance.numel());
    kernels::ChannelStatistics statistics;
    statistics.variance = variance.contiguous();
    statistics.rstd = rstd;
    statistics.eps = eps;
    kernels::channel_norm_statistics(statistics);
    return rstd;
}

// Sums of grad and of its products with the normalized input.
struct SumGradients {
    const Tensor &grad, &input, &mean, &rstd, &products, &sums;
};

BatchNormProblem problem_of(const SumGradients& call) {
    BatchNormProblem problem = problem_of(call.input);
    problem.grad_type = call.grad.scalar_type();
    problem.grad_address = kernels::address(call.grad);
    problem.float_statistics = call.mean.scalar_type() == at::kFloat && call.rstd.scalar_type() == at::kFloat;
    return problem;
}

bool has_nc_hw_gradients(const BatchNormProblem& p, const kernels::RouteDevice& device) {
    return p.float_statistics &&
           kernels::supports_reduce_nc_hw_moments(p.type, p.address, p.planes, device) &&
           kernels::supports_reduce_nc_hw_moments(p.grad_type, p.grad_address, p.planes, device);
}

constexpr kernels::Route<BatchNormProblem, const SumGradients> kBackward[] = {
    {"reduce_nc_hw_gradients", has_nc_hw_gradients,
     [](const BatchNormProblem& p, const SumGradients& c) {
         kernels::reduce_nc_hw_gradients(c.grad, c.input, p.planes, c.mean, c.rstd, c.products, c.sums);
     }},
    {"reduce", kernels::always,
     [](const BatchNormProblem&, const SumGradients& c) {
         kernels::reduce(rows::norm_gradients,
                         {c.grad, c.input, spread(c.mean, c.input), spread(c.rstd, c.input)},
                         all_but_channels(c.input), {c.products, c.sums});
     }},
};

// The gradient of a parameter from sums in float.
Tensor as_parameter(const Tensor& sums, const Tensor& weight, const Tensor& grad) {
    return sums.to(weight.defined() ? weight.scalar_type() : grad.scalar_type());
}

Three backward(const Tensor& grad_any, const Tensor& input_any, const std::optional<Tensor>& weight_opt,
               const Tensor& mean_any, const Tensor& rstd_any, bool train,
               const std::array<bool, 3>& wanted) {
    const at::MemoryFormat format = format_of(input_any);
    const Tensor input = input_any.contiguous(format), grad = grad_any.contiguous(format);
    const Tensor weight = dense(optional(weight_opt)), mean = dense(mean_any), rstd = dense(rstd_any);
    Tensor products, sums, grad_input, grad_weight, grad_bias;
    const bool needs_sums = wanted[1] || wanted[2] || (wanted[0] && train);
    if (needs_sums) {
        products = empty_floats(input, input.size(1));
        sums = empty_floats(input, input.size(1));
        const SumGradients call{grad, input, mean, rstd, products, sums};
        kernels::launch_first("batch_norm backward", kBackward, problem_of(call), call);
    }
    if (wanted[0]) {
        grad_input = at::empty_like(input, input.options(), format);
        ChannelNorm norm = shape_of(input);
        norm.weight = weight;
        norm.mean = mean;
        norm.deviation = rstd;
        if (train) {
            norm.sums = sums;
            norm.products = products;
            norm.inverse_size = 1.0 / static_cast<double>(samples(input));
        }
        kernels::channel_norm_backward(norm, grad, input, grad_input);
    }
    if (wanted[1]) grad_weight = as_parameter(products, weight, grad);
    if (wanted[2]) grad_bias = as_parameter(sums, weight, grad);
    return {grad_input, grad_weight, grad_bias};
}

}  // namespace

std::string to_text(const BatchNormProblem& p) {
    return c10::str(p.type, p.channels_last ? " channels last " : " ", p.planes.images, " x ",
                    p.planes.channels, " x ", p.planes.positions);
}

const char* batch_norm_statistics_route(const BatchNormProblem& problem, const kernels::RouteDevice& device) {
    return first_route(kStatistics, problem, device).name;
}

const char* batch_norm_backward_route(const BatchNormProblem& problem, const kernels::RouteDevice& device) {
    return first_route(kBackward, problem, device).name;
}

Three batch_norm(const Tensor& input, const BatchNorm& norm, ScalarType dtype) {
    Tensor out(
        at::detail::empty_mps(input.sizes(), input.options().dtype(dtype).memory_format(format_of(input))));
    auto [mean, rstd] = forward(input, norm, out);
    return {out, mean, rstd};
}

// -> (output, save_mean, save_invstd); the statistics are float32, and empty in evaluation.
ANYMPS_ROW(native_batch_norm,
           batch_norm(input, {weight, bias, running_mean, running_var, training, momentum, eps},
                      input.scalar_type()))
ANYMPS_ROW(native_batch_norm_out,
           forward_out(input, {weight, bias, running_mean, running_var, training, momentum, eps}, out,
                       save_mean, save_invstd))
ANYMPS_ROW(_native_batch_norm_legit,
           batch_norm(input, {weight, bias, running_mean, running_var, training, momentum, eps},
                      input.scalar_type()))
ANYMPS_ROW(_native_batch_norm_legit_out,
           forward_out(input, {weight, bias, running_mean, running_var, training, momentum, eps}, out,
                       save_mean, save_invstd))
ANYMPS_ROW(_native_batch_norm_legit_no_stats,
           batch_norm(input, {weight, bias, std::nullopt, std::nullopt, training, momentum, eps},
                      input.scalar_type()))
ANYMPS_ROW(_native_batch_norm_legit_no_stats_out,
           forward_out(input, {weight, bias, std::nullopt, std::nullopt, training, momentum, eps}, out,
                       save_mean, save_invstd))

// -> (output, save_mean, save_invstd, reserve); nothing needs reserving.
std::tuple<Tensor, Tensor, Tensor, Tensor> ANYMPS_FUNC(_batch_norm_with_update)(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    Tensor& running_mean, Tensor& running_var, double momentum, double eps) {
    auto [out, mean, rstd] = batch_norm(input, {weight, bias, running_mean, running_var, true, momentum, eps},
                                        input.scalar_type());
    return {out, mean, rstd, Tensor(at::detail::empty_mps({0}, input.options().dtype(at::kByte)))};
}

// PyTorch's own for all devices calls the CPU's kernel.
std::tuple<Tensor, Tensor, Tensor, Tensor> ANYMPS_FUNC(_batch_norm_no_update)(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var, double momentum,
    double eps) {
    auto [out, mean, rstd] = batch_norm(
        input, {weight, bias, running_mean, running_var, false, momentum, eps}, input.scalar_type());
    return {out, mean, rstd, Tensor(at::detail::empty_mps({0}, input.options().dtype(at::kByte)))};
}

std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> ANYMPS_FUNC(_batch_norm_with_update_out)(
    const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    Tensor& running_mean, Tensor& running_var, double momentum, double eps, Tensor& out, Tensor& save_mean,
    Tensor& save_invstd, Tensor& reserve) {
    forward_out(input, {weight, bias, running_mean, running_var, true, momentum, eps}, out, save_mean,
                save_invstd);
    return {out, save_mean, save_invstd, reserve};
}

// Mean and biased variance of every channel; the running averages move as in training.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(batch_norm_update_stats)(const Tensor& input,
                                                                const std::optional<Tensor>& running_mean,
                                                                const std::optional<Tensor>& running_var,
                                                                double momentum) {
    TORCH_CHECK(input.numel() > 0,
                "input tensor must have at least one element, but got input_sizes = ", input.sizes());
    Tensor mean = empty_floats(input, input.size(1)), variance = empty_floats(input, input.size(1));
    const auto n = static_cast<double>(samples(input));
    find_statistics(input, {mean, variance, Tensor(), optional(running_mean), optional(running_var), 0,
                            momentum, n / (n - 1)});
    return {mean, variance};
}

Three ANYMPS_FUNC(native_batch_norm_backward)(const Tensor& grad_out, const Tensor& input,
                                              const std::optional<Tensor>& weight,
                                              const std::optional<Tensor>& running_mean,
                                              const std::optional<Tensor>& running_var,
                                              const std::optional<Tensor>& save_mean,
                                              const std::optional<Tensor>& save_invstd, bool train,
                                              double eps, std::array<bool, 3> output_mask) {
    if (train) return backward(grad_out, input, weight, *save_mean, *save_invstd, true, output_mask);
    return backward(grad_out, input, weight, *running_mean, fixed_rstd(*running_var, eps), false,
                    output_mask);
}

ANYMPS_ROW(batch_norm_backward, native_batch_norm_backward(grad_out, input, weight, running_mean, running_var,
                                                           save_mean, save_var, update, eps, output_mask))

}  // namespace anymps::ops
