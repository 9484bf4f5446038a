#include "ops/half_range.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace anymps::ops {
namespace {

// As in shaders/half_range.slang.
struct HalfGridArgs {
    uint64_t grid, ranges;
    uint32_t count, fit, groups[3];
};

}  // namespace

HalfRanges::HalfRanges(int64_t count, at::TensorOptions options)
    : words(at::zeros({count, 2}, options.dtype(at::kInt))), count(count) {}

at::Tensor grid_of(const HalfChoice& choice, kernels::Grid grid) {
    const HalfRanges& ranges = *choice.ranges;
    const at::Tensor result = at::empty({3}, ranges.words.options());
    HalfGridArgs args{};
    args.grid = kernels::address(result);
    args.ranges = ranges.address();
    args.count = static_cast<uint32_t>(ranges.count);
    args.fit = choice.fit;
    args.groups[0] = grid.x;
    args.groups[1] = grid.y;
    args.groups[2] = grid.z;
    kernels::KernelCall("half_grid", {1}).read(ranges.words).write(result).dispatch(args, {1, 1, 1});
    return result;
}

}  // namespace anymps::ops
