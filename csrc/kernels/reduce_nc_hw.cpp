#include "kernels/reduce_nc_hw.h"

#include <anymps/shaders/reduction/reduce_nc_hw.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "kernels/launch_config.h"

namespace anymps::kernels {
namespace {

namespace shader = shaders::reduce_nc_hw;

// A workgroup has no more words in a line than threads, and others are good at larger planes.
constexpr uint64_t kMin = 8, kMax = 128;
// In one block of sums, so that long chains of additions do not lose digits.
constexpr uint64_t kMaxOfThread = 64;

// What moments and gradients load at once, of any floating type.
constexpr uint32_t kQuad = 4;

// channels: whose planes are words of as many elements, as many as a plane has positions.
bool fits(c10::ScalarType type, uint64_t address, const Planes& planes, uint32_t channels,
          const RouteDevice& t) {
    if (t.software || channels == 0 || floats_per_vector(type) == 0) return false;
    if (planes.positions < kMin || planes.positions > std::min<uint64_t>(kMax, t.workgroup)) return false;
    const uint64_t lines = t.workgroup / planes.positions;
    return planes.images > 0 && planes.images <= lines * kMaxOfThread && planes.channels % channels == 0 &&
           planes.channels > 0 && planes.channels <= UINT32_MAX &&
           address % (channels * c10::elementSize(type)) == 0;
}

struct Operands {
    at::TensorBase x, grad, mean, rstd, out, out2;
};

void run(const shader::ReduceNcHwKernel& kernel, const Planes& planes, uint32_t channels, const Operands& t,
         const ChannelStatistics& statistics = {}) {
    const shader::ReduceNcHwArgs args{.x = address(t.x),
                                      .grad = address_or_0(t.grad),
                                      .mean = address_or_0(t.mean),
                                      .rstd = address_or_0(t.rstd),
                                      .out = address_or_0(t.out),
                                      .out2 = address_or_0(t.out2),
                                      .images = static_cast<uint32_t>(planes.images),
                                      .channels = static_cast<uint32_t>(planes.channels),
                                      .positions = static_cast<uint32_t>(planes.positions),
                                      .statistics = words_of(statistics)};
    auto call = kernel.call({.workgroup = launch_config().workgroup,
                             .subgroup = launch_config().subgroup,
                             .type0 = code(t.x.scalar_type()),
                             .type1 = code_or_0(t.out),
                             .type2 = code_or_0(t.grad),
                             .type3 = code_or_0(statistics.running_mean),
                             .type4 = code_or_0(statistics.running_variance)});
    call.read(t.x).read(t.grad).read(t.mean).read(t.rstd).write(t.out).write(t.out2);
    write_statistics(call, statistics);
    call.dispatch(args, Grid::linear(planes.channels / channels));
}

}  // namespace

bool supports_reduce_nc_hw(c10::ScalarType type, uint64_t address, const Planes& planes,
                           const RouteDevice& device) {
    return fits(type, address, planes, floats_per_vector(type), device);
}

bool supports_reduce_nc_hw_moments(c10::ScalarType type, uint64_t address, const Planes& planes,
                                   const RouteDevice& device) {
    return fits(type, address, planes, kQuad, device);
}

void reduce_nc_hw(const at::TensorBase& x, const Planes& planes, const at::TensorBase& sums) {
    run(x.scalar_type() == at::kFloat ? shader::reduce_nc_hw_f32 : shader::reduce_nc_hw_16, planes,
        floats_per_vector(x.scalar_type()), {x, {}, {}, {}, sums, {}});
}

void reduce_nc_hw_moments(const at::TensorBase& x, const Planes& planes,
                          const ChannelStatistics& statistics) {
    run(shader::reduce_nc_hw_moments, planes, kQuad, {x, {}, {}, {}, {}, {}}, statistics);
}

void reduce_nc_hw_gradients(const at::TensorBase& grad, const at::TensorBase& x, const Planes& planes,
                            const at::TensorBase& mean, const at::TensorBase& rstd,
                            const at::TensorBase& products, const at::TensorBase& sums) {
    run(shader::reduce_nc_hw_gradients, planes, kQuad, {x, grad, mean, rstd, products, sums});
}

}  // namespace anymps::kernels
