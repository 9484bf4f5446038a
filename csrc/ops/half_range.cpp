#include "ops/half_range.h"

namespace anymps::ops {
namespace {

// As in shaders/half_range.slang.
struct HalfGridArgs {
    uint64_t grid, ranges;
    uint32_t count, fit, groups[3];
};

}  // namespace

runtime::ZeroedWords grid_of(const HalfChoice& choice, kernels::Grid grid) {
    const HalfRanges& ranges = *choice.ranges;
    const runtime::ZeroedWords result(1);
    HalfGridArgs args{};
    args.grid = result.address();
    args.ranges = ranges.address();
    args.count = static_cast<uint32_t>(ranges.count);
    args.fit = choice.fit;
    args.groups[0] = grid.x;
    args.groups[1] = grid.y;
    args.groups[2] = grid.z;
    kernels::KernelCall call("half_grid", {1});
    ranges.read_by(call);
    call.write(result.address(), sizeof(args.groups)).dispatch(args, {1, 1, 1});
    return result;
}

}  // namespace anymps::ops
