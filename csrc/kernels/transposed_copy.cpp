#include "kernels/transposed_copy.h"

#include <algorithm>
#include <cstddef>

#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "kernels/team.h"
#include "runtime/device.h"

namespace anymps::kernels {
namespace {

// As in shaders/transposed_copy.slang.
constexpr int64_t kTile = 32;
constexpr size_t kMaxBatchDims = 8;

struct BatchDim {
    FastDivider size;
    uint32_t unused = 0;
    int64_t to_stride = 0, from_stride = 0;
};
struct TransposedCopyArgs {
    uint64_t to, from;
    int64_t to_stride, from_stride;
    uint32_t width, height;
    FastDivider tiles_across, tiles_down;
    uint32_t tiles, batch_dims;
    BatchDim batch[kMaxBatchDims];
};
static_assert(offsetof(TransposedCopyArgs, batch) == 72);

struct TransposedWordsArgs {
    uint64_t to, from;
    int64_t to_stride, from_stride;
    uint32_t width, height;
    FastDivider tiles_across, tiles_down;
    uint32_t tiles, unused;
    int64_t batch_to_stride, batch_from_stride;
};
static_assert(sizeof(TransposedWordsArgs) <= 128);
constexpr uint32_t kWordTile = 64, kWordThreads = 256;

// Larger tiles, where both sides are whole words and there is at most one further dimension; false elsewhere.
bool transposed_words(const at::TensorIteratorBase& iter, const TransposedCopyArgs& args) {
    const int64_t item = iter.element_size(0);
    const BatchDim& batch = args.batch[0];
    if (args.batch_dims > 1 || (item != 2 && item != 4) ||
        runtime::device().info().max_workgroup_size < kWordThreads)
        return false;
    const auto bytes = {static_cast<int64_t>(args.to),
                        static_cast<int64_t>(args.from),
                        args.to_stride,
                        args.from_stride,
                        batch.to_stride,
                        batch.from_stride,
                        int64_t{args.width} * item,
                        int64_t{args.height} * item};
    if (!std::ranges::all_of(bytes, [](int64_t count) { return count % 4 == 0; })) return false;
    const auto tiles = [](uint32_t size) { return static_cast<uint32_t>(ceil_div(size, kWordTile)); };
    const uint32_t batches = args.batch_dims == 1 ? batch.size.divisor : 1;
    const TransposedWordsArgs words{args.to,
                                    args.from,
                                    args.to_stride,
                                    args.from_stride,
                                    args.width,
                                    args.height,
                                    FastDivider(tiles(args.width)),
                                    FastDivider(tiles(args.height)),
                                    tiles(args.width) * tiles(args.height) * batches,
                                    0,
                                    batch.to_stride,
                                    batch.from_stride};
    KernelCall(item == 4 ? "transposed_words" : "transposed_pairs", {})
        .read(iter.tensor_base(1))
        .write(iter.tensor_base(0))
        .dispatch(words, Grid::linear(words.tiles));
    return true;
}

// The dimension along which an operand is contiguous; -1 where there is none.
int contiguous_dim(const at::TensorIteratorBase& iter, int arg) {
    const int64_t item = static_cast<int64_t>(iter.element_size(arg));
    for (int d = 0; d < iter.ndim(); ++d) {
        if (iter.strides(arg)[d] == item) return d;
    }
    return -1;
}

}  // namespace

bool transposed_copy(at::TensorIteratorBase& iter) {
    // A software driver has no memory lines to fill, and barriers are expensive there.
    if (tuning().software || tuning().workgroup % kTile != 0) return false;
    if (iter.ndim() < 2 || static_cast<size_t>(iter.ndim()) > kMaxBatchDims + 2) return false;
    const int across = contiguous_dim(iter, 0), down = contiguous_dim(iter, 1);
    if (across < 0 || down < 0 || across == down) return false;
    const auto shape = iter.shape();
    if (shape[across] < kTile / 2 || shape[down] < kTile / 2) return false;
    TransposedCopyArgs args{};
    args.to = reinterpret_cast<uint64_t>(iter.data_ptr(0));
    args.from = reinterpret_cast<uint64_t>(iter.data_ptr(1));
    args.to_stride = iter.strides(0)[down];
    args.from_stride = iter.strides(1)[across];
    args.width = static_cast<uint32_t>(shape[across]);
    args.height = static_cast<uint32_t>(shape[down]);
    args.tiles_across = FastDivider(static_cast<uint32_t>(ceil_div(args.width, kTile)));
    args.tiles_down = FastDivider(static_cast<uint32_t>(ceil_div(args.height, kTile)));
    args.tiles = args.tiles_across.divisor * args.tiles_down.divisor;
    for (int d = 0; d < iter.ndim(); ++d) {
        if (d == across || d == down) continue;
        args.batch[args.batch_dims++] = {FastDivider(static_cast<uint32_t>(shape[d])), 0, iter.strides(0)[d],
                                         iter.strides(1)[d]};
        args.tiles *= static_cast<uint32_t>(shape[d]);
    }
    if (transposed_words(iter, args)) return true;
    KernelCall("transposed_copy", {tuning().workgroup, 0, static_cast<uint32_t>(iter.element_size(0))})
        .read(iter.tensor_base(1))
        .write(iter.tensor_base(0))
        .dispatch_pointer(args, Grid::linear(args.tiles));
    return true;
}

}  // namespace anymps::kernels
