#include "gemm/pack.h"

#include <ATen/ops/empty.h>

#include "gemm/gemm_plan.h"

namespace anymps::gemm {
PackedFactor::PackedFactor(const Matrices& factor, int64_t batch, int64_t rows, int64_t columns) {
    const int64_t copies = factor.batch == 0 ? 1 : batch;
    const bool along_rows = factor.row == 1;
    const int64_t length = along_rows ? rows : columns, count = along_rows ? columns : rows;
    const auto pitch = static_cast<int64_t>(aligned_copy(copies, rows, columns, along_rows).pitch);
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

}  // namespace anymps::gemm
