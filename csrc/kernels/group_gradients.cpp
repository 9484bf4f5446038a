#include "kernels/group_gradients.h"

#include <anymps/shaders/norm/group_gradients.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "runtime/device.h"

namespace anymps::kernels {
namespace {

namespace shader = shaders::group_gradients;
constexpr KernelFamily kKernels(shader::kernels_with<shader::GroupGradientArgs>, {"group_gradients_"},
                                {"2", "4", "7"}, {"_f32", "_16"});

constexpr uint32_t kMinThreads = 64;
constexpr uint64_t kFewWords = 4;  // of a thread, where threads suffice
constexpr uint64_t kMaxWords = 7;

// Elements of a word; 0 where groups do not fit in words.
uint64_t width_of(const GroupGradients& g) {
    const auto type = g.x.scalar_type();
    const uint64_t width = floats_of_word(type);
    const bool aligned = address(g.x) % 16 == 0 && address(g.grad) % 16 == 0;
    const bool floats = g.mean.scalar_type() == at::kFloat && g.rstd.scalar_type() == at::kFloat;
    if (width == 0 || !aligned || !floats || g.grad.scalar_type() != type || g.size < width) return 0;
    return g.rows != 0 && g.rows <= UINT32_MAX && g.depth * g.size % width == 0 ? width : 0;
}

// Threads side by side for a row, so that all rows are added up at once.
uint32_t lanes_of_row(uint64_t depth, uint32_t threads) {
    uint32_t lanes = 1;
    while (2 * lanes * depth <= threads && 2 * lanes <= launch_config().subgroup) lanes *= 2;
    return lanes;
}

}  // namespace

bool group_gradients(const GroupGradients& g) {
    const uint64_t width = launch_config().software || launch_config().workgroup != 256 ? 0 : width_of(g);
    const uint64_t words = width == 0 ? 0 : g.depth * g.size / width;
    uint32_t threads = std::max(kMinThreads, launch_config().subgroup);
    while (threads < launch_config().workgroup && words > kFewWords * threads) threads *= 2;
    if (words == 0 || words > kMaxWords * threads) return false;
    const size_t prefetch = words > kFewWords * threads ? 2 : words > 2 * threads ? 1 : 0;
    const auto& kernel = kKernels(0, prefetch, width != 4);
    if (runtime::device().info().profile->excludes(kernel.name)) return false;
    const auto rounded = [](uint64_t n) { return static_cast<uint32_t>(ceil_div(n, 64) * 64); };
    const shader::GroupGradientArgs args{
        .x = address(g.x),
        .grad = address(g.grad),
        .mean = address(g.mean),
        .rstd = address(g.rstd),
        .weight = address_or_0(g.weight),
        .products = address(g.products),
        .sums = address(g.sums),
        .grad_x = address_or_0(g.grad_x),
        .size = FastDivider(static_cast<uint32_t>(g.size)),
        .groups = static_cast<uint32_t>(g.rows / g.depth),
        .depth = static_cast<uint32_t>(g.depth),
        .channels = static_cast<uint32_t>(g.channels),
        .inverse_size = static_cast<float>(1.0 / static_cast<double>(g.depth * g.size))};
    kernel
        .call({.workgroup = threads,
               .subgroup = launch_config().subgroup,
               .type0 = code(g.x.scalar_type()),
               .type1 = code(at::kFloat),
               .type2 = g.weight.defined() ? code(g.weight.scalar_type()) : 0,
               .lanes = lanes_of_row(g.depth, threads),
               .word_slots = rounded(words),
               .row_slots = rounded(g.depth)})
        .read(g.x)
        .read(g.grad)
        .read(g.mean)
        .read(g.rstd)
        .read(g.weight)
        .write(g.products)
        .write(g.sums)
        .write(g.grad_x)
        .dispatch(args, Grid::linear(args.groups));
    return true;
}

}  // namespace anymps::kernels
