#include "kernels/channel_norm.h"

#include <algorithm>
#include <array>

#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "kernels/team.h"

namespace anymps::kernels {

namespace {

// The twins of the structs in shaders/channel_norm.slang.
struct ChannelArgs {
    uint64_t x, y, mean, deviation, weight, bias, sums, products;
    FastDivider inner, channels, depth;
    uint32_t count;
    float eps, inverse_size;
};
static_assert(sizeof(ChannelArgs) == 112);

struct StatisticsArgs {
    StatisticsWords statistics;
    uint32_t count, pad = 0;
};

enum Flags : uint32_t {
    kWeight = 1,
    kBias = 2,
    kVariance = 4,
    kGroups = 8,
    kFixed = 16,
    kSameChannel = 32,
    kNeighbours = 64,
    kTwoChannels = 128
};

uint32_t workgroup() {
    return std::max(64u, tuning().workgroup);
}

// `last` is y's bias in the forward pass, the gradient of x in the backward pass.
void run(const char* kernel, const ChannelNorm& norm, const at::TensorBase& x, const at::TensorBase& y,
         const at::TensorBase& last, uint32_t flags, const at::TensorBase& written) {
    const bool same_channel = norm.inner % 4 == 0;
    const bool two_channels = !same_channel && norm.inner > 3 && y.numel() % 4 == 0;
    bool vector = same_channel || two_channels || (norm.inner == 1 && norm.channels % 4 == 0);
    const auto fours = [](const at::TensorBase& t) {
        return address_or_0(t) % static_cast<uint64_t>(4 * (t.defined() ? t.element_size() : 1)) == 0;
    };
    vector &= fours(x) && fours(y) && fours(written);
    const bool parameters = fours(norm.mean) && fours(norm.deviation) && fours(norm.weight) &&
                            (last.is_same(written) || fours(last)) && fours(norm.sums) &&
                            fours(norm.products);
    if (vector && norm.inner == 1 && !norm.depth && parameters) flags |= kNeighbours;
    flags |= (norm.weight.defined() ? kWeight : 0) | (norm.variance ? kVariance : 0) |
             (norm.depth ? kGroups : 0) | (same_channel ? kSameChannel : 0) |
             (two_channels ? kTwoChannels : 0);
    const uint32_t width = vector ? 4 : 1;
    KernelCall call(kernel, {workgroup(), 0, code(x.scalar_type()), code(norm.mean.scalar_type()),
                             code(norm.deviation.scalar_type()), code_or_0(norm.weight), code_or_0(last),
                             width, flags, code(y.scalar_type())});
    call.read(norm.mean).read(norm.deviation).read(norm.weight).read(norm.sums).read(norm.products);
    for (const at::TensorBase* tensor : {&x, &y, &last}) {
        tensor->is_same(written) ? call.write(*tensor) : call.read(*tensor);
    }
    ChannelArgs args{address_or_0(x),
                     address(y),
                     address(norm.mean),
                     address(norm.deviation),
                     address_or_0(norm.weight),
                     address_or_0(last),
                     address_or_0(norm.sums),
                     address_or_0(norm.products),
                     FastDivider(static_cast<uint32_t>(norm.inner)),
                     FastDivider(static_cast<uint32_t>(norm.channels)),
                     FastDivider(static_cast<uint32_t>(norm.depth)),
                     0,
                     static_cast<float>(norm.eps),
                     static_cast<float>(norm.inverse_size)};
    TORCH_CHECK(y.numel() < (int64_t{1} << 32), "normalisation of a tensor of ", y.numel(),
                " elements: the MPS backend counts to 2^32 - 1 here");
    args.count = static_cast<uint32_t>(y.numel());
    call.dispatch(args, Grid::linear(ceil_div(args.count, uint64_t{workgroup()} * width)));
}

}  // namespace

void channel_norm_forward(const ChannelNorm& norm, const at::TensorBase& x, const at::TensorBase& y) {
    if (x.numel() == 0) return;
    run("channel_norm_forward", norm, x, y, norm.bias, norm.bias.defined() ? kBias : 0u, y);
}

void channel_norm_backward(const ChannelNorm& norm, const at::TensorBase& grad, const at::TensorBase& x,
                           const at::TensorBase& grad_x) {
    if (x.numel() == 0) return;
    run("channel_norm_backward", norm, x, grad, grad_x, norm.sums.defined() ? 0u : kFixed, grad_x);
}

void channel_norm_statistics(const ChannelStatistics& s) {
    const auto count = static_cast<uint32_t>(s.variance.numel());
    if (count == 0) return;
    KernelCall call("channel_norm_statistics",
                    {workgroup(), 0, 0, 0, code(s.variance.scalar_type()), code_or_0(s.running_mean),
                     code_or_0(s.running_variance), 1, 0});
    call.read(s.mean).read(s.variance).write(s.rstd).write(s.running_mean).write(s.running_variance);
    call.dispatch(StatisticsArgs{words_of(s), count}, Grid::linear(ceil_div(count, workgroup())));
}

void write_statistics(KernelCall& call, const ChannelStatistics& s) {
    call.write(s.mean).write(s.variance).write(s.rstd).write(s.running_mean).write(s.running_variance);
}

StatisticsWords words_of(const ChannelStatistics& s) {
    return {address_or_0(s.mean),           address_or_0(s.variance),         address_or_0(s.rstd),
            address_or_0(s.running_mean),   address_or_0(s.running_variance), static_cast<float>(s.eps),
            static_cast<float>(s.momentum), static_cast<float>(s.correction)};
}

}  // namespace anymps::kernels
