#include "ops/resample/resample.h"

#include <anymps/shaders/resample/resample.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/same_dtype.h"
#include "runtime/dispatch_time.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::resample;
using shader::ResampleArgs;
using Axis = decltype(ResampleArgs::axes)::value_type;

constexpr size_t kMaxDims = std::tuple_size_v<decltype(ResampleArgs::dims)>;
constexpr uint32_t kNoAxis = 3;

// The most inputs that an output is made of.
uint32_t most_taps(ResampleMode mode, float scale) {
    switch (mode) {
        case ResampleMode::Linear:
            return 2;
        case ResampleMode::Cubic:
            return 4;
        case ResampleMode::LinearAntialias:
        case ResampleMode::CubicAntialias:
        case ResampleMode::LanczosAntialias: {
            const int width = mode == ResampleMode::LinearAntialias  ? 2
                              : mode == ResampleMode::CubicAntialias ? 4
                                                                     : 6;
            return static_cast<uint32_t>(std::ceil(width * std::max(scale, 1.0f)) + 2);
        }
        default:
            return 1;
    }
}

// Places tables of the taps after one another and returns their length in words. Nothing where they would be
// larger than the image, or there is nothing to put into them.
int64_t place_tables(std::span<Axis> axes, ResampleMode mode, bool backward, int64_t planes) {
    const bool single = most_taps(mode, 1) == 1;
    const bool reach = backward && mode != ResampleMode::Reflect;
    int64_t words = 0;
    for (Axis& axis : axes) {
        axis.span = most_taps(mode, axis.scale);
        axis.reach = static_cast<uint64_t>(words) * 4;
        if (reach) words += int64_t{2} * axis.input;
        axis.taps = static_cast<uint64_t>(words) * 4;
        // An even number of words, so that all lines of the other table begin at a multiple of 8 bytes.
        if (!single) words += (int64_t{axis.output} * (axis.span + 2) + 1) / 2 * 2;
    }
    int64_t image = planes;
    for (const Axis& axis : axes) image *= backward ? axis.input : axis.output;
    return words <= image ? words : 0;
}

// Lets a thread take four elements along a dimension that is not resampled; returns how many it takes.
uint32_t share_planes(ResampleArgs& args) {
    constexpr uint32_t kPlanes = 4, kMin = 1 << 18;  // fewer threads do not fill a GPU
    if (kernels::launch_config().software || args.count < kMin * kPlanes) return 1;
    for (uint32_t d = 0; d < args.ndim; ++d) {
        shader::ResampleDim& dim = args.dims[d];
        if (dim.axis != kNoAxis || dim.size.divisor % kPlanes != 0) continue;
        const uint32_t part = dim.size.divisor / kPlanes;
        // Neighbouring threads stay neighbours in memory.
        if (d == 0 && part < 32) continue;
        dim.size = kernels::FastDivider(part);
        args.plane_destination = part * dim.destination_stride;
        args.plane_source = part * dim.source_stride;
        args.count /= kPlanes;
        return kPlanes;
    }
    return 1;
}

}  // namespace

void resample(const at::Tensor& destination, const at::Tensor& source, ResampleMode mode,
              std::span<const ResampleAxis> axes, bool align_corners, bool backward) {
    if (destination.numel() == 0) return;
    check_same_dtype_as(source, destination);
    at::assert_no_internal_overlap(destination);
    // The parts of complex numbers are a dimension more.
    const bool complex = destination.is_complex();
    const at::Tensor to = complex ? at::view_as_real(destination) : destination;
    const at::Tensor from = complex ? at::view_as_real(source) : source;
    const int64_t resampled_end = destination.dim(),
                  resampled_begin = resampled_end - static_cast<int64_t>(axes.size());
    TORCH_CHECK(to.numel() <= std::numeric_limits<uint32_t>::max() &&
                    from.numel() <= std::numeric_limits<uint32_t>::max(),
                "The MPS backend resamples tensors of at most 2^32 - 1 elements, but got ", to.numel(),
                " from ", from.numel());
    ResampleArgs args{.destination = kernels::address(to),
                      .source = kernels::address(from),
                      .count = static_cast<uint32_t>(to.numel())};
    for (Axis& axis : args.axes) axis = {.input = 1, .output = 1, .scale = 1};
    std::array<int64_t, kMaxDims> order{};
    TORCH_INTERNAL_ASSERT(to.dim() <= static_cast<int64_t>(kMaxDims) && axes.size() <= 3);
    std::iota(order.begin(), order.begin() + to.dim(), 0);
    std::stable_sort(order.begin(), order.begin() + to.dim(), [&](int64_t a, int64_t b) {
        return to.stride(a) != to.stride(b) ? to.stride(a) < to.stride(b) : a > b;
    });
    const int64_t item = static_cast<int64_t>(to.element_size());
    for (int64_t k = 0; k < to.dim(); ++k) {
        const int64_t d = order[k];
        shader::ResampleDim& dim = args.dims[args.ndim++];
        dim.axis = kNoAxis;
        dim.size = kernels::FastDivider(static_cast<uint32_t>(to.size(d)));
        dim.destination_stride = to.stride(d) * item;
        if (d < resampled_begin || d >= resampled_end) {
            dim.source_stride = from.stride(d) * item;
            continue;
        }
        const ResampleAxis& axis = axes[d - resampled_begin];
        dim.axis = static_cast<uint32_t>(resampled_end - 1 - d);
        args.axes[dim.axis] = {.input = static_cast<uint32_t>(axis.input),
                               .output = static_cast<uint32_t>(axis.output),
                               .scale = axis.scale,
                               .pad = static_cast<int32_t>(axis.pad),
                               .source_stride = from.stride(d) * item};
    }
    const std::span<Axis> used(args.axes.data(), axes.size());
    int64_t planes = to.numel();
    for (int64_t d = resampled_begin; d < resampled_end; ++d) planes /= to.size(d);
    const bool single = most_taps(mode, 1) == 1, reach = backward && mode != ResampleMode::Reflect;
    const int64_t words = place_tables(used, mode, backward, planes);
    const at::Tensor tables = words > 0 ? at::empty({words}, to.options().dtype(at::kInt)) : at::Tensor();
    uint64_t lines = 0;
    for (Axis& axis : used) {
        axis.taps = words > 0 && !single ? axis.taps + kernels::address(tables) : 0;
        axis.reach = words > 0 && reach ? axis.reach + kernels::address(tables) : 0;
        lines += (axis.taps ? axis.output : 0) + (axis.reach ? axis.input : 0);
    }
    const uint32_t together = share_planes(args);
    const uint32_t workgroup = kernels::flat_workgroup();
    const shader::Constants constants{.workgroup = workgroup,
                                      .type = kernels::code(to.scalar_type()),
                                      .mode = static_cast<uint32_t>(mode),
                                      .axes = static_cast<uint32_t>(axes.size()),
                                      .align_corners = align_corners,
                                      .backward = backward,
                                      .planes = together,
                                      .tables = words > 0};
    if (words > 0) {
        shader::resample_tables.call(constants).write(tables).dispatch(args, kernels::flat_grid(lines));
    }
    constexpr double kOperationsPerTap = 10;
    double taps = kOperationsPerTap * static_cast<double>(planes);
    for (const Axis& axis : used) taps *= static_cast<double>(axis.output) * axis.span;
    runtime::note_dispatch({.operations = taps});
    shader::resample.call(constants).read(from).read(tables).write(to).dispatch(
        args, kernels::flat_grid(args.count));
}

}  // namespace anymps::ops
