#include "ops/conv/phases.h"

#include <anymps/shaders/conv/conv_phases.h>

#include <bit>
#include <limits>
#include <numeric>

#include "gemm/tiles.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"

namespace anymps::ops {
namespace {

using kernels::FastDivider;

constexpr uint32_t kThreads = 256;

// Elements of a line of a phase that are one vector.
int64_t vector_of(const ConvTensor& x) {
    constexpr int64_t kMax = 4;
    return std::gcd(x.sizes[2] / 2, kMax);
}

}  // namespace

Phases::Phases(const ConvTensor& x, const ConvParams& params, int64_t groups, uint32_t present)
    : planes{kNoBuffer, x.memory.type},
      phase_stride(x.numel(groups) / (params.stride[1] * params.stride[2])),
      present(present) {}

bool Phases::suit(const vulkan::DeviceInfo& device, const ConvTensor& x, const ConvParams& params,
                  int64_t groups) {
    const auto type = x.memory.type;
    const bool known = type == DType::F32 || type == DType::F16 || type == DType::BF16;
    if (!known || !gemm::uses_shared_memory(device)) return false;
    const Dim3& stride = params.stride;
    if (stride[0] != 1 || stride[1] > 2 || stride[2] != 2) return false;
    if (x.sizes[1] % stride[1] != 0 || x.sizes[2] % 4 != 0 || !x.is_contiguous(groups)) return false;
    return x.numel(groups) <= std::numeric_limits<int32_t>::max() && x.memory.misalignment == 0;
}

void Phases::allocate(PlanBuilder& builder) {
    planes = builder.temporary({std::popcount(present), phase_stride}, planes.type);
}

void Phases::add_join(PlanBuilder& builder, const ConvTensor& x, const ConvParams& params) const {
    const int64_t vector = vector_of(x), item = planes.element_size();
    const int64_t count = phase_stride * params.stride[1] / vector;
    shaders::conv_phases::PhaseArgs args{};
    args.phase_bytes = static_cast<uint64_t>(phase_stride * item);
    args.across = FastDivider(static_cast<uint32_t>(x.sizes[2] / 2 / vector));
    args.count = static_cast<uint32_t>(count);
    args.present = present;
    PassWriter pass(builder, shaders::conv_phases::conv_phases,
                    {.workgroup = kThreads,
                     .item = static_cast<uint32_t>(item),
                     .vector = static_cast<uint32_t>(vector),
                     .stride = static_cast<uint32_t>(params.stride[1])});
    pass.address(args.to, x.memory).address(args.from, planes).read(planes).write(x.memory);
    pass.work(0, builder.sizes(x.memory));
    pass.dispatch(args, runtime::Grid::linear(kernels::ceil_div(args.count, kThreads)));
}

}  // namespace anymps::ops
