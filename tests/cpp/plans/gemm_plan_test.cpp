// Plans of GEMMs on a made-up device of every profile: no device and no PyTorch.
#include "gemm/gemm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "gemm/tile_table.h"
#include "made_up_devices.h"

namespace anymps::gemm {
namespace {

using vulkan::DeviceInfo;
using vulkan::made_up;
using vulkan::made_up_devices;
using Kind = GemmPassKind;

const DeviceInfo& h200() {
    static const DeviceInfo device = made_up("NVIDIA Hopper H200");
    return device;
}

GemmCall call_of(uint64_t batch, uint64_t m, uint64_t n, uint64_t k, Arithmetic arithmetic) {
    GemmCall call;
    call.problem.batch = batch;
    call.problem.m = m;
    call.problem.n = n;
    call.problem.k = k;
    call.problem.arithmetic = arithmetic;
    const bool sixteen_bits = arithmetic == Arithmetic::F16 || arithmetic == Arithmetic::BF16;
    call.item_bytes = sixteen_bits ? 2 : 4;
    call.a.vectorizable = call.b.vectorizable = true;
    return call;
}

GemmPlan plan_of(const DeviceInfo& device, const GemmCall& call) {
    return make_gemm_plan(device, call, plan_by_model(device, call.problem));
}

std::vector<Kind> kinds_of(const GemmPlan& plan) {
    std::vector<Kind> kinds;
    for (const GemmPass& pass : plan.passes()) kinds.push_back(pass.kind);
    return kinds;
}

std::vector<GemmCall> calls(const DeviceInfo& device) {
    constexpr uint64_t kSizes[] = {1, 4, 32, 100, 768, 4096};
    std::vector<GemmCall> result;
    for (const uint64_t m : kSizes) {
        for (const uint64_t n : kSizes) {
            for (const uint64_t k : {0, 1, 64, 1000, 8192}) {
                for (const bool f16 : {false, true}) {
                    for (const uint32_t terms : {1u, 3u}) {
                        GemmCall call =
                            call_of(1 + m % 3, m, n, k, choose_arithmetic(device, f16, false, !f16, terms));
                        call.bf16_terms = terms;
                        call.problem.may_swap = !uses_shared_memory(device);
                        if (!f16 && multiplies_scaled_f16(device) && std::min(m, n) >= 16 &&
                            worth_scaled_f16(device, call.problem.batch, m, n, k))
                            call.problem.arithmetic = terms == 3 ? Arithmetic::F16x2 : Arithmetic::F16x1;
                        result.push_back(call);
                    }
                }
            }
        }
    }
    return result;
}

TEST(GemmPlan, EveryProblemHasAPlanThatTheDeviceCanRun) {
    for (const DeviceInfo& device : made_up_devices()) {
        for (const GemmCall& call : calls(device)) {
            const GemmPlan plan = plan_of(device, call);
            SCOPED_TRACE(device.name + ": " + to_text(call, plan));
            const Plan& product = plan.product;
            ASSERT_NE(product.tile, nullptr);
            EXPECT_LE(product.tile->shared_bytes, device.shared_memory_bytes);
            EXPECT_LE(product.tile->registers, device.profile->registers);
            EXPECT_GE(uint64_t{product.split_k} * product.k_per_split, call.problem.k);
            if (product.tile->kind == TileKind::Block) {
                const char* dtype = suffix(product.arithmetic);
                const std::string kernel = std::string("matmul_") + product.tile->kernel + "_";
                EXPECT_FALSE(device.profile->excludes(kernel + (dtype ? dtype : "f32")));
                if (call.problem.k > 0) EXPECT_GT(product.seconds, 0);
            }
            EXPECT_EQ(std::ranges::count(kinds_of(plan), Kind::Gemm), 1);
            EXPECT_EQ(std::ranges::count(kinds_of(plan), Kind::ReduceSplitK), product.split_k > 1);
            EXPECT_EQ(std::ranges::count(kinds_of(plan), Kind::FallbackGemm),
                      is_scaled_f16(product.arithmetic));
            EXPECT_GT(plan_groups(device, product, call.problem.batch, call.problem.m, call.problem.n), 0u);
        }
    }
}

TEST(GemmPlan, LongSumsOfFewResultsFillTheDevice) {
    for (const DeviceInfo& device : made_up_devices()) {
        GemmProblem dot;
        dot.m = dot.n = 1;
        dot.k_contiguous = true;
        const auto slices = [&](uint64_t k) {
            dot.k = k;
            return plan_by_model(device, dot).split_k;
        };
        EXPECT_GE(slices(1 << 28), std::min<uint64_t>(2048, 30 * device.compute_units())) << device.name;
        EXPECT_LE(slices(1 << 20), std::max<uint64_t>(8, 2 * device.compute_units())) << device.name;
    }
}

// A software driver's subgroups are its vectors, whose width the user may choose.
TEST(GemmPlan, AWorkgroupHoldsASubgroup) {
    for (DeviceInfo device : made_up_devices()) {
        for (const uint32_t lanes : {8, 16, 32, 64, 128}) {
            device.subgroup_size = lanes;
            EXPECT_GE(subgroup_tile(device).workgroup, lanes) << device.name;
            EXPECT_EQ(subgroup_tile(device).workgroup % lanes, 0) << device.name;
        }
    }
}

TEST(GemmPlan, CandidatesBeginWithTheModelsPlan) {
    for (const DeviceInfo& device : made_up_devices()) {
        const GemmCall call = call_of(1, 768, 768, 4096, choose_arithmetic(device, true, false, false, 3));
        const std::vector<Plan> plans = candidate_plans(device, call.problem);
        ASSERT_GT(plans.size(), 2u) << device.name;
        EXPECT_EQ(to_text(call.problem, plans[0]),
                  to_text(call.problem, plan_by_model(device, call.problem)));
    }
}

TEST(GemmPlan, TilesOfWholeKAreNotSplit) {
    int seen = 0;
    for (const DeviceInfo& device : made_up_devices()) {
        for (const auto algo : {ConvAlgo::NoSmemBlocked, ConvAlgo::NoSmemFlat, ConvAlgo::NoSmemBf16x2}) {
            for (const uint64_t k : {64, 128}) {
                GemmProblem problem = call_of(1, 64, 3136, k, Arithmetic::BF16).problem;
                problem.convolution = true;
                problem.algo = algo;
                for (const Plan& plan : candidate_plans(device, problem)) {
                    if (!plan.tile->whole_k) continue;
                    ++seen;
                    EXPECT_EQ(plan.split_k, 1) << device.name << ": " << plan.tile->kernel;
                    EXPECT_EQ(plan.tail_split, 1) << device.name << ": " << plan.tile->kernel;
                }
            }
        }
    }
    EXPECT_GT(seen, 0);
}

// What a change of a table or a cost changes on purpose is changed here too.
TEST(GemmPlan, ChoicesOfFamilies) {
    const auto text = [](const char* device, const GemmCall& call) {
        const std::string line = to_text(call.problem, plan_by_model(made_up(device), call.problem));
        return line.substr(line.find(": ") + 2);
    };
    GemmCall f16 = call_of(1, 4096, 4096, 4096, Arithmetic::F16);
    EXPECT_EQ(text("NVIDIA Hopper H200", f16), "matrix_128x128x32_f16 128 x 128, split-K 1");
    EXPECT_EQ(text("AMD RDNA3 navi31", f16), "matrix_128x128x32_f16 128 x 128, split-K 1");
    f16.problem.may_pack = true;
    EXPECT_EQ(text("NVIDIA Hopper H200", f16), "fragments_128x128_f16 128 x 128, split-K 1");
    GemmCall few_columns = call_of(1, 4096, 192, 4096, Arithmetic::F16);
    few_columns.problem.vectorizable = true;
    EXPECT_EQ(text("NVIDIA Hopper H200", few_columns), "pipelined_128x192_f16 128 x 192, split-K 4");
    EXPECT_EQ(text("AMD RDNA3 navi31", few_columns), "matrix_128x128x32_f16 128 x 128, split-K 3");
    const GemmCall f32 = call_of(1, 2048, 2048, 2048, Arithmetic::Simt);
    EXPECT_EQ(text("NVIDIA Turing RTX 2060", f32), "shared_128x128 128 x 128, split-K 1");
    EXPECT_EQ(text("Intel Gen9 UHD", f32), "shared_128x128 128 x 128, split-K 1");
    EXPECT_EQ(text("Intel Xe2 B580", f32), "shared_128x128 128 x 128, split-K 1");
    EXPECT_EQ(text("software", f32), "register 16 x 32, split-K 1");
    GemmCall one_row = call_of(1, 1, 4096, 4096, Arithmetic::F16);
    one_row.problem.n_contiguous = true;
    EXPECT_EQ(text("NVIDIA Hopper H200", one_row), "vector_1 1 x 16, split-K 1");
}

// Gradients of weights, of few results and long sums: no packing pass where adding up slices costs less. The
// times are those of an H200, which measured 137 and 40 us.
TEST(GemmPlan, WeightGradientsAreNotPacked) {
    const auto plan = [](const char* device, uint64_t m, uint64_t n) {
        GemmCall call = call_of(1, m, n, 8192, Arithmetic::BF16);
        call.problem.may_pack = call.problem.vectorizable = true;
        return plan_of(made_up(device), call);
    };
    for (const char* device : {"NVIDIA H100 SXM", "NVIDIA Hopper H200"}) {
        for (const auto& [m, n] : {std::pair{768, 3072}, {3072, 768}, {768, 2304}, {768, 768}})
            EXPECT_EQ(kinds_of(plan(device, m, n)), (std::vector{Kind::Gemm, Kind::ReduceSplitK}))
                << device << ", " << m << " x " << n;
    }
    EXPECT_NEAR(plan("NVIDIA Hopper H200", 3072, 768).product.seconds, 137e-6, 4e-6);
    EXPECT_NEAR(plan("NVIDIA Hopper H200", 768, 768).product.seconds, 40e-6, 4e-6);
}

// Rows that no store of four results begins at: an H100 took 4.6 ms for these 50,257 columns with tiles that
// store from registers, and 2.4 ms with those whose results pass through shared memory.
TEST(GemmPlan, OddRowsOfResultsPassThroughSharedMemory) {
    const auto tiles = [](uint64_t n) {
        GemmProblem problem = call_of(1, 8192, n, 768, Arithmetic::BF16).problem;
        problem.may_pack = true;
        std::vector<Plan> plans = candidate_plans(h200(), problem);
        return std::ranges::count_if(plans, [](const Plan& plan) { return plan.tile->in_place; });
    };
    EXPECT_EQ(tiles(50257), 0);
    EXPECT_GT(tiles(50304), 0);
}

TEST(GemmPlan, ScaledF16PacksThenFallsBack) {
    GemmCall call = call_of(1, 1024, 1024, 1024, Arithmetic::F16x2);
    call.problem.may_split_k = false;
    const GemmPlan rows = plan_of(h200(), call);
    EXPECT_EQ(kinds_of(rows),
              (std::vector{Kind::PackScaledRowsA, Kind::PackScaledRowsB, Kind::Gemm, Kind::FallbackGemm}));
    // 1024 norms, then two halves a number.
    EXPECT_EQ(rows.passes()[0].bytes, 1024 * 4 + 1024 * 1024 * 4u);
    EXPECT_EQ(rows.passes()[2].bytes, rows.flag_count * 4);
    call.problem.may_pack = true;
    const GemmPlan fragments = plan_of(h200(), call);
    EXPECT_EQ(kinds_of(fragments), (std::vector{Kind::PackScaledFragments, Kind::Gemm, Kind::FallbackGemm}));
    EXPECT_EQ(fragments.flagged->m, 128u);
    EXPECT_EQ(fragments.flagged->n, 128u);
    EXPECT_EQ(fragments.flag_count, 64u);
    EXPECT_EQ(fragments.fallback.arithmetic, Arithmetic::BF16x3);
    EXPECT_EQ(fragments.fallback.split_k, fragments.product.split_k);
}

TEST(GemmPlan, SplitKHasAWorkspaceAndAReduction) {
    const GemmCall call = call_of(1, 256, 256, 65536, Arithmetic::BF16);
    const GemmPlan plan = plan_of(h200(), call);
    ASSERT_GT(plan.product.split_k, 1u);
    EXPECT_EQ(kinds_of(plan), (std::vector{Kind::Gemm, Kind::ReduceSplitK}));
    EXPECT_EQ(plan.workspace_bytes(), plan.product.split_k * 256 * 256 * 4u);
    GemmCall whole = call;
    whole.problem.may_split_k = false;
    EXPECT_EQ(kinds_of(plan_of(h200(), whole)), std::vector{Kind::Gemm});
    whole.sum_batch = true;
    EXPECT_EQ(kinds_of(plan_of(h200(), whole)), (std::vector{Kind::Gemm, Kind::ReduceSplitK}));
}

TEST(GemmPlan, SlicesAreShortWhereComputeUnitsWouldBeIdle) {
    // Layers of 50 rows: a dozen tiles for 132 compute units.
    for (const auto [n, k] : {std::pair{720u, 720u}, {320u, 720u}, {720u, 320u}, {720u, 2048u}}) {
        const GemmPlan plan = plan_of(h200(), call_of(1, 50, n, k, Arithmetic::BF16x3));
        SCOPED_TRACE(to_text(call_of(1, 50, n, k, Arithmetic::BF16x3), plan));
        EXPECT_LE(plan.product.k_per_split, 256);
        EXPECT_GE(plan.product.k_per_split, 64);
    }
    // One slice of a full device is as long as before.
    const GemmPlan full = plan_of(h200(), call_of(1, 2048, 768, 768, Arithmetic::BF16x3));
    EXPECT_GE(full.product.k_per_split, 256);
}

TEST(GemmPlan, UnalignedOperandsOfLargeProductsAreCopied) {
    GemmCall call = call_of(1, 4095, 4095, 4095, Arithmetic::F16);
    call.a.vectorizable = call.b.vectorizable = false;
    call.b.along_rows = true;
    const GemmPlan plan = plan_of(h200(), call);
    EXPECT_EQ(kinds_of(plan), (std::vector{Kind::CopyA, Kind::CopyB, Kind::Gemm}));
    EXPECT_EQ(plan.passes()[0].bytes, 4095 * 4096 * 2u);
    call.a.vectorizable = true;
    EXPECT_EQ(kinds_of(plan_of(h200(), call)), (std::vector{Kind::CopyB, Kind::Gemm}));
    GemmCall few = call_of(1, 4095, 511, 4095, Arithmetic::F16);
    few.a.vectorizable = few.b.vectorizable = false;
    EXPECT_EQ(std::ranges::count(kinds_of(plan_of(h200(), few)), Kind::CopyA), 0);
    EXPECT_EQ(std::ranges::count(kinds_of(plan_of(h200(), few)), Kind::CopyB), 1);
}

TEST(GemmPlan, FragmentsAreOfWholePanels) {
    GemmCall call = call_of(4, 1000, 1000, 1000, Arithmetic::F16);
    call.problem.may_pack = true;
    call.b.broadcast = true;
    const GemmPlan plan = plan_of(h200(), call);
    ASSERT_EQ(plan.passes()[0].kind, Kind::PackFragments);
    const uint64_t panel = plan.product.tile->panel, b_rows = (1024 + panel - 1) / panel * panel;
    EXPECT_EQ(plan.passes()[0].bytes, (4 * 1024 * 1024 + b_rows * 1024 + 64 * 16) * 2u);
}

TEST(GemmPlan, MeasuredRatesChangeWhatIsWorthIt) {
    DeviceInfo device = h200();
    const GemmCall call = call_of(1, 256, 256, 8192, Arithmetic::F16);
    const uint32_t before = plan_by_model(device, call.problem).split_k;
    ASSERT_GT(before, 1u);
    vulkan::DeviceRates rates = device.profile->rates;
    rates.launch *= 1000;  // a reduction costs more than it saves
    const vulkan::DeviceProfile slow_launches = with_rates(*device.profile, rates);
    device.profile = &slow_launches;
    EXPECT_EQ(plan_by_model(device, call.problem).split_k, 1u);
    EXPECT_FALSE(worth_scaled_f16(device, 1, 1024, 1024, 1024));
    EXPECT_FALSE(worth_aligned_copy(slow_launches, 4096, 1e10));
    EXPECT_TRUE(worth_aligned_copy(*h200().profile, 4096, 1e10));
}

TEST(GemmPlan, ScaledF16IsForLargeProducts) {
    EXPECT_TRUE(worth_scaled_f16(h200(), 1, 1024, 1024, 1024));
    EXPECT_FALSE(worth_scaled_f16(h200(), 1, 512, 512, 512));
    EXPECT_FALSE(worth_scaled_f16(h200(), 1, 4096, 4096, 63));
    EXPECT_FALSE(worth_scaled_f16(h200(), 1, 4096, 4096, 1 << 23));
    EXPECT_FALSE(worth_scaled_f16(made_up("software"), 1, 4096, 4096, 0));
    EXPECT_TRUE(worth_scaled_f16(made_up("software"), 1, 1, 1, 1));
}

}  // namespace
}  // namespace anymps::gemm
