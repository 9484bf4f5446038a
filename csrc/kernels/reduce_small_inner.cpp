#include "kernels/reduce_small_inner.h"

#include <anymps/shaders/reduction/reduce_small_inner.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"

namespace anymps::kernels {
namespace {

namespace shader = shaders::reduce_small_inner;

constexpr uint64_t kWords = 4;  // of a thread
constexpr uint64_t kLongest = 128;
constexpr uint32_t kWorkgroup = 256;

}  // namespace

bool supports_reduce_small_inner(c10::ScalarType type, uint64_t address, uint64_t rows, uint64_t size,
                                 const RouteDevice& t) {
    const uint64_t width = floats_per_vector(type);  // elements of a vector
    return !t.software && t.workgroup == kWorkgroup && width != 0 && size >= width && size <= kLongest &&
           rows >= t.costs().small_inner_min_rows && rows <= UINT32_MAX / kLongest &&
           rows * size % width == 0 && address % 16 == 0;
}

void reduce_small_inner(const at::TensorBase& in, const at::TensorBase& out, uint64_t rows, uint64_t size,
                        bool mean) {
    const uint64_t width = floats_per_vector(in.scalar_type());
    const uint64_t most =
        std::min<uint64_t>(launch_config().workgroup, kWords * launch_config().workgroup * width / size);
    const shader::ReduceSmallInnerArgs args{.x = address(in),
                                            .out = address(out),
                                            .size = FastDivider(static_cast<uint32_t>(size)),
                                            .rows = static_cast<uint32_t>(rows),
                                            .group = static_cast<uint32_t>(most / width * width),
                                            .divisor = mean ? static_cast<float>(size) : 1};
    (width == 4 ? shader::reduce_small_inner_f32 : shader::reduce_small_inner_16)
        .call({.workgroup = launch_config().workgroup,
               .subgroup = launch_config().subgroup,
               .type0 = code(in.scalar_type()),
               .type1 = code(out.scalar_type())})
        .read(in)
        .write(out)
        .dispatch(args, Grid::linear(ceil_div(rows, args.group)));
}

}  // namespace anymps::kernels
