#include "kernels/channel_norm.h"

#include <anymps/shaders/norm/channel_norm.h>

#include <algorithm>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "kernels/route.h"

namespace anymps::kernels {

namespace {

namespace shader = shaders::channel_norm;

uint32_t workgroup() {
    return std::max(64u, launch_config().workgroup);
}

// How a thread finds the channels of neighbouring elements: of four, where addresses allow it.
struct ChannelAccess {
    const char* name;
    bool (*supports)(const ChannelProblem&, const RouteDevice&);
    uint32_t flags;
    bool vectors = true;
};

constexpr ChannelAccess kAccesses[] = {
    {"same_channel", [](const ChannelProblem& p, const RouteDevice&) { return p.inner % 4 == 0; },
     shader::kSameChannel},
    {"two_channels",
     [](const ChannelProblem& p, const RouteDevice&) { return p.inner > 3 && p.count % 4 == 0; },
     shader::kTwoChannels},
    {"channels_last",
     [](const ChannelProblem& p, const RouteDevice&) { return p.inner == 1 && p.channels % 4 == 0; }, 0},
    {"elements", always, 0, false},
};

// What follows y, and the gradient by its result; undefined where nothing does.
struct Following {
    ChannelActivation activation{};
    at::TensorBase grad;
};

// `last` is y's bias, in the backward pass the gradient of x.
void run(const shader::ChannelKernel& kernel, const ChannelNorm& norm, const at::TensorBase& x,
         const at::TensorBase& y, const at::TensorBase& last, uint32_t flags, const at::TensorBase& written,
         const Following& following = {}) {
    const ChannelProblem problem{norm.channels, norm.inner, y.numel()};
    const ChannelAccess& access = choose("channel_norm", kAccesses, problem);
    bool vector = access.vectors;
    const auto fours = [](const at::TensorBase& t) {
        return address_or_0(t) % static_cast<uint64_t>(4 * (t.defined() ? t.element_size() : 1)) == 0;
    };
    vector &= fours(x) && fours(y) && fours(written) && fours(following.grad);
    const bool parameters = fours(norm.mean) && fours(norm.deviation) && fours(norm.weight) &&
                            (last.is_same(written) || fours(last)) && fours(norm.sums) &&
                            fours(norm.products);
    if (vector && norm.inner == 1 && !norm.depth && parameters) flags |= shader::kNeighbours;
    flags |= (norm.weight.defined() ? shader::kWeight : 0) | (norm.variance ? shader::kVariance : 0) |
             (norm.depth ? shader::kGroups : 0) | access.flags;
    const uint32_t width = vector ? 4 : 1;
    auto call = kernel.call({.workgroup = workgroup(),
                             .type = code(x.scalar_type()),
                             .mean_type = code(norm.mean.scalar_type()),
                             .deviation_type = code(norm.deviation.scalar_type()),
                             .weight_type = code_or_0(norm.weight),
                             .bias_type = code_or_0(last),
                             .vector = width,
                             .flags = flags,
                             .out_type = code(y.scalar_type()),
                             .activation = following.activation.code});
    call.read(norm.mean).read(norm.deviation).read(norm.weight).read(norm.sums).read(norm.products);
    call.read(following.grad);
    for (const at::TensorBase* tensor : {&x, &y, &last}) {
        tensor->is_same(written) ? call.write(*tensor) : call.read(*tensor);
    }
    shader::ChannelArgs args{.x = address_or_0(x),
                             .y = address(y),
                             .mean = address(norm.mean),
                             .deviation = address(norm.deviation),
                             .weight = address_or_0(norm.weight),
                             .bias = address_or_0(last),
                             .sums = address_or_0(norm.sums),
                             .products = address_or_0(norm.products),
                             .grad = address_or_0(following.grad),
                             .inner = FastDivider(static_cast<uint32_t>(norm.inner)),
                             .channels = FastDivider(static_cast<uint32_t>(norm.channels)),
                             .depth = FastDivider(static_cast<uint32_t>(norm.depth)),
                             .count = 0,
                             .eps = static_cast<float>(norm.eps),
                             .inverse_size = static_cast<float>(norm.inverse_size),
                             .parameters = following.activation.parameters};
    TORCH_CHECK(y.numel() < (int64_t{1} << 32), "normalisation of a tensor of ", y.numel(),
                " elements: the MPS backend counts to 2^32 - 1 here");
    args.count = static_cast<uint32_t>(y.numel());
    call.dispatch(args, Grid::linear(ceil_div(args.count, uint64_t{workgroup()} * width)));
}

}  // namespace

std::string to_text(const ChannelProblem& p) {
    return c10::str(p.count, " elements, ", p.channels, " channels of ", p.inner);
}

const char* channel_norm_access(const ChannelProblem& problem) {
    return first_route(kAccesses, problem, route_device()).name;
}

void channel_norm_forward(const ChannelNorm& norm, const at::TensorBase& x, const at::TensorBase& y) {
    if (x.numel() == 0) return;
    run(shader::channel_norm_forward, norm, x, y, norm.bias, norm.bias.defined() ? shader::kBias : 0u, y);
}

void channel_norm_backward(const ChannelNorm& norm, const at::TensorBase& grad, const at::TensorBase& x,
                           const at::TensorBase& grad_x) {
    if (x.numel() == 0) return;
    run(shader::channel_norm_backward, norm, x, grad, grad_x, norm.sums.defined() ? 0u : shader::kFixed,
        grad_x);
}

void channel_norm_activation_backward(const ChannelNorm& norm, const ChannelActivation& activation,
                                      const at::TensorBase& x, const at::TensorBase& grad,
                                      const at::TensorBase& grad_y) {
    if (x.numel() == 0) return;
    run(shader::channel_norm_activation_backward, norm, x, grad_y, norm.bias,
        norm.bias.defined() ? shader::kBias : 0u, grad_y, {activation, grad});
}

void channel_norm_statistics(const ChannelStatistics& s) {
    const auto count = static_cast<uint32_t>(s.variance.numel());
    if (count == 0) return;
    auto call = shader::channel_norm_statistics.call({.workgroup = workgroup(),
                                                      .deviation_type = code(s.variance.scalar_type()),
                                                      .weight_type = code_or_0(s.running_mean),
                                                      .bias_type = code_or_0(s.running_variance)});
    call.read(s.mean).read(s.variance).write(s.rstd).write(s.running_mean).write(s.running_variance);
    call.dispatch({.statistics = words_of(s), .count = count}, Grid::linear(ceil_div(count, workgroup())));
}

void write_statistics(KernelCall& call, const ChannelStatistics& s) {
    call.write(s.mean).write(s.variance).write(s.rstd).write(s.running_mean).write(s.running_variance);
}

StatisticsWords words_of(const ChannelStatistics& s) {
    return {.mean = address_or_0(s.mean),
            .variance = address_or_0(s.variance),
            .rstd = address_or_0(s.rstd),
            .running_mean = address_or_0(s.running_mean),
            .running_variance = address_or_0(s.running_variance),
            .eps = static_cast<float>(s.eps),
            .momentum = static_cast<float>(s.momentum),
            .correction = static_cast<float>(s.correction)};
}

}  // namespace anymps::kernels
