// Which kernels reductions, norms, softmax, sorts, copies and attention take, on devices that nobody here
// has.
#include <gtest/gtest.h>

#include <functional>
#include <string_view>
#include <vector>

#include "../vulkan/made_up_devices.h"
#include "kernels/channel_norm.h"
#include "kernels/copy_routes.h"
#include "kernels/group_gradients.h"
#include "kernels/reduction_launcher.h"
#include "ops/attention/attention.h"
#include "ops/norm/norm_routes.h"
#include "ops/softmax/softmax_routes.h"
#include "ops/sort/radix_sort.h"
#include "ops/sort/sort_order.h"

namespace anymps {
namespace {

using c10::ScalarType;
using kernels::RouteDevice;

const std::vector<vulkan::DeviceInfo>& devices() {
    static const std::vector<vulkan::DeviceInfo> kDevices = vulkan::made_up_devices();
    return kDevices;
}

RouteDevice device_of(std::string_view name) {
    for (const vulkan::DeviceInfo& device : devices())
        if (device.name == name) return kernels::route_device(device);
    ADD_FAILURE() << "no made-up device of the name " << name;
    return {};
}

RouteDevice hopper() {
    return device_of("NVIDIA Hopper H200");
}

// A route on the software driver, and another one on every GPU.
void expect(const char* software, const char* gpu,
            const std::function<const char*(const RouteDevice&)>& route) {
    for (const vulkan::DeviceInfo& device : devices()) {
        SCOPED_TRACE(device.name);
        EXPECT_STREQ(route(kernels::route_device(device)), device.is_software ? software : gpu);
    }
}

kernels::ReductionProblem reduction(uint64_t rows, uint64_t count, int64_t row_bytes, int64_t step_bytes) {
    kernels::ReductionProblem p;
    p.sums = true;
    p.rows = rows;
    p.count = count;
    p.kept.push_back({static_cast<int64_t>(rows), {row_bytes}});
    p.kept[0].stride[kernels::kResultSlot] = 4;
    p.reduced.push_back({static_cast<int64_t>(count), {step_bytes}});
    return p;
}

auto route_of(const kernels::ReductionProblem& problem) {
    return [problem](const RouteDevice& config) { return kernels::reduction_route(problem, config); };
}

TEST(LaunchConfig, IsOfTheKindOfDevice) {
    const RouteDevice software = device_of("software"), gpu = hopper();
    EXPECT_TRUE(software.software);
    EXPECT_EQ(software.workgroup, 8u);
    EXPECT_EQ(software.target_groups, 64u);
    EXPECT_EQ(software.min_chunk, 16384u);
    EXPECT_EQ(software.prefetch_loads, 1u);
    EXPECT_EQ(gpu.workgroup, 256u);
    EXPECT_EQ(gpu.columns, 32u);
    EXPECT_EQ(gpu.target_groups, 1024u);
    EXPECT_EQ(gpu.min_chunk, 8192u);
    EXPECT_EQ(gpu.prefetch_loads, 4u);
}

TEST(ReductionRoutes, ColumnsOfAMatrix) {
    expect("columns", "reduce_outer", route_of(reduction(1024, 4096, 4, 4096)));
    expect("columns", "columns", route_of(reduction(1022, 4096, 4, 4088)));  // no whole words
    expect("columns", "columns", route_of(reduction(1024, 8, 4, 4096)));     // few rows
    kernels::ReductionProblem other = reduction(1024, 4096, 4, 4096);
    other.address = 8;
    expect("columns", "columns", route_of(other));
    other.address = 0;
    other.sums = false;
    expect("columns", "columns", route_of(other));
    other.sums = true;
    other.kept[0].stride[kernels::kResultSlot] = 8;
    expect("columns", "columns", route_of(other));
}

TEST(ReductionRoutes, Rows) {
    expect("rows", "reduce_small_inner", route_of(reduction(16384, 64, 256, 4)));
    expect("rows", "rows", route_of(reduction(16380, 64, 256, 4)));
    expect("rows", "rows", route_of(reduction(16384, 129, 516, 4)));
    kernels::ReductionProblem means = reduction(16384, 64, 256, 4);
    means.sums = false;
    expect("rows", "rows", route_of(means));
    means.means = true;
    expect("rows", "reduce_small_inner", route_of(means));
    kernels::ReductionProblem all = reduction(1, 1 << 20, 0, 4);
    all.kept.clear();
    expect("rows", "rows", route_of(all));
}

TEST(ReductionRoutes, ChannelsOfImages) {
    kernels::ReductionProblem p = reduction(64, 7 * 7 * 32, 7 * 7 * 4, 4);
    p.reduced[0].size = 7 * 7;
    p.reduced.push_back({32, {64 * 7 * 7 * 4}});
    expect("rows", "reduce_nc_hw", route_of(p));
    p.type = ScalarType::Half;  // words of eight, and strides of other elements
    expect("rows", "rows", route_of(p));
    for (kernels::Extents* dims : {&p.kept, &p.reduced})
        for (kernels::Extent& extent : *dims) extent.stride[0] /= 2;
    expect("rows", "reduce_nc_hw", route_of(p));
    p.type = ScalarType::Int;
    expect("rows", "rows", route_of(p));
}

TEST(ReductionRoutes, FiguresAreOfTheProfile) {
    vulkan::DeviceInfo device = vulkan::made_up("NVIDIA Hopper H200");
    vulkan::DeviceProfile profile = *device.profile;
    profile.rows.small_inner_min_rows = 1 << 20;
    device.profile = &profile;
    const RouteDevice config = kernels::route_device(device);
    EXPECT_STREQ(kernels::reduction_route(reduction(16384, 64, 256, 4), config), "rows");
}

TEST(NormRoutes, StatisticsOfBatchNorm) {
    const auto route = [](ops::BatchNormProblem p) {
        return [p](const RouteDevice& config) { return ops::batch_norm_statistics_route(p, config); };
    };
    expect("reduce", "reduce_outer_moments", route({ScalarType::Half, 0, true, {4096, 64, 1}}));
    expect("reduce", "reduce", route({ScalarType::Half, 4, true, {4096, 64, 1}}));
    expect("reduce", "reduce", route({ScalarType::Half, 0, true, {4096, 63, 1}}));
    expect("reduce", "reduce_nc_hw_moments", route({ScalarType::Float, 0, false, {32, 64, 49}}));
    expect("reduce", "reduce", route({ScalarType::Float, 0, false, {32, 64, 56 * 56}}));
    expect("reduce", "reduce", route({ScalarType::Float, 0, false, {32, 63, 49}}));
}

TEST(NormRoutes, GradientsOfBatchNorm) {
    ops::BatchNormProblem p{ScalarType::Float, 0, false, {32, 64, 49}, ScalarType::Half};
    const auto route = [&](const RouteDevice& config) { return ops::batch_norm_backward_route(p, config); };
    expect("reduce", "reduce_nc_hw_gradients", route);
    p.grad_address = 4;
    expect("reduce", "reduce", route);
    p.grad_address = 0;
    p.float_statistics = false;
    expect("reduce", "reduce", route);
}

TEST(NormRoutes, GradientsOfGroupNorm) {
    kernels::GroupShape shape{ScalarType::Float, ScalarType::Float, true, 0, 0, 64 * 32, 64, 4, 32};
    const auto route = [&](const RouteDevice& config) {
        return ops::group_norm_backward_route(shape, config);
    };
    expect("reduce, channel_norm", "group_gradients", route);
    shape.size = 28 * 60;  // as many words as seven a thread, which Intel's compiler has no registers for
    EXPECT_STREQ(route(hopper()), "group_gradients");
    EXPECT_STREQ(route(device_of("Intel Xe-HPG A770")), "reduce, channel_norm");
    shape.size = 28 * 256;
    expect("reduce, channel_norm", "reduce, channel_norm", route);
    shape.size = 64;
    shape.grad_type = ScalarType::Half;
    expect("reduce, channel_norm", "reduce, channel_norm", route);
    shape.type = ScalarType::BFloat16;  // as autocast has it: a gradient of 32 bits
    shape.grad_type = ScalarType::Float;
    expect("reduce, channel_norm", "group_gradients", route);
}

TEST(NormRoutes, LayerNorm) {
    ops::LayerNormProblem p{ScalarType::Half, 100, 512, true, true};
    const auto route = [&](const RouteDevice& config) { return ops::layer_norm_route(p, config); };
    expect("row_team", "persistent_subgroup", route);
    p.size = 2048;  // eight words of each of 32 lanes
    EXPECT_STREQ(route(hopper()), "persistent_subgroup");
    EXPECT_STREQ(route(device_of("Intel Xe-HPG A770")), "row_team");
    p.size = 2056;
    EXPECT_STREQ(route(hopper()), "row_team");
    p.size = 512;
    p.contiguous_vectors = false;
    expect("row_team", "row_team", route);
}

TEST(NormRoutes, GradientsOfLayerNorm) {
    ops::LayerNormGradients p{ScalarType::Half, 1024, 1024, true, true, true, true};
    const auto route = [&](const RouteDevice& config) { return ops::layer_norm_backward_route(p, config); };
    expect("row_team, reduce", "at_once", route);
    p.rows = 1023;
    expect("row_team, reduce", "row_team, reduce", route);
    p.rows = 1024;
    p.size = 1028;
    expect("row_team, reduce", "row_team, reduce", route);
    p.size = 1024;
    p.parameters = false;
    expect("row_team, reduce", "row_team, reduce", route);
}

TEST(NormRoutes, ChannelsOfNeighbours) {
    EXPECT_STREQ(kernels::channel_norm_access({3, 56, 2 * 3 * 56}), "same_channel");
    EXPECT_STREQ(kernels::channel_norm_access({4, 49, 2 * 4 * 49}), "two_channels");
    EXPECT_STREQ(kernels::channel_norm_access({3, 49, 3 * 49}), "elements");
    EXPECT_STREQ(kernels::channel_norm_access({64, 1, 100 * 64}), "channels_last");
    EXPECT_STREQ(kernels::channel_norm_access({63, 1, 100 * 63}), "elements");
}

TEST(SoftmaxRoutes, ByLengthAndLayout) {
    ops::SoftmaxProblem p{ScalarType::Half, 64, 1024, false, true, true, true, true};
    const auto route = [&](const RouteDevice& config) { return ops::softmax_route(p, config); };
    expect("row_team", "persistent_subgroup", route);
    p.aligned = false;
    expect("row_team", "row_team", route);
    p.size = 8192;
    expect("row_team", "row_team", route);
    p.size = 8196;
    expect("row_team", "long_rows", route);
    p.size = 2049;
    expect("row_team", "long_rows", route);
    p.size = 2048;
    expect("row_team", "row_team", route);
    p.size = 8196;
    p.innermost = false;
    expect("row_team", "row_team", route);
    p = {ScalarType::Float, 64, 1024, true, true, true, true, true};
    expect("row_team", "row_team", route);
}

TEST(SortRoutes, ByLengthAndPlaces) {
    ops::SortProblem p{4, 100, 0, 100, false};
    const auto route = [&](const RouteDevice& config) { return ops::sort_route(p, config); };
    expect("merge", "merge", route);
    p.length = p.kept = 2048;
    expect("merge", "radix_tiles", route);
    p.length = p.kept = 100000;
    expect("merge", "radix_passes", route);
    p.kept = 10;
    expect("merge", "select_first", route);
    p.first = 500;
    p.kept = 1;
    expect("merge", "select_positions", route);
    p.descending = true;
    expect("merge", "order, take", route);
    EXPECT_EQ(ops::radix_tile(hopper()), 4096u);
    EXPECT_EQ(ops::radix_tile(device_of("Intel Xe-HPG A770")), 2048u);
}

TEST(SortRoutes, Orders) {
    ops::SortProblem p{1, 100, 0, 100, false};
    const auto route = [&](const RouteDevice& config) { return ops::sorted_order_route(p, config); };
    expect("merge", "merge", route);
    p.length = 2000;
    expect("merge", "radix_tiles", route);
    p.length = 5000;
    expect("merge", "radix_passes", route);
}

TEST(CopyRoutes, ByLayout) {
    using Numbers = std::vector<int64_t>;
    const Numbers shape{64, 64}, rows{4, 512}, columns{512, 4}, longs{8, 512}, long_columns{512, 8};
    kernels::CopyProblem p{ScalarType::Float, ScalarType::Float, shape, {rows, rows}};
    const auto route = [&](const RouteDevice& config) { return kernels::copy_route(p, config); };
    expect("words", "lines", route);
    p.address = {8, 0};
    expect("words", "words", route);
    p.storage = {4, 0};
    expect("bits", "bits", route);
    p.address = p.storage = {};
    p.strides[1] = columns;
    expect("bits", "transposed_words", route);
    p.address = {0, 2};
    expect("bits", "transposed", route);
    p.address = {};
    p.fits_32_bits = false;
    expect("bits", "bits", route);
    p.fits_32_bits = true;
    p.to = p.from = ScalarType::Long;
    p.strides = {longs, long_columns};
    expect("bits", "transposed", route);
    p.from = ScalarType::Float;
    expect("convert", "convert", route);
}

TEST(CopyRoutes, ByLengthOfLines) {
    std::vector<int64_t> shape{62, 64}, strides{4, 248};
    kernels::CopyProblem p{ScalarType::Float, ScalarType::Float, shape, {strides, strides}};
    const auto route = [&](const RouteDevice& config) { return kernels::copy_route(p, config); };
    expect("words", "words", route);
    shape[0] = 63;
    expect("bits", "bits", route);
    shape = {64, 0};
    expect("bits", "bits", route);
    p.shape = p.shape.slice(0, 1);
    expect("bits", "bits", route);
}

ops::AttentionProblem attention(int64_t queries, int64_t size, bool known = true) {
    ops::AttentionProblem p{ScalarType::Half, queries, 1024, size};
    p.layout = known ? [](ScalarType) { return gemm::FragmentLayout{.known = true}; }
                     : [](ScalarType) { return gemm::FragmentLayout{}; };
    return p;
}

TEST(AttentionRoutes, FewQueriesAreDecoded) {
    ops::AttentionProblem p = attention(8, 64);
    const auto route = [&](const RouteDevice& config) { return ops::attention_route(p, config); };
    expect("chunked", "decode", route);
    EXPECT_STREQ(ops::attention_backward_route(p, hopper()), "flash");
    p.dropout = true;
    EXPECT_STREQ(route(hopper()), "flash");
    p = attention(9, 64);
    EXPECT_STREQ(route(hopper()), "flash");
    p.strides_fit = false;
    expect("chunked", "chunked", route);
    p = attention(8, 2048);  // more than the registers of a subgroup of 32 hold
    EXPECT_STREQ(route(hopper()), "chunked");
}

TEST(AttentionRoutes, FlashIsForMatrixUnits) {
    const auto route = [](const char* device, const ops::AttentionProblem& p) {
        return std::string_view(ops::attention_route(p, device_of(device)));
    };
    ops::AttentionProblem p = attention(64, 128);
    EXPECT_EQ(route("NVIDIA Hopper H200", p), "flash");
    EXPECT_EQ(route("NVIDIA Turing RTX 2060", p), "flash");
    EXPECT_EQ(route("AMD RDNA2 navi21", p), "flash_simt");
    EXPECT_EQ(route("Intel Xe2 B580", p), "flash");  // in subgroups of 32
    EXPECT_EQ(route("NVIDIA Hopper H200", attention(64, 129)), "chunked");
    p.type = ScalarType::BFloat16;
    EXPECT_EQ(route("NVIDIA Hopper H200", p), "flash");
    EXPECT_EQ(route("NVIDIA Turing RTX 2060", p), "flash_simt");
    // Staged fragments take more shared memory.
    EXPECT_EQ(route("other GPU", attention(64, 128)), "flash");
    EXPECT_EQ(route("other GPU", attention(64, 128, false)), "chunked");
    EXPECT_EQ(route("other GPU", attention(64, 64, false)), "flash");
}

TEST(AttentionRoutes, FlashBySimtIsForFloatAndForNoMatrixUnits) {
    const auto routes = [](const char* device, const ops::AttentionProblem& p) {
        return std::pair(std::string(ops::attention_route(p, device_of(device))),
                         std::string(ops::attention_backward_route(p, device_of(device))));
    };
    const std::pair<std::string, std::string> simt{"flash_simt", "flash_simt"}, chunked{"chunked", "chunked"};
    ops::AttentionProblem p = attention(64, 64);
    p.type = ScalarType::Float;
    EXPECT_EQ(routes("NVIDIA Hopper H200", p), std::pair(simt.first, chunked.second));
    EXPECT_EQ(routes("AMD RDNA2 navi21", p), simt);
    p.causal = true;
    EXPECT_EQ(routes("NVIDIA Hopper H200", p), simt);
    p.size = 128;
    EXPECT_EQ(routes("NVIDIA Hopper H200", p), std::pair(simt.first, chunked.second));
    p.causal = false;
    EXPECT_EQ(routes("NVIDIA Hopper H200", p), chunked);
    EXPECT_EQ(routes("AMD RDNA2 navi21", p), simt);
    p.size = 129;
    EXPECT_EQ(routes("AMD RDNA2 navi21", p), chunked);
}

}  // namespace
}  // namespace anymps
