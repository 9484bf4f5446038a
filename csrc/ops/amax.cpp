#include "ops/amax.h"

#include <anymps/shaders/conditional_grid.h>

namespace anymps::ops {
runtime::ZeroedWords conditional_grid(const ScaleCondition& condition, kernels::Grid grid) {
    const AmaxStates& amaxes = *condition.amaxes;
    const runtime::ZeroedWords result(1);
    shaders::conditional_grid::ConditionalGridArgs args{};
    args.grid = result.address();
    args.amaxes = amaxes.address();
    args.count = static_cast<uint32_t>(amaxes.count);
    args.scale_valid = condition.scale_valid;
    args.groups[0] = grid.x;
    args.groups[1] = grid.y;
    args.groups[2] = grid.z;
    auto call = shaders::conditional_grid::conditional_grid.call({.workgroup = 1});
    amaxes.read_by(call);
    call.write(result.address(), sizeof(args.groups)).dispatch(args, {1, 1, 1});
    return result;
}

}  // namespace anymps::ops
