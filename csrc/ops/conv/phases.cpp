#include "ops/conv/phases.h"

#include <anymps/shaders/conv_phases.h>

#include <ATen/ops/empty.h>

#include <bit>
#include <limits>
#include <numeric>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/matmul/tiles.h"
#include "runtime/device.h"
#include "runtime/kernel_profile.h"

namespace anymps::ops {
namespace {

using kernels::FastDivider;

constexpr uint32_t kThreads = 256;

// Elements of a line of a phase that are one word.
int64_t vector_of(const ConvTensor& x) {
    constexpr int64_t kMax = 4;
    return std::gcd(x.sizes[2] / 2, kMax);
}

}  // namespace

Phases::Phases(const ConvTensor& x, const ConvParams& axes, uint32_t present) : present(present) {
    const int64_t phases = axes.stride[1] * axes.stride[2];
    planes = at::empty({std::popcount(present), x.tensor.numel() / phases}, x.tensor.options());
}

bool Phases::suit(const ConvTensor& x, const ConvParams& axes) {
    const auto type = x.tensor.scalar_type();
    const bool known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
    if (!known || !uses_shared_memory(runtime::device().info())) return false;
    if (axes.stride[0] != 1 || axes.stride[1] > 2 || axes.stride[2] != 2) return false;
    if (x.sizes[1] % axes.stride[1] != 0 || x.sizes[2] % 4 != 0 || !x.tensor.is_contiguous()) return false;
    return x.tensor.numel() <= std::numeric_limits<int32_t>::max() && kernels::address(x.tensor) % 16 == 0;
}

void Phases::join(const ConvTensor& x, const ConvParams& axes) const {
    const int64_t vector = vector_of(x);
    shaders::conv_phases::PhaseArgs args{};
    args.to = kernels::address(x.tensor);
    args.from = kernels::address(planes);
    args.phase_bytes = static_cast<uint64_t>(planes.stride(0) * planes.element_size());
    args.across = FastDivider(static_cast<uint32_t>(x.sizes[2] / 2 / vector));
    args.count = static_cast<uint32_t>(x.tensor.numel() / 2 / vector);
    args.present = present;
    auto call = shaders::conv_phases::conv_phases.call({.workgroup = kThreads,
                                                        .item = static_cast<uint32_t>(planes.element_size()),
                                                        .vector = static_cast<uint32_t>(vector),
                                                        .stride = static_cast<uint32_t>(axes.stride[1])});
    if (runtime::profiling()) runtime::profile_work(0, c10::str(x.tensor.sizes()));
    call.read(planes).write(x.tensor);
    call.dispatch(args, kernels::Grid::linear(kernels::ceil_div(args.count, kThreads)));
}

}  // namespace anymps::ops
