#include "gemm/pack.h"

#include <ATen/ops/empty.h>

#include "gemm/gemm_plan.h"

namespace anymps::gemm {
PackedOperand::PackedOperand(const Matrices& operand, int64_t batch, int64_t rows, int64_t columns) {
    const int64_t copies = operand.batch == 0 ? 1 : batch;
    const bool along_rows = operand.row == 1;
    const int64_t length = along_rows ? rows : columns, count = along_rows ? columns : rows;
    const auto pitch = static_cast<int64_t>(aligned_copy(copies, rows, columns, along_rows).pitch);
    const at::Tensor source = operand.tensor->as_strided(
        {copies, count, length},
        {operand.batch, along_rows ? operand.column : operand.row, along_rows ? operand.row : operand.column},
        operand.tensor->storage_offset());
    tensor = at::empty({copies, count, pitch}, operand.tensor->options());
    tensor.narrow(2, 0, length).copy_(source);
    if (pitch > length) tensor.narrow(2, length, pitch - length).zero_();
    const int64_t step = copies == 1 ? 0 : count * pitch;
    matrices = {&tensor, step, along_rows ? 1 : pitch, along_rows ? pitch : 1};
    matrices.padded = true;
}

}  // namespace anymps::gemm
