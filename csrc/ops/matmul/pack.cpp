#include "ops/matmul/pack.h"

#include <ATen/ops/empty.h>

namespace anymps::ops {
namespace {

// Measured on an H200: unaligned factors halve the speed, some 6 fs a product; a copied element costs 2 ps,
// the dispatches of a copy 10 us.
constexpr int64_t kMinOthers = 512;
constexpr double kMinProducts = 2e9;

constexpr int64_t kWord = 8;  // elements; a multiple of 16 bytes for every type

}  // namespace

bool worth_packing(int64_t others, double products) {
    return others >= kMinOthers && products >= kMinProducts;
}

PackedFactor::PackedFactor(const Matrices& factor, int64_t batch, int64_t rows, int64_t columns) {
    const int64_t copies = factor.batch == 0 ? 1 : batch;
    const bool along_rows = factor.row == 1;
    const int64_t length = along_rows ? rows : columns, count = along_rows ? columns : rows;
    const int64_t pitch = (length + kWord - 1) / kWord * kWord;
    const at::Tensor source = factor.tensor->as_strided(
        {copies, count, length},
        {factor.batch, along_rows ? factor.column : factor.row, along_rows ? factor.row : factor.column},
        factor.tensor->storage_offset());
    tensor = at::empty({copies, count, pitch}, factor.tensor->options());
    tensor.narrow(2, 0, length).copy_(source);
    if (pitch > length) tensor.narrow(2, length, pitch - length).zero_();
    const int64_t step = copies == 1 ? 0 : count * pitch;
    matrices = {&tensor, step, along_rows ? 1 : pitch, along_rows ? pitch : 1};
    matrices.padded = true;
}

}  // namespace anymps::ops
