#include "kernels/group_gradients.h"

#include <anymps/shaders/norm/group_gradients.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "vulkan/instance.h"

namespace anymps::kernels {
namespace {

namespace shader = shaders::group_gradients;
constexpr KernelFamily kKernels(shader::kernels_with<shader::GroupGradientArgs>, {"group_gradients_"},
                                {"2", "4", "7"}, {"_f32", "_16", "_mixed"});

constexpr uint32_t kMinThreads = 64;
constexpr uint64_t kFewWords = 4;  // of a thread, where threads suffice
constexpr uint64_t kMaxWords = 7;

constexpr uint32_t kWorkgroup = 256;

// 16 bits whose gradient has 32, as under autocast.
bool is_mixed(const GroupShape& g) {
    return c10::isReducedFloatingType(g.type) && g.grad_type == c10::kFloat;
}

// Elements of a word of the gradient; 0 where groups do not fit in words.
uint64_t width_of(const GroupShape& g) {
    const uint64_t width = floats_per_vector(g.grad_type);
    const bool aligned = g.address % 16 == 0 && g.grad_address % 16 == 0;
    const bool typed = g.grad_type == g.type || is_mixed(g);
    if (width == 0 || !aligned || !g.float_statistics || !typed || g.size < width) return 0;
    return g.rows != 0 && g.rows <= UINT32_MAX && g.depth * g.size % width == 0 ? width : 0;
}

size_t kernel_of_type(const GroupShape& g, uint64_t width) {
    return is_mixed(g) ? 2 : width != 4;
}

// What a workgroup keeps of a group.
struct Share {
    uint64_t words;
    uint32_t threads;
    size_t kernel;  // by words of a thread

    Share(const GroupShape& g, uint64_t width, const RouteDevice& device)
        : words(g.depth * g.size / width), threads(std::max(kMinThreads, device.subgroup)) {
        while (threads < device.workgroup && words > kFewWords * threads) threads *= 2;
        kernel = words > kFewWords * threads ? 2 : words > 2 * threads ? 1 : 0;
    }
};

// Threads side by side for a row, so that all rows are added up at once.
uint32_t lanes_of_row(uint64_t depth, uint32_t threads) {
    uint32_t lanes = 1;
    while (2 * lanes * depth <= threads && 2 * lanes <= launch_config().subgroup) lanes *= 2;
    return lanes;
}

}  // namespace

std::string to_text(const GroupShape& g) {
    return c10::str(g.type, " ", g.rows, " x ", g.size, " groups of ", g.depth);
}

bool supports_group_gradients(const GroupShape& g, const RouteDevice& t) {
    const uint64_t width = t.software || t.workgroup != kWorkgroup ? 0 : width_of(g);
    if (width == 0) return false;
    const Share share(g, width, t);
    return share.words > 0 && share.words <= kMaxWords * share.threads &&
           !t.info->profile->excludes(kKernels(0, share.kernel, kernel_of_type(g, width)).name);
}

void group_gradients(const GroupShape& shape, const GroupGradients& g) {
    const uint64_t width = width_of(shape);
    const auto [words, threads, kernel] = Share(shape, width, route_device());
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
        .size = FastDivider(static_cast<uint32_t>(shape.size)),
        .groups = static_cast<uint32_t>(shape.rows / shape.depth),
        .depth = static_cast<uint32_t>(shape.depth),
        .channels = static_cast<uint32_t>(shape.channels),
        .inverse_size = static_cast<float>(1.0 / static_cast<double>(shape.depth * shape.size))};
    kKernels(0, kernel, kernel_of_type(shape, width))
        .call({.workgroup = threads,
               .subgroup = launch_config().subgroup,
               .type0 = code(g.x.scalar_type()),
               .type1 = code(at::kFloat),
               .type2 = g.weight.defined() ? code(g.weight.scalar_type()) : 0,
               .lanes = lanes_of_row(shape.depth, threads),
               .word_slots = rounded(words),
               .row_slots = rounded(shape.depth)})
        .read(g.x)
        .read(g.grad)
        .read(g.mean)
        .read(g.rstd)
        .read(g.weight)
        .write(g.products)
        .write(g.sums)
        .write(g.grad_x)
        .dispatch(args, Grid::linear(args.groups));
}

}  // namespace anymps::kernels
