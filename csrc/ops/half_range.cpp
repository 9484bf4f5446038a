#include "ops/half_range.h"

#include <anymps/shaders/half_range.h>

namespace anymps::ops {
runtime::ZeroedWords grid_of(const HalfChoice& choice, kernels::Grid grid) {
    const HalfRanges& ranges = *choice.ranges;
    const runtime::ZeroedWords result(1);
    shaders::half_range::HalfGridArgs args{};
    args.grid = result.address();
    args.ranges = ranges.address();
    args.count = static_cast<uint32_t>(ranges.count);
    args.fit = choice.fit;
    args.groups[0] = grid.x;
    args.groups[1] = grid.y;
    args.groups[2] = grid.z;
    auto call = shaders::half_range::half_grid.call({.workgroup = 1});
    ranges.read_by(call);
    call.write(result.address(), sizeof(args.groups)).dispatch(args, {1, 1, 1});
    return result;
}

}  // namespace anymps::ops
