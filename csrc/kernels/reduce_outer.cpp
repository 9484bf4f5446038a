#include "kernels/reduce_outer.h"

#include <ATen/mps/EmptyTensor.h>
#include <anymps/shaders/reduction/reduce_outer.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "kernels/launch_config.h"
#include "vulkan/instance.h"

namespace anymps::kernels {
namespace {

namespace shader = shaders::reduce_outer;
constexpr uint64_t kSide = shader::kSide, kPrefetch = shader::kPrefetch;
constexpr uint64_t kGroupsPerComputeUnit = 2;  // each ends with sums through shared memory

// In one block of sums, so that long chains of additions do not lose digits: 64 for each of a part's threads.
constexpr uint64_t kMaxOfThread = 64, kMinOfThread = 8;

constexpr uint64_t kMomentWidth = 4;  // columns of a load of moments

// Rows that a workgroup reads at once.
uint64_t lines_of(const LaunchConfig& config) {
    return config.workgroup / kSide;
}

}  // namespace

bool supports_reduce_outer_moments(const Matrix& m, const RouteDevice& t) {
    if (t.software || lines_of(t) == 0 || floats_per_vector(m.type) == 0) return false;
    return m.address % (kMomentWidth * c10::elementSize(m.type)) == 0 && m.rows >= lines_of(t) * kPrefetch &&
           m.rows <= UINT32_MAX / 2 && m.columns <= UINT32_MAX / 2 && m.columns % kMomentWidth == 0;
}

bool supports_reduce_outer(const Matrix& m, const RouteDevice& t) {
    const uint64_t width = floats_per_vector(m.type);
    if (t.software || lines_of(t) == 0 || width == 0) return false;
    return m.rows >= lines_of(t) * kMinOfThread && m.rows <= UINT32_MAX / 2 && m.columns <= UINT32_MAX / 2 &&
           m.columns % width == 0 && m.row_stride % 16 == 0 && m.row_stride > 0 && m.address % 16 == 0;
}

void reduce_outer_moments(const at::TensorBase& in, const Matrix& m, const ChannelStatistics& statistics) {
    const LaunchConfig& t = launch_config();
    const uint64_t lines = lines_of(t), round = lines * kPrefetch, rows = m.rows, columns = m.columns;
    const uint64_t groups = ceil_div(columns, kSide * kMomentWidth);
    const uint64_t wanted = std::max<uint64_t>(1, t.target_groups / groups);
    const uint64_t part =
        std::clamp(ceil_div(ceil_div(rows, wanted), round) * round, round, lines * kMaxOfThread);
    const uint64_t parts = ceil_div(rows, part);
    const auto words = static_cast<int64_t>(2 * parts * groups * kSide * kMomentWidth);
    const at::TensorBase partials = at::detail::empty_mps({words}, at::kFloat, std::nullopt,
                                                          c10::Device(c10::kMPS), std::nullopt, std::nullopt);
    const shader::ColumnMomentArgs args{.in = m.address,
                                        .partials = address(partials),
                                        .row_stride = m.row_stride,
                                        .rows = static_cast<uint32_t>(rows),
                                        .columns = static_cast<uint32_t>(columns),
                                        .part = static_cast<uint32_t>(part),
                                        .parts = static_cast<uint32_t>(parts),
                                        .groups = static_cast<uint32_t>(groups),
                                        .statistics = words_of(statistics)};
    shader::reduce_outer_moments
        .call({.workgroup = t.workgroup, .subgroup = t.subgroup, .type0 = code(m.type)})
        .read(in)
        .write(partials)
        .dispatch(args, Grid::linear(parts * groups));
    auto sums = shader::reduce_outer_moment_splits.call({.workgroup = t.workgroup,
                                                         .subgroup = t.subgroup,
                                                         .type0 = code(at::kFloat),
                                                         .type3 = code_or_0(statistics.running_mean),
                                                         .type4 = code_or_0(statistics.running_variance)});
    sums.read(partials);
    write_statistics(sums, statistics);
    sums.dispatch(args, Grid::linear(groups * kMomentWidth));
}

void reduce_outer(const at::TensorBase& in, const Matrix& m, const at::TensorBase& out) {
    const LaunchConfig& t = launch_config();
    const uint64_t width = floats_per_vector(m.type), rows = m.rows, columns = m.columns;
    const uint64_t lines = lines_of(t), least = lines * kMinOfThread;
    const uint64_t groups = ceil_div(columns, kSide * width);
    const uint64_t wanted =
        std::max<uint64_t>(1, kGroupsPerComputeUnit * route_device().info->compute_units() / groups);
    // Few rows are one part, which needs no second kernel.
    const uint64_t part =
        rows < 4 * least ? rows : std::clamp(ceil_div(rows, wanted), least, lines * kMaxOfThread);
    const uint64_t parts = ceil_div(rows, part);
    const auto words = static_cast<int64_t>(parts * groups * kSide * width);
    at::TensorBase partials;
    if (parts > 1) {
        partials = at::detail::empty_mps({words}, at::kFloat, std::nullopt, c10::Device(c10::kMPS),
                                         std::nullopt, std::nullopt);
    }
    const shader::ReduceOuterArgs args{.in = m.address,
                                       .partials = address_or_0(partials),
                                       .out = address(out),
                                       .row_stride = m.row_stride,
                                       .rows = static_cast<uint32_t>(rows),
                                       .columns = static_cast<uint32_t>(columns),
                                       .part = static_cast<uint32_t>(part),
                                       .parts = static_cast<uint32_t>(parts),
                                       .groups = static_cast<uint32_t>(groups)};
    const bool is_float = m.type == at::kFloat;
    const shader::Constants constants{.workgroup = t.workgroup,
                                      .subgroup = t.subgroup,
                                      .type0 = code(m.type),
                                      .type1 = code(out.scalar_type())};
    (is_float ? shader::column_sums_f32 : shader::column_sums_16)
        .call(constants)
        .read(in)
        .write(parts > 1 ? partials : out)
        .dispatch(args, Grid::linear(parts * groups));
    if (parts == 1) return;
    (is_float ? shader::reduce_outer_splits_f32 : shader::reduce_outer_splits_16)
        .call(constants)
        .read(partials)
        .write(out)
        .dispatch(args, Grid::linear(groups * width));
}

}  // namespace anymps::kernels
