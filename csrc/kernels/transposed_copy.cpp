#include "kernels/transposed_copy.h"

#include <anymps/shaders/transposed_copy.h>
#include <algorithm>
#include <array>

#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "runtime/device.h"
#include "vulkan/instance.h"

namespace anymps::kernels {
namespace {

namespace shader = shaders::transposed_copy;
using shader::BatchDim;
using shader::TransposedCopyArgs;

constexpr int64_t kTile = shader::kTile;
constexpr size_t kMaxBatchDims = 8;
constexpr uint32_t kWordTile = shader::kSide, kWordThreads = shader::kThreads;

// Larger tiles, where both sides are whole words and there is at most one further dimension; false elsewhere.
bool transposed_words(const at::TensorIteratorBase& iter, const TransposedCopyArgs& args) {
    const int64_t item = iter.element_size(0);
    const BatchDim& batch = args.batch[0];
    const vulkan::DeviceInfo& device = runtime::device_info();
    const uint32_t words_of_row = (item == 4 ? kWordTile : kWordTile / 2) + 1;
    const uint32_t shared_bytes = sizeof(uint32_t) * kWordTile * words_of_row;
    if (args.batch_dims > 1 || (item != 2 && item != 4) || device.max_workgroup_size < kWordThreads ||
        device.shared_memory_bytes < shared_bytes)
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
    const shader::TransposedWordsArgs words{.to = args.to,
                                            .from = args.from,
                                            .to_stride = args.to_stride,
                                            .from_stride = args.from_stride,
                                            .width = args.width,
                                            .height = args.height,
                                            .tiles_across = FastDivider(tiles(args.width)),
                                            .tiles_down = FastDivider(tiles(args.height)),
                                            .tiles = tiles(args.width) * tiles(args.height) * batches,
                                            .batch_to_stride = batch.to_stride,
                                            .batch_from_stride = batch.from_stride};
    (item == 4 ? shader::transposed_words : shader::transposed_pairs)
        .call()
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
    if (launch_config().software || launch_config().workgroup % kTile != 0) return false;
    if (iter.ndim() < 2 || static_cast<size_t>(iter.ndim()) > kMaxBatchDims + 2) return false;
    const int across = contiguous_dim(iter, 0), down = contiguous_dim(iter, 1);
    if (across < 0 || down < 0 || across == down) return false;
    const auto shape = iter.shape();
    if (shape[across] < kTile / 2 || shape[down] < kTile / 2) return false;
    struct {
        TransposedCopyArgs args;
        std::array<BatchDim, kMaxBatchDims - 1> rest;  // of args.batch
    } whole{};
    TransposedCopyArgs& args = whole.args;
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
        args.batch.data()[args.batch_dims++] = {.size = FastDivider(static_cast<uint32_t>(shape[d])),
                                                .to_stride = iter.strides(0)[d],
                                                .from_stride = iter.strides(1)[d]};
        args.tiles *= static_cast<uint32_t>(shape[d]);
    }
    if (transposed_words(iter, args)) return true;
    shader::transposed_copy
        .call({.workgroup = launch_config().workgroup,
               .item_bytes = static_cast<uint32_t>(iter.element_size(0))})
        .read(iter.tensor_base(1))
        .write(iter.tensor_base(0))
        .dispatch_prefix(args, sizeof(whole), Grid::linear(args.tiles));
    return true;
}

}  // namespace anymps::kernels
