#include "gemm/operand_layout.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

#include "kernels/kernel_call.h"

namespace anymps::gemm {
namespace {

// Address, element size and strides as kernels get them.
struct Operand {
    uint64_t address, item;
    uint32_t rows, k, row_stride, k_stride, batch_stride;
};

Operand operand_of(const Matrices& m, int64_t rows, int64_t k, int64_t batch) {
    return {.address = kernels::address(*m.tensor),
            .item = static_cast<uint64_t>(m.tensor->element_size()),
            .rows = static_cast<uint32_t>(rows),
            .k = static_cast<uint32_t>(k),
            .row_stride = stride32(m.row, rows),
            .k_stride = stride32(m.column, k),
            .batch_stride = stride32(m.batch, batch)};
}

}  // namespace

uint32_t stride32(int64_t stride, int64_t size) {
    if (size <= 1) return 0;
    TORCH_CHECK(stride <= std::numeric_limits<uint32_t>::max(), "matrix product: a stride of ", stride,
                " elements is too large for the mps device");
    return static_cast<uint32_t>(stride);
}

bool aligned4(uint64_t address, uint64_t item, uint32_t size, uint32_t other_stride, uint32_t batch_stride) {
    return size % 4 == 0 && other_stride % 4 == 0 && batch_stride % 4 == 0 &&
           address % std::min<uint64_t>(16, 4 * item) == 0;
}

BlockLayout vec4_layout(const Matrices& matrices, int64_t rows, int64_t k, int64_t batch) {
    const Operand o = operand_of(matrices, rows, k, batch);
    if (o.k_stride == 1) {
        return aligned4(o.address, o.item, o.k, o.row_stride, o.batch_stride) ? BlockLayout::KMajorVec
                                                                              : BlockLayout::KMajor;
    }
    const bool wide = o.row_stride == 1 && aligned4(o.address, o.item, o.rows, o.k_stride, o.batch_stride);
    return wide ? BlockLayout::MnMajorVec : BlockLayout::Strided;
}

BlockLayout vec8_layout(const Matrices& matrices, int64_t rows, int64_t k, int64_t batch) {
    const Operand o = operand_of(matrices, rows, k, batch);
    const auto wide = [&](uint32_t size, uint32_t other_stride) {
        return (matrices.padded || size % 8 == 0) && other_stride * o.item % 16 == 0 &&
               o.batch_stride * o.item % 16 == 0 && o.address % 16 == 0;
    };
    if (o.k_stride == 1)
        return wide(o.k, o.row_stride) ? BlockLayout::KMajorVec : BlockLayout::KMajorUnaligned;
    if (o.row_stride == 1)
        return wide(o.rows, o.k_stride) ? BlockLayout::MnMajorVec : BlockLayout::MnMajorUnaligned;
    return BlockLayout::Strided;
}

bool is_vec8(const Matrices& operand, int64_t rows, int64_t k, int64_t batch) {
    const BlockLayout layout = vec8_layout(operand, rows, k, batch);
    return layout == BlockLayout::KMajorVec || layout == BlockLayout::MnMajorVec;
}

}  // namespace anymps::gemm
