#include "kernels/short_rows.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <string>

#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "kernels/team.h"

namespace anymps::kernels {
namespace {

// As in shaders/short_rows.slang.
struct ShortRowArgs {
    uint64_t x, grad, mean, rstd, weight, out, out2, total, total2;
    FastDivider size;
    uint32_t rows, group, channels;
    float divisor;
};

constexpr uint64_t kWords = 4;  // of a thread
constexpr uint64_t kLongest = 128, kFewest = 16384;

// Elements of a word; 0 where rows do not fit in words.
uint64_t width_of(const at::TensorBase& x, uint64_t rows, uint64_t size) {
    const auto type = x.scalar_type();
    const uint64_t width = type == at::kFloat ? 4 : at::isReducedFloatingType(type) ? 8 : 0;
    const bool fits = !tuning().software && tuning().workgroup == 256 && width != 0 && size >= width &&
                      size <= kLongest && rows <= UINT32_MAX / kLongest && rows * size % width == 0 &&
                      address(x) % 16 == 0;
    return fits ? width : 0;
}

void run(const char* kernel, ShortRowArgs args, uint64_t width, const GroupGradients& g, at::ScalarType out) {
    const uint32_t weight = g.weight.defined() ? code(g.weight.scalar_type()) : 0;
    KernelCall(std::string(kernel) + (width == 4 ? "_f32" : "_16"),
               {tuning().workgroup, tuning().subgroup, code(g.x.scalar_type()), code(out), weight})
        .read(g.x)
        .read(g.grad)
        .read(g.mean)
        .read(g.rstd)
        .read(g.weight)
        .write(g.products)
        .write(g.sums)
        .write(g.group_products)
        .write(g.group_sums)
        .dispatch(args, Grid::linear(ceil_div(args.rows, args.group)));
}

}  // namespace

bool short_row_sums(const at::TensorBase& in, const at::TensorBase& out, uint64_t rows, uint64_t size,
                    bool mean) {
    const uint64_t width = width_of(in, rows, size);
    if (width == 0 || rows < kFewest) return false;
    ShortRowArgs args{};
    args.x = address(in);
    args.out = address(out);
    args.size = FastDivider(static_cast<uint32_t>(size));
    args.rows = static_cast<uint32_t>(rows);
    const uint64_t most = std::min<uint64_t>(tuning().workgroup, kWords * tuning().workgroup * width / size);
    args.group = static_cast<uint32_t>(most / width * width);
    args.divisor = mean ? static_cast<float>(size) : 1;
    GroupGradients tensors{};
    tensors.x = in;
    tensors.sums = out;
    run("short_row_sums", args, width, tensors, out.scalar_type());
    return true;
}

bool short_row_gradients(const GroupGradients& g) {
    const uint64_t width = width_of(g.x, g.rows, g.size), words = width == 0 ? 0 : g.depth * g.size / width;
    if (words == 0 || g.rows < kFewest || g.depth * g.size % width != 0) return false;
    if (words > kWords * tuning().workgroup || 2 * words < tuning().workgroup) return false;
    if (g.grad.scalar_type() != g.x.scalar_type() || address(g.grad) % 16 != 0) return false;
    if (g.mean.scalar_type() != at::kFloat || g.rstd.scalar_type() != at::kFloat) return false;
    const ShortRowArgs args{address(g.x),
                            address(g.grad),
                            address(g.mean),
                            address(g.rstd),
                            address_or_0(g.weight),
                            address(g.products),
                            address(g.sums),
                            address(g.group_products),
                            address(g.group_sums),
                            FastDivider(static_cast<uint32_t>(g.size)),
                            static_cast<uint32_t>(g.rows),
                            static_cast<uint32_t>(g.depth),
                            static_cast<uint32_t>(g.channels),
                            1};
    run("short_row_gradients", args, width, g, at::kFloat);
    return true;
}

}  // namespace anymps::kernels
