#include "ops/resample/resample.h"

#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/kernel_call.h"

namespace anymps::ops {
namespace {

constexpr size_t kMostDims = 6;
constexpr uint32_t kNoAxis = 3;

struct Axis {
    uint32_t input = 1, output = 1;
    float scale = 1;
    int32_t pad = 0;
    int64_t source_stride = 0;
};

struct Dim {
    kernels::FastDivider size;
    uint32_t axis = kNoAxis;
    int64_t destination_stride = 0, source_stride = 0;
};

struct ResampleArgs {
    uint64_t destination, source;
    uint32_t count, ndim;
    std::array<Axis, 3> axes;
    std::array<Dim, kMostDims> dims;
};
static_assert(sizeof(Axis) == 24 && sizeof(Dim) == 32);

}  // namespace

void resample(const at::Tensor& destination, const at::Tensor& source, ResampleMode mode,
              std::span<const ResampleAxis> axes, bool align_corners, bool backward) {
    if (destination.numel() == 0) return;
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
    ResampleArgs args{
        kernels::address(to), kernels::address(from), static_cast<uint32_t>(to.numel()), 0, {}, {}};
    std::array<int64_t, kMostDims> order{};
    TORCH_INTERNAL_ASSERT(to.dim() <= static_cast<int64_t>(kMostDims) && axes.size() <= 3);
    std::iota(order.begin(), order.begin() + to.dim(), 0);
    std::stable_sort(order.begin(), order.begin() + to.dim(), [&](int64_t a, int64_t b) {
        return to.stride(a) != to.stride(b) ? to.stride(a) < to.stride(b) : a > b;
    });
    const int64_t item = static_cast<int64_t>(to.element_size());
    for (int64_t k = 0; k < to.dim(); ++k) {
        const int64_t d = order[k];
        Dim& dim = args.dims[args.ndim++];
        dim.size = kernels::FastDivider(static_cast<uint32_t>(to.size(d)));
        dim.destination_stride = to.stride(d) * item;
        if (d < resampled_begin || d >= resampled_end) {
            dim.source_stride = from.stride(d) * item;
            continue;
        }
        const ResampleAxis& axis = axes[d - resampled_begin];
        dim.axis = static_cast<uint32_t>(resampled_end - 1 - d);
        args.axes[dim.axis] = {static_cast<uint32_t>(axis.input), static_cast<uint32_t>(axis.output),
                               axis.scale, static_cast<int32_t>(axis.pad), from.stride(d) * item};
    }
    const uint32_t workgroup = kernels::flat_workgroup();
    kernels::KernelCall("resample",
                        {workgroup, 0, kernels::code(to.scalar_type()), static_cast<uint32_t>(mode),
                         static_cast<uint32_t>(axes.size()), align_corners, backward})
        .read(from)
        .write(to)
        .dispatch_pointer(args, kernels::flat_grid(args.count));
}

}  // namespace anymps::ops
