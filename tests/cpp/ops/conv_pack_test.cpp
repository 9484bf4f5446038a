// ops/conv/pack.h: images packed for matrix units, which the software drivers of CI do not have.
#include "ops/conv/pack.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "kernels/dtype.h"
#include "ops/conv/execute.h"

namespace anymps::ops {
namespace {

using at::Tensor;

// [outer, groups * channels, height, width] as [outer, positions, groups, padded channels].
Tensor expected(const Tensor& image, int64_t groups) {
    const int64_t channels = image.size(1) / groups;
    const Tensor split = image.reshape({image.size(0), groups, channels, -1}).permute({0, 3, 1, 2});
    return at::constant_pad_nd(split, {0, (8 - channels % 8) % 8});
}

// A copy on the device that begins `offset` elements behind an aligned address.
Tensor on_device(const Tensor& image, int64_t offset) {
    const Tensor memory = at::empty({image.numel() + offset}, image.options().device(at::kMPS));
    return memory.narrow(0, offset, image.numel()).view(image.sizes()).copy_(image);
}

// A copy of an activation in a form; undefined where it lies so already.
Tensor packed(const Tensor& device, int64_t groups, Form form) {
    ConvProblem problem;
    problem.groups = groups;
    problem.params.spatial = 2;
    problem.x = activation_of(device, groups, kX);
    PlanBuilder builder(problem, conv_device());
    const ConvTensor result = add_packed(builder, problem.x, form);
    if (result.memory.buffer == kX) return {};
    // The plan's own tensor as one that is given.
    const Tensor out = at::empty(builder.plan.temporaries[0].sizes,
                                 device.options().dtype(kernels::scalar_type_of(result.memory.type)));
    for (Pass& pass : builder.plan.passes) {
        for (auto& address : pass.addresses)
            if (address.buffer == result.memory.buffer) address.buffer = kImageOut;
        for (auto& access : pass.accesses)
            if (access.buffer == result.memory.buffer) access.buffer = kImageOut;
    }
    prepare(builder.plan);
    execute(builder.plan, {device, device, {}, {}, out, {}});
    return out;
}

void check(const Tensor& image, const Tensor& device, int64_t groups) {
    const Tensor result = packed(device, groups, Form::Plain);
    if (!result.defined()) return;
    EXPECT_TRUE(at::equal(result.cpu(), expected(image, groups)))
        << image.sizes() << " " << image.strides() << " of " << image.scalar_type() << ", " << groups
        << " groups, at " << device.storage_offset();
}

TEST(ConvPack, ImagesOfEveryAlignmentAndLayout) {
    for (const auto type : {at::kHalf, at::kFloat}) {
        for (const auto& [height, width] : {std::pair{8, 8}, {7, 7}, {6, 10}, {5, 6}}) {
            for (const int64_t channels : {3, 8, 20, 70}) {
                const Tensor image = at::randn({2, channels, height, width}).to(type);
                for (const int64_t offset : {0, 1, 2, 4}) check(image, on_device(image, offset), 1);
                if (channels % 2 == 0) check(image, on_device(image, 0), 2);
                const Tensor last = image.contiguous(at::MemoryFormat::ChannelsLast);
                check(last, last.to(at::kMPS), 1);
                const Tensor larger = at::randn({2, channels, height + 1, width + 3}).to(type);
                const auto inner = [&](const Tensor& t) {
                    return t.narrow(2, 1, height).narrow(3, 2, width);
                };
                check(inner(larger), inner(larger.to(at::kMPS)), 1);
            }
        }
    }
}

TEST(ConvPack, Bf16x2HoldsSixteenBits) {
    const Tensor image = at::randn({2, 12, 6, 6});
    const Tensor result = packed(image.to(at::kMPS), 1, Form::Bf16x2);
    // Of each vec8 the eight first parts, then the eight second ones, which are 2^8 times as large as they
    // count.
    const Tensor parts = result.cpu().view(at::kBFloat16).view({2, 36, 2, 2, 8}).to(at::kDouble);
    const Tensor sums = (parts.select(3, 0) + parts.select(3, 1) / 256).reshape({2, 36, 1, 16});
    const Tensor exact = expected(image, 1).to(at::kDouble);
    EXPECT_LE(((sums - exact).abs() / exact.abs().clamp_min(1e-30)).max().item().toDouble(), 0x1p-16);
}

}  // namespace
}  // namespace anymps::ops
