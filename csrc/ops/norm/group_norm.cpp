// Group norm and its gradients.
#include <anymps/ops/norm/group_norm_ops.h>
#include <anymps/ops/reduction_rows.h>

#include <ATen/mps/EmptyTensor.h>
#include <ATen/ops/group_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "kernels/channel_norm.h"
#include "kernels/group_gradients.h"
#include "kernels/route.h"
#include "ops/default_dispatch.h"
#include "ops/norm/group_norm.h"
#include "ops/norm/norm_dtypes.h"
#include "ops/norm/norm_routes.h"

namespace anymps::ops {

namespace {

using kernels::ChannelNorm;
using Three = std::tuple<Tensor, Tensor, Tensor>;

struct Groups {
    int64_t samples, channels, inner, groups;
    int64_t depth() const { return channels / groups; }
    int64_t statistics() const { return samples * groups; }
};

Tensor empty_floats(const Tensor& like, IntArrayRef shape) {
    return Tensor(at::detail::empty_mps(shape, like.options().dtype(at::kFloat)));
}

Tensor dense(const std::optional<Tensor>& tensor) {
    return tensor && tensor->defined() ? tensor->contiguous() : Tensor();
}

void check(const Tensor& input, const Tensor& weight, const Tensor& bias, const Groups& g) {
    TORCH_CHECK(g.groups > 0, "Expected num groups to be greater than 0, got ", g.groups);
    TORCH_CHECK(g.channels % g.groups == 0,
                "Expected number of channels in input to be divisible by num_groups, but got input of shape ",
                input.sizes(), " and num_groups=", g.groups);
    const auto is_parameter = [&](const Tensor& t) {
        return !t.defined() || (t.dim() == 1 && t.numel() == g.channels);
    };
    TORCH_CHECK(
        is_parameter(weight),
        "Expected weight to be a vector of size equal to the number of channels in input, but got weight of "
        "shape ",
        weight.sizes(), " and input of shape ", input.sizes());
    TORCH_CHECK(is_parameter(bias),
                "Expected bias to be a vector of size equal to the number of channels in input, but got bias "
                "of shape ",
                bias.sizes(), " and input of shape ", input.sizes());
}

ChannelNorm norm_of(const Groups& g, const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
    ChannelNorm norm{g.channels, g.inner, g.depth()};
    norm.mean = mean;
    norm.deviation = rstd;
    norm.weight = weight;
    return norm;
}

// Sums over the channels of each group of values (samples, channels), times the weight.
Tensor group_sums(const Tensor& values, const Tensor& weight, const Groups& g) {
    Tensor result = empty_floats(values, {g.statistics()});
    const Tensor view = values.view({g.samples, g.groups, g.depth()});
    const Tensor out = result.view({g.samples, g.groups});
    const auto dims = kernels::dim_mask(view, 2);
    if (weight.defined()) {
        const Tensor w = weight.view({1, g.groups, g.depth()}).expand(view.sizes());
        kernels::reduce(rows::dot, {view, w}, dims, {out});
    } else {
        kernels::reduce(rows::sum, view, dims, {out});
    }
    return result;
}

// Of contiguous tensors. Sums of grad and of its products with the normalized input are (samples, channels);
// grad_input may be undefined.
struct GroupBackward {
    const Groups& g;
    const Tensor &grad, &input, &mean, &rstd, &weight, &products, &sums, &grad_input;
};

using kernels::GroupShape;

GroupShape shape_of(const GroupBackward& call) {
    const auto count = [](int64_t n) { return static_cast<uint64_t>(n); };
    const auto is_float = [](const Tensor& t) { return t.scalar_type() == at::kFloat; };
    return {.type = call.input.scalar_type(),
            .grad_type = call.grad.scalar_type(),
            .float_statistics = is_float(call.mean) && is_float(call.rstd),
            .address = kernels::address(call.input),
            .grad_address = kernels::address(call.grad),
            .rows = count(call.g.samples * call.g.channels),
            .size = count(call.g.inner),
            .depth = count(call.g.depth()),
            .channels = count(call.g.channels)};
}

void backward_in_registers(const GroupShape& shape, const GroupBackward& c) {
    kernels::group_gradients(shape,
                             {c.grad, c.input, c.mean, c.rstd, c.weight, c.products, c.sums, c.grad_input});
}

void backward_by_reductions(const GroupShape&, const GroupBackward& c) {
    const Groups& g = c.g;
    const auto split = [&](const Tensor& t) { return t.view({g.samples, g.groups, g.depth(), g.inner}); };
    const auto spread = [&](const Tensor& t) {
        return t.view({g.samples, g.groups, 1, 1}).expand({g.samples, g.groups, g.depth(), g.inner});
    };
    const auto planes = [&](const Tensor& t) { return t.view({g.samples, g.groups, g.depth()}); };
    const Tensor x = split(c.input);
    kernels::reduce(rows::norm_gradients, {split(c.grad), x, spread(c.mean), spread(c.rstd)},
                    kernels::dim_mask(x, 3), {planes(c.products), planes(c.sums)});
    if (!c.grad_input.defined()) return;
    ChannelNorm norm = norm_of(g, c.mean, c.rstd, c.weight);
    norm.sums = group_sums(c.sums, c.weight, g);
    norm.products = group_sums(c.products, c.weight, g);
    norm.inverse_size = 1.0 / static_cast<double>(g.depth() * g.inner);
    kernels::channel_norm_backward(norm, c.grad, c.input, c.grad_input);
}

constexpr kernels::Route<GroupShape, const GroupBackward> kBackward[] = {
    {"group_gradients", kernels::supports_group_gradients, backward_in_registers},
    {"reduce, channel_norm", kernels::always, backward_by_reductions},
};

}  // namespace

const char* group_norm_backward_route(const GroupShape& shape, const kernels::RouteDevice& device) {
    return first_route(kBackward, shape, device).name;
}

Three group_norm(const Tensor& input_any, const std::optional<Tensor>& weight_opt,
                 const std::optional<Tensor>& bias_opt, int64_t N, int64_t C, int64_t HxW, int64_t group,
                 double eps, ScalarType dtype) {
    const Groups g{N, C, HxW, group};
    const Tensor weight = dense(weight_opt), bias = dense(bias_opt);
    check(input_any, weight, bias, g);
    check_norm_dtypes(input_any, {weight, bias});
    const Tensor input = input_any.contiguous();
    Tensor out(at::detail::empty_mps(input.sizes(), input.options().dtype(dtype)));
    Tensor mean = empty_floats(input, {N, group}), rstd = empty_floats(input, {N, group});
    const Tensor variance = empty_floats(input, {N, group});
    const Tensor view = input.view({N, group, g.depth() * HxW});
    kernels::reduce(rows::moments, view, kernels::dim_mask(view, 2), {variance, mean});
    kernels::ChannelStatistics statistics;
    statistics.variance = variance;
    statistics.rstd = rstd;
    statistics.eps = eps;
    kernels::channel_norm_statistics(statistics);
    ChannelNorm norm = norm_of(g, mean, rstd, weight);
    norm.bias = bias;
    kernels::channel_norm_forward(norm, input, out);
    return {out.contiguous(input_any.suggest_memory_format()), mean, rstd};
}

// input: (N, C, HxW). -> (output, mean, rstd); the output is channels-last where the input is, the statistics
// are (N, group), float32.
ANYMPS_ROW(native_group_norm, group_norm(input, weight, bias, N, C, HxW, group, eps, input.scalar_type()))

Three ANYMPS_FUNC(native_group_norm_backward)(const Tensor& grad_any, const Tensor& input_any,
                                              const Tensor& mean_any, const Tensor& rstd_any,
                                              const std::optional<Tensor>& weight_opt, int64_t N, int64_t C,
                                              int64_t HxW, int64_t group, std::array<bool, 3> output_mask) {
    const Groups g{N, C, HxW, group};
    if (input_any.numel() == 0) {  // the sums of no elements
        const Tensor& parameter = weight_opt && weight_opt->defined() ? *weight_opt : input_any;
        const auto zeros = [&](bool wanted, const Tensor& like, IntArrayRef sizes) {
            return wanted ? at::zeros(sizes, like.options()) : Tensor();
        };
        return {zeros(output_mask[0], input_any, input_any.sizes()), zeros(output_mask[1], parameter, {C}),
                zeros(output_mask[2], parameter, {C})};
    }
    const Tensor grad = grad_any.contiguous(), input = input_any.contiguous(), weight = dense(weight_opt);
    const Tensor mean = mean_any.contiguous(), rstd = rstd_any.contiguous();
    // Per sample and channel: sums of the gradient, and of its products with the normalised input.
    const Tensor products = empty_floats(input, {N, C}), sums = empty_floats(input, {N, C});
    Tensor grad_input, grad_weight, grad_bias;
    if (output_mask[0]) grad_input = Tensor(at::detail::empty_mps(input.sizes(), input.options()));
    const GroupBackward call{g, grad, input, mean, rstd, weight, products, sums, grad_input};
    kernels::launch_first("group_norm backward", kBackward, shape_of(call), call);
    const auto over_samples = [&](const Tensor& values) {
        Tensor result(at::detail::empty_mps({C}, (weight.defined() ? weight : input).options()));
        kernels::reduce(rows::sum, values, kernels::dim_mask(values, 0), {result});
        return result;
    };
    if (output_mask[1]) grad_weight = over_samples(products);
    if (output_mask[2]) grad_bias = over_samples(sums);
    return {grad_input, grad_weight, grad_bias};
}

namespace {

// PyTorch's own group_norm keeps channels-last on the CPU only.
Tensor channels_last_group_norm(const Tensor& input, int64_t groups, const std::optional<Tensor>& weight,
                                const std::optional<Tensor>& bias, double eps, bool cudnn_enabled) {
    const auto format = input.suggest_memory_format();
    if (format == MemoryFormat::Contiguous)
        return at::compositeimplicitautograd::group_norm(input, groups, weight, bias, eps, cudnn_enabled);
    const int64_t N = input.size(0), C = input.size(1);
    return std::get<0>(at::native_group_norm(input.contiguous(format), weight, bias, N, C,
                                             c10::multiply_integers(input.sizes().slice(2)), groups, eps));
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
    m.impl("group_norm", channels_last_group_norm);
}
TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    m.impl(
        "group_norm",
        TORCH_FN((
            DefaultDispatchOr<&channels_last_group_norm, &at::compositeimplicitautograd::group_norm>::call)));
}

}  // namespace

}  // namespace anymps::ops
