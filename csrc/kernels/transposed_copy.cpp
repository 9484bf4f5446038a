#include <anymps/shaders/transposed_copy.h>

#include <algorithm>
#include <array>

#include "kernels/copy_routes.h"
#include "kernels/geometry.h"

namespace anymps::kernels {
namespace {

namespace shader = shaders::transposed_copy;
using shader::BatchDim;
using shader::TransposedCopyArgs;

constexpr int64_t kTile = shader::kTile;
constexpr size_t kMaxBatchDims = 8;
constexpr uint32_t kWordTile = shader::kSide, kWordThreads = shader::kThreads;

// The dimension along which an operand is contiguous; -1 where there is none.
int contiguous_dim(const CopyProblem& p, size_t arg) {
    const auto found = std::ranges::find(p.strides[arg], p.item());
    return found == p.strides[arg].end() ? -1 : static_cast<int>(found - p.strides[arg].begin());
}

uint32_t tiles(int64_t size, int64_t tile) {
    return static_cast<uint32_t>(ceil_div(size, tile));
}

}  // namespace

bool transposes(const CopyProblem& p, const RouteDevice& t) {
    // A software driver has no memory lines to fill, and barriers are expensive there.
    if (t.software || t.workgroup % kTile != 0 || !p.fits_32_bits || p.numel() == 0) return false;
    if (p.shape.size() < 2 || p.shape.size() > kMaxBatchDims + 2) return false;
    const int across = contiguous_dim(p, 0), down = contiguous_dim(p, 1);
    return across >= 0 && down >= 0 && across != down && p.shape[across] >= kTile / 2 &&
           p.shape[down] >= kTile / 2;
}

bool transposes_words(const CopyProblem& p, const RouteDevice& t) {
    const int64_t item = p.item();
    const uint32_t words_of_row = (item == 4 ? kWordTile : kWordTile / 2) + 1;
    const uint32_t shared_bytes = sizeof(uint32_t) * kWordTile * words_of_row;
    if (!transposes(p, t) || p.shape.size() > 3 || (item != 2 && item != 4) ||
        t.info->max_workgroup_size < kWordThreads || t.info->shared_memory_bytes < shared_bytes)
        return false;
    for (size_t arg = 0; arg < 2; ++arg) {
        const auto along = static_cast<size_t>(contiguous_dim(p, arg));
        if (p.address[arg] % 4 != 0) return false;
        for (size_t d = 0; d < p.shape.size(); ++d)
            if ((d == along ? p.shape[d] * item : p.strides[arg][d]) % 4 != 0) return false;
    }
    return true;
}

void transposed_words_copy(const CopyProblem& p, at::TensorIteratorBase& iter) {
    const int across = contiguous_dim(p, 0), down = contiguous_dim(p, 1);
    const uint32_t tiles_across = tiles(p.shape[across], kWordTile),
                   tiles_down = tiles(p.shape[down], kWordTile);
    shader::TransposedWordsArgs words{.to = p.address[0],
                                      .from = p.address[1],
                                      .to_stride = p.strides[0][down],
                                      .from_stride = p.strides[1][across],
                                      .width = static_cast<uint32_t>(p.shape[across]),
                                      .height = static_cast<uint32_t>(p.shape[down]),
                                      .tiles_across = FastDivider(tiles_across),
                                      .tiles_down = FastDivider(tiles_down),
                                      .tiles = tiles_across * tiles_down};
    for (int d = 0; d < iter.ndim(); ++d) {
        if (d == across || d == down) continue;
        words.tiles *= static_cast<uint32_t>(p.shape[d]);
        words.batch_to_stride = p.strides[0][d];
        words.batch_from_stride = p.strides[1][d];
    }
    (p.item() == 4 ? shader::transposed_words : shader::transposed_pairs)
        .call()
        .read(iter.tensor_base(1))
        .write(iter.tensor_base(0))
        .dispatch(words, Grid::linear(words.tiles));
}

void transposed_copy(const CopyProblem& p, at::TensorIteratorBase& iter) {
    const int across = contiguous_dim(p, 0), down = contiguous_dim(p, 1);
    struct {
        TransposedCopyArgs args;
        std::array<BatchDim, kMaxBatchDims - 1> rest;  // of args.batch
    } whole{};
    TransposedCopyArgs& args = whole.args;
    args.to = p.address[0];
    args.from = p.address[1];
    args.to_stride = p.strides[0][down];
    args.from_stride = p.strides[1][across];
    args.width = static_cast<uint32_t>(p.shape[across]);
    args.height = static_cast<uint32_t>(p.shape[down]);
    args.tiles_across = FastDivider(tiles(args.width, kTile));
    args.tiles_down = FastDivider(tiles(args.height, kTile));
    args.tiles = args.tiles_across.divisor * args.tiles_down.divisor;
    for (int d = 0; d < iter.ndim(); ++d) {
        if (d == across || d == down) continue;
        args.batch.data()[args.batch_dims++] = {.size = FastDivider(static_cast<uint32_t>(p.shape[d])),
                                                .to_stride = p.strides[0][d],
                                                .from_stride = p.strides[1][d]};
        args.tiles *= static_cast<uint32_t>(p.shape[d]);
    }
    shader::transposed_copy
        .call({.workgroup = launch_config().workgroup, .item_bytes = static_cast<uint32_t>(p.item())})
        .read(iter.tensor_base(1))
        .write(iter.tensor_base(0))
        .dispatch_prefix(args, sizeof(whole), Grid::linear(args.tiles));
}

}  // namespace anymps::kernels
