#include "kernels/short_rows.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "kernels/team.h"

namespace anymps::kernels {
namespace {

// As in shaders/short_rows.slang.
struct ShortRowArgs {
    uint64_t x, out;
    FastDivider size;
    uint32_t rows, group;
    float divisor;
};

constexpr uint64_t kWords = 4;  // of a thread
constexpr uint64_t kLongest = 128, kFewest = 16384;

// Elements of a word; 0 where rows do not fit in words.
uint64_t width_of(const at::TensorBase& x, uint64_t rows, uint64_t size) {
    const uint64_t width = floats_of_word(x.scalar_type());
    const bool fits = !tuning().software && tuning().workgroup == 256 && width != 0 && size >= width &&
                      size <= kLongest && rows <= UINT32_MAX / kLongest && rows * size % width == 0 &&
                      address(x) % 16 == 0;
    return fits ? width : 0;
}

}  // namespace

bool short_row_sums(const at::TensorBase& in, const at::TensorBase& out, uint64_t rows, uint64_t size,
                    bool mean) {
    const uint64_t width = width_of(in, rows, size);
    if (width == 0 || rows < kFewest) return false;
    const uint64_t most = std::min<uint64_t>(tuning().workgroup, kWords * tuning().workgroup * width / size);
    const ShortRowArgs args{address(in),
                            address(out),
                            FastDivider(static_cast<uint32_t>(size)),
                            static_cast<uint32_t>(rows),
                            static_cast<uint32_t>(most / width * width),
                            mean ? static_cast<float>(size) : 1};
    KernelCall(width == 4 ? "short_row_sums_f32" : "short_row_sums_16",
               {tuning().workgroup, tuning().subgroup, code(in.scalar_type()), code(out.scalar_type())})
        .read(in)
        .write(out)
        .dispatch(args, Grid::linear(ceil_div(rows, args.group)));
    return true;
}

}  // namespace anymps::kernels
