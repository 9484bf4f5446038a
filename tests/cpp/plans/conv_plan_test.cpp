// ops/conv/algorithms.h: plans on devices that are not there. What is expected was recorded where plans and
// dispatches were still made together; times on an H200 chose the algorithms of NVIDIA's.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "../vulkan/made_up_devices.h"
#include "ops/conv/algorithms.h"

namespace anymps::ops {
namespace {

using Names = std::vector<std::string>;

const vulkan::DeviceInfo kNvidiaLike = vulkan::made_up("NVIDIA Hopper H200"),
                         kAmdLike = vulkan::made_up("AMD RDNA3 navi31"),
                         kSoftware = vulkan::made_up("software"), kIntelLike = [] {
                             vulkan::DeviceInfo info = vulkan::made_up("Intel Xe-HPG A770");
                             info.cooperative_matrix = info.cooperative_matrix_bfloat16 = false;
                             info.profile = &vulkan::find_profile(info);
                             return info;
                         }();

gemm::FragmentLayout known(DType) {
    return {true, true, false, true, true};
}

gemm::FragmentLayout unknown(DType) {
    return {};
}

gemm::Plan by_model(const vulkan::DeviceInfo& device, const gemm::GemmProblem& problem, bool) {
    return gemm::plan_by_model(device, problem);
}

ConvPlan plan(const vulkan::DeviceInfo& info, const ConvProblem& problem) {
    return make_plan(problem, {info, info.vendor_id == kNvidiaLike.vendor_id ? known : unknown, by_model});
}

std::vector<int64_t> dense(const std::vector<int64_t>& sizes) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * sizes[i];
    return strides;
}

// A convolution of dense tensors, all of whose positions are padded alike.
struct Layer {
    int64_t batch, channels, filters, size, taps, stride = 1, groups = 1;
    DType type = DType::F16;

