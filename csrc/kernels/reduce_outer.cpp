#include "kernels/reduce_outer.h"

#include <ATen/mps/EmptyTensor.h>
#include <anymps/shaders/reduction/reduce_outer.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "kernels/launch_config.h"
#include "runtime/device.h"

namespace anymps::kernels {
namespace {

namespace shader = shaders::reduce_outer;
constexpr uint64_t kSide = shader::kSide, kPrefetch = shader::kPrefetch;
constexpr uint64_t kGroupsPerComputeUnit = 2;  // each ends with sums through shared memory

// In one block of sums, so that long chains of additions do not lose digits: 64 for each of a part's threads.
constexpr uint64_t kMaxOfThread = 64, kMinOfThread = 8;

}  // namespace

bool reduce_outer_moments(const at::TensorBase& in, uint64_t rows, uint64_t columns,
                          const ChannelStatistics& statistics) {
    constexpr uint64_t kWidth = 4;
    const LaunchConfig& t = launch_config();
    const uint64_t lines = t.workgroup / kSide, round = lines * kPrefetch;
    const auto item = static_cast<uint64_t>(in.element_size());
    if (t.software || lines == 0 || floats_of_word(in.scalar_type()) == 0) return false;
    if (address(in) % (kWidth * item) != 0) return false;
    if (rows < round || rows > UINT32_MAX / 2 || columns > UINT32_MAX / 2 || columns % kWidth != 0)
        return false;
    const uint64_t groups = ceil_div(columns, kSide * kWidth);
    const uint64_t wanted = std::max<uint64_t>(1, t.target_groups / groups);
    const uint64_t part =
        std::clamp(ceil_div(ceil_div(rows, wanted), round) * round, round, lines * kMaxOfThread);
    const uint64_t parts = ceil_div(rows, part);
    const auto words = static_cast<int64_t>(2 * parts * groups * kSide * kWidth);
    const at::TensorBase partials = at::detail::empty_mps({words}, at::kFloat, std::nullopt,
                                                          c10::Device(c10::kMPS), std::nullopt, std::nullopt);
    const shader::ColumnMomentArgs args{.in = address(in),
                                        .partials = address(partials),
                                        .row_stride = static_cast<int64_t>(item * columns),
                                        .rows = static_cast<uint32_t>(rows),
                                        .columns = static_cast<uint32_t>(columns),
                                        .part = static_cast<uint32_t>(part),
                                        .parts = static_cast<uint32_t>(parts),
                                        .groups = static_cast<uint32_t>(groups),
                                        .statistics = words_of(statistics)};
    shader::reduce_outer_moments
        .call({.workgroup = t.workgroup, .subgroup = t.subgroup, .type0 = code(in.scalar_type())})
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
    sums.dispatch(args, Grid::linear(groups * kWidth));
    return true;
}

bool reduce_outer(const at::TensorBase& in, const at::TensorBase& out, uint64_t rows, uint64_t columns,
                  int64_t row_stride) {
    const LaunchConfig& t = launch_config();
    const auto type = in.scalar_type();
    const uint64_t width = floats_of_word(type);  // columns of a word
    const uint64_t lines = t.workgroup / kSide, least = lines * kMinOfThread;
    if (t.software || lines == 0 || width == 0) return false;
    if (rows < least || rows > UINT32_MAX / 2 || columns > UINT32_MAX / 2 || columns % width != 0)
        return false;
    if (row_stride % 16 != 0 || row_stride <= 0 || address(in) % 16 != 0) return false;
    const uint64_t groups = ceil_div(columns, kSide * width);
    const uint64_t wanted =
        std::max<uint64_t>(1, kGroupsPerComputeUnit * runtime::device().info().compute_units() / groups);
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
    const shader::ReduceOuterArgs args{.in = address(in),
                                       .partials = address_or_0(partials),
                                       .out = address(out),
                                       .row_stride = row_stride,
                                       .rows = static_cast<uint32_t>(rows),
                                       .columns = static_cast<uint32_t>(columns),
                                       .part = static_cast<uint32_t>(part),
                                       .parts = static_cast<uint32_t>(parts),
                                       .groups = static_cast<uint32_t>(groups)};
    const bool is_float = type == at::kFloat;
    const shader::Constants constants{.workgroup = t.workgroup,
                                      .subgroup = t.subgroup,
                                      .type0 = code(type),
                                      .type1 = code(out.scalar_type())};
    (is_float ? shader::column_sums_f32 : shader::column_sums_16)
        .call(constants)
        .read(in)
        .write(parts > 1 ? partials : out)
        .dispatch(args, Grid::linear(parts * groups));
    if (parts == 1) return true;
    (is_float ? shader::reduce_outer_splits_f32 : shader::reduce_outer_splits_16)
        .call(constants)
        .read(partials)
        .write(out)
        .dispatch(args, Grid::linear(groups * width));
    return true;
}

}  // namespace anymps::kernels