    ConvProblem problem() const {
        const int64_t padding = taps / 2, out = (size + 2 * padding - taps) / stride + 1;
        const std::vector<int64_t> x{batch, channels, size, size}, y{batch, filters, out, out},
            w{filters, channels / groups, taps, taps};
        ConvProblem p;
        p.params = ConvParams(std::array{stride}, std::array{padding}, std::array{int64_t{1}}, 2);
        p.groups = groups;
        p.tf32 = true;
        p.x = activation_of({kX, type}, x, dense(x), groups);
        p.y = activation_of({kY, type}, y, dense(y), groups);
        p.w = filter_of({kW, type}, w, dense(w), groups);
        return p;
    }
    ConvProblem fprop() const {
        ConvProblem p = problem();
        p.fprop = true;
        p.image_out = p.y;
        p.image_out.memory.buffer = kImageOut;
        return p;
    }
    ConvProblem backward(bool dgrad) const {
        ConvProblem p = problem();
        p.wgrad = true;
        p.filter_out = p.w;
        p.filter_out.memory.buffer = kFilterOut;
        if (!dgrad) return p;
        p.dgrad = true;
        p.image_out = p.x;
        p.image_out.memory.buffer = kImageOut;
        return p;
    }
};

// "kernel workgroups", without the number of kernels whose workgroups share nothing.
Names passes(const ConvPlan& plan) {
    Names names;
    for (const Pass& pass : plan.passes) {
        const bool flat = pass.kernel.starts_with("conv_reduce") || pass.kernel == "conv_depthwise";
        if (pass.kind == Pass::Kind::Zero) names.emplace_back("zero");
        if (pass.kind == Pass::Kind::SumSplits) names.emplace_back("sum");
        if (pass.kind != Pass::Kind::Dispatch) continue;
        names.push_back(pass.kernel + (flat ? "" : ' ' + std::to_string(pass.grid.x * pass.grid.y)));
    }
    return names;
}

constexpr Layer kThree{.batch = 32, .channels = 64, .filters = 64, .size = 56, .taps = 3};
constexpr Layer kUp{.batch = 32, .channels = 64, .filters = 256, .size = 56, .taps = 1, .type = DType::F32};
constexpr Layer kDown{
    .batch = 32, .channels = 1024, .filters = 256, .size = 14, .taps = 1, .type = DType::F32};
constexpr Layer kStrided{.batch = 32, .channels = 64, .filters = 128, .size = 56, .taps = 3, .stride = 2};
constexpr Layer kDepthwise{
    .batch = 32, .channels = 144, .filters = 144, .size = 56, .taps = 3, .groups = 144, .type = DType::BF16};

TEST(ConvPlan, ThreeByThreeIsBlockedWhereFragmentsAreKnown) {
    const ConvPlan nvidia = plan(kNvidiaLike, kThree.fprop());
    EXPECT_EQ(nvidia.algorithms, Names{"fprop nosmem"});
    EXPECT_EQ(passes(nvidia),
              (Names{"conv_pack_8 3136", "conv_nosmem_pack 4", "conv_nosmem_64x128_f16 784"}));
    EXPECT_EQ(passes(plan(kAmdLike, kThree.fprop())),
              (Names{"conv_pack_8 64", "conv_pack_8 3136", "conv_matrix_64x128x32_f16 784"}));
    EXPECT_EQ(passes(plan(kIntelLike, kThree.fprop())), Names{"conv_shared_64x64_f32 1568"});
    EXPECT_EQ(passes(plan(kSoftware, kThree.fprop())), Names{"conv_register_f32 12544"});
}

TEST(ConvPlan, OneByOneOfFloats) {
    const ConvPlan up = plan(kNvidiaLike, kUp.fprop()), down = plan(kNvidiaLike, kDown.fprop());
    EXPECT_EQ(passes(up), (Names{"conv_nosmem_pack 16", "conv_resident_b64_bf16x2_256x128_bf16 784"}));
    EXPECT_EQ(up.amax_count, 0);
    EXPECT_EQ(down.algorithms, Names{"fprop nosmem"});
    EXPECT_EQ(passes(down), (Names{"conv_amax_4 132", "conv_amax_4 16", "conv_nosmem_pack 256",
                                   "conv_nosmem_64x128_amax 196", "conv_shared_128x128_f32 98"}));
    EXPECT_EQ(down.amax_count, 2);
    EXPECT_EQ(down.passes[3].when, When::Fused);
    EXPECT_EQ(down.passes[4].when, When::Fallback);
}

TEST(ConvPlan, WithoutTf32FloatsKeepAllBits) {
    ConvProblem exact = kDown.fprop();
    exact.tf32 = false;
    const ConvPlan nvidia = plan(kNvidiaLike, exact);
    EXPECT_EQ(nvidia.amax_count, 0);
    for (const Pass& pass : nvidia.passes) {
        EXPECT_EQ(pass.when, When::Always);
        EXPECT_FALSE(pass.kernel.ends_with("_f16") || pass.kernel.ends_with("_bf16x2")) << pass.kernel;
    }
}

TEST(ConvPlan, PhasesOfAStridedGradientAreJoined) {
    const ConvPlan nvidia = plan(kNvidiaLike, kStrided.backward(true));
    EXPECT_EQ(nvidia.algorithms, (Names{"dgrad nosmem", "wgrad staged"}));
    EXPECT_EQ(passes(nvidia),
              (Names{"conv_pack_8 1600", "conv_nosmem_pack 8", "conv_nosmem_pack 8", "conv_nosmem_pack 8",
                     "conv_nosmem_pack 8", "conv_nosmem_64x128_f16 784", "conv_phases 3136",
                     "conv_pack_8 3136", "conv_matrix_128x128x32_f16 245", "conv_reduce_split_k_f32"}));
    // The tiles read y as the gradient of x has packed it.
    EXPECT_EQ(
        passes(plan(kAmdLike, kStrided.backward(true))),
        (Names{"conv_pack_8 36", "conv_pack_8 1600", "conv_matrix_64x128x32_f16 784", "conv_phases 3136",
               "conv_pack_8 3136", "conv_matrix_128x128x32_f16 190", "conv_reduce_split_k_f32"}));
    EXPECT_EQ(passes(plan(kSoftware, kStrided.backward(true))),
              (Names{"conv_register_f32 12544", "conv_register_f32 1008", "conv_reduce_split_k_f32"}));
}

TEST(ConvPlan, GradientsOfWeights) {
    EXPECT_EQ(passes(plan(kNvidiaLike, kUp.backward(false))),
              (Names{"conv_wgrad_1x1_64x64_floats 132", "conv_reduce_split_k_f32"}));
    EXPECT_EQ(plan(kNvidiaLike, kThree.backward(false)).algorithms, Names{"wgrad wgrad_3x3"});
    EXPECT_EQ(plan(kAmdLike, kThree.backward(false)).algorithms, Names{"wgrad staged"});
    EXPECT_EQ(passes(plan(kIntelLike, kUp.backward(false))),
              (Names{"conv_shared_64x64_f32 128", "conv_reduce_split_k_f32"}));
}

// Activations in the order of NHWC.
ConvProblem channels_last(ConvProblem p) {
    for (ConvTensor* t : {&p.x, &p.y, &p.image_out}) {
        t->channel_stride = 1;
        t->group_stride = t->channels;
        t->strides[2] = t->channels * p.groups;
        t->strides[1] = t->strides[2] * t->sizes[2];
    }
    return p;
}

TEST(ConvPlan, DepthwiseInStrips) {
    EXPECT_EQ(passes(plan(kNvidiaLike, kDepthwise.backward(true))),
              (Names{"conv_depthwise_3_stride1 7056", "conv_depthwise_weight_3_stride1 432",
                     "conv_depthwise_weight_sum 41"}));
    EXPECT_EQ(passes(plan(kAmdLike, kDepthwise.backward(true))),
              (Names{"conv_depthwise_3_stride1 7056", "conv_depthwise_weight_3_stride1 288",
                     "conv_depthwise_weight_sum 41"}));
    EXPECT_EQ(passes(plan(kSoftware, kDepthwise.backward(true))),
              (Names{"conv_depthwise_3_stride1 28224", "conv_depthwise_weight_3_stride1 9",
                     "conv_depthwise_weight_sum 41"}));
    Layer strided = kDepthwise;
    strided.stride = 2;
    strided.taps = 5;
    const ConvPlan p = plan(kNvidiaLike, strided.backward(true));
    EXPECT_EQ(p.passes[0].kernel, "conv_depthwise_5_stride2_gradient");
    EXPECT_EQ(p.passes[1].kernel, "conv_depthwise_weight_5_stride2");
}

TEST(ConvPlan, DepthwiseByWordsWhereFourChannelsAreAligned) {
    ConvProblem p = channels_last(kDepthwise.fprop());
    p.x.memory.misalignment = 8;
    EXPECT_EQ(plan(kNvidiaLike, p).passes[0].kernel, "conv_depthwise_3_stride1_words");
    p.x.memory.misalignment = 4;
    EXPECT_EQ(plan(kNvidiaLike, p).passes[0].kernel, "conv_depthwise_3_stride1");
}

TEST(ConvPlan, DepthwiseWithoutStrips) {
    Layer two = kDepthwise, even = kDepthwise;
    two.filters *= 2;
    even.taps = 4;
    for (const auto* device : {&kNvidiaLike, &kAmdLike, &kIntelLike}) {
        EXPECT_EQ(passes(plan(*device, two.backward(true))),
                  (Names{"conv_depthwise", "conv_depthwise_weight 864", "sum"}));
    }
    for (const Layer& layer : {two, even}) {
        for (const std::string& algorithm : plan(kSoftware, layer.backward(true)).algorithms)
            EXPECT_TRUE(algorithm.ends_with(" in_place")) << algorithm;
    }
    // Dilated strides are no strips.
    ConvProblem dilated = kDepthwise.fprop();
    dilated.params.stride = {1, 2, 2};
    dilated.params.dilation = {1, 2, 2};
    EXPECT_EQ(plan(kNvidiaLike, dilated).algorithms, Names{"fprop depthwise"});
    EXPECT_EQ(plan(kNvidiaLike, dilated).passes[0].kernel, "conv_depthwise");
    EXPECT_EQ(plan(kSoftware, dilated).algorithms, Names{"fprop in_place"});
}

TEST(ConvPlan, PositionsWithoutTapsAreZero) {
    const Layer sparse{.batch = 2, .channels = 8, .filters = 8, .size = 15, .taps = 1, .stride = 2};
    EXPECT_EQ(passes(plan(kIntelLike, sparse.backward(true)))[0], "zero");
}

// Every temporary is written before it is read, and dies once, behind its last use.
TEST(ConvPlan, LivesOfTemporaries) {
    for (const auto* device : {&kNvidiaLike, &kAmdLike, &kIntelLike, &kSoftware}) {
        for (const Layer& layer : {kThree, kUp, kDown, kStrided, kDepthwise}) {
            for (const ConvProblem& problem : {layer.fprop(), layer.backward(true), layer.backward(false)}) {
                const ConvPlan p = plan(*device, problem);
                std::vector<int> state(kGiven + p.temporaries.size());  // 1: written, 2: dead
                for (const Pass& pass : p.passes) {
                    for (const auto& access : pass.accesses) {
                        if (access.buffer < kGiven) continue;
                        if (access.write && state[access.buffer] == 0) state[access.buffer] = 1;
                        EXPECT_EQ(state[access.buffer], 1) << pass.kernel;
                    }
                    for (const int32_t buffer : pass.last_of) {
                        EXPECT_EQ(state[buffer], 1);
                        state[buffer] = 2;
                    }
                }
            }
        }
    }
}

TEST(ConvProblem, EqualProblemsHashAlikeAndOthersDoNot) {
    const ConvProblem p = kThree.fprop();
    EXPECT_EQ(p.hash(), kThree.fprop().hash());
    ConvProblem aligned = p, exact = p, bias = p;
    aligned.x.memory.misalignment = 2;
    exact.tf32 = false;
    bias.bias = {kBias, DType::F16};
    for (const ConvProblem& other : {kThree.backward(true), kStrided.fprop(), aligned, exact, bias}) {
        EXPECT_FALSE(p == other);
        EXPECT_NE(p.hash(), other.hash());
    }
}

}  // namespace
}  // namespace anymps::ops
