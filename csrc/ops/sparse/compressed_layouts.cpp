// Conversions between compressed layouts: rows become columns, and columns rows.
#include <anymps/ops/sparse/compressed_layouts_ops.h>

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/_to_sparse_bsc_native.h>
#include <ATen/ops/_to_sparse_bsr_native.h>
#include <ATen/ops/_to_sparse_csc_native.h>
#include <ATen/ops/_to_sparse_csr_native.h>
#include <ATen/ops/_to_sparse_native.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/accumulate.h>

#include "ops/sparse/compressed.h"
#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"

namespace anymps::ops {
namespace {

using at::OptionalIntArrayRef;

at::Layout flipped_layout(at::Layout layout) {
    switch (layout) {
        case at::kSparseCsr:
            return at::kSparseCsc;
        case at::kSparseCsc:
            return at::kSparseCsr;
        case at::kSparseBsr:
            return at::kSparseBsc;
        default:
            return at::kSparseBsr;
    }
}

// The same tensor, compressed along its other sparse dimension. Batches have equally many elements each.
Tensor flipped(const Tensor& self) {
    const auto [compressed, plain] = at::sparse_csr::getCompressedPlainIndices(self);
    const int64_t batch_dim = compressed.dim() - 1, nnz = plain.size(-1);
    const int64_t batches = c10::multiply_integers(compressed.sizes().slice(0, batch_dim));
    const Tensor values = self.values();
    const bool rows = self.layout() == at::kSparseCsr || self.layout() == at::kSparseBsr;
    // Lines are compressed now, and crossings will be.
    const int64_t lines = compressed.size(-1) - 1;
    const bool blocks = self.layout() == at::kSparseBsr || self.layout() == at::kSparseBsc;
    const int64_t block = blocks ? at::sparse_csr::getBlockSize(self)[rows ? 1 : 0] : 1;
    const int64_t crossings = self.size(batch_dim + (rows ? 1 : 0)) / block;
    const Tensor places = at::_convert_indices_from_csr_to_coo(compressed.reshape({batches, lines + 1}),
                                                               plain.reshape({batches, nnz}));
    const Tensor batch_and_crossing = at::add(places.select(0, 2), places.select(0, 0), crossings);
    const Tensor line = places.select(0, 1);
    const Tensor keys = at::add(line, batch_and_crossing, lines);
    const Tensor order = order_of_keys(keys, {batches, crossings, lines});
    const Tensor pointers = row_pointers(batch_and_crossing.index_select(0, order), batches * crossings);
    // The last pointer of a batch is the first of the next one.
    const Tensor first = at::arange(batches, pointers.options()).mul_(nnz).unsqueeze(1);
    auto pointer_sizes = compressed.sizes().vec();
    pointer_sizes.back() = crossings + 1;
    const Tensor by_batch = pointers.as_strided({batches, crossings + 1}, {crossings, 1}).sub(first);
    const auto type = compressed.scalar_type();
    return compressed_tensor(flipped_layout(self.layout()), by_batch.to(type).view(pointer_sizes),
                             line.index_select(0, order).to(type).view(plain.sizes()),
                             values.flatten(0, batch_dim).index_select(0, order).view(values.sizes()),
                             c10::fromIntArrayRefSlow(self.sizes()));
}

// Whether the conversion is a flip. ATen's functions refuse and make everything else.
bool is_flip(const Tensor& self, at::Layout from, OptionalIntArrayRef blocksize,
             std::optional<int64_t> dense_dim) {
    if (self.layout() != from || self.numel() == 0) return false;
    if (dense_dim && *dense_dim != self.dense_dim()) return false;
    return !blocksize || *blocksize == at::sparse_csr::getBlockSize(self);
}

}  // namespace

Tensor ANYMPS_SPARSE_CSR_FUNC(_to_sparse_csr)(const Tensor& self, std::optional<int64_t> dense_dim) {
    if (is_flip(self, at::kSparseCsc, std::nullopt, dense_dim)) return flipped(self);
    return at::native::sparse_compressed_to_sparse_csr(self, dense_dim);
}

Tensor ANYMPS_SPARSE_CSR_FUNC(_to_sparse_csc)(const Tensor& self, std::optional<int64_t> dense_dim) {
    if (is_flip(self, at::kSparseCsr, std::nullopt, dense_dim)) return flipped(self);
    return at::native::sparse_compressed_to_sparse_csc(self, dense_dim);
}

Tensor ANYMPS_SPARSE_CSR_FUNC(_to_sparse_bsr)(const Tensor& self, at::IntArrayRef blocksize,
                                              std::optional<int64_t> dense_dim) {
    if (is_flip(self, at::kSparseBsc, blocksize, dense_dim)) return flipped(self);
    return at::native::sparse_compressed_to_sparse_bsr(self, blocksize, dense_dim);
}

Tensor ANYMPS_SPARSE_CSR_FUNC(_to_sparse_bsc)(const Tensor& self, at::IntArrayRef blocksize,
                                              std::optional<int64_t> dense_dim) {
    if (is_flip(self, at::kSparseBsr, blocksize, dense_dim)) return flipped(self);
    return at::native::sparse_compressed_to_sparse_bsc(self, blocksize, dense_dim);
}

Tensor ANYMPS_SPARSE_CSR_FUNC(_to_sparse)(const Tensor& self, std::optional<at::Layout> layout,
                                          OptionalIntArrayRef blocksize, std::optional<int64_t> dense_dim) {
    const bool compressed = layout && at::sparse_csr::is_sparse_compressed(*layout);
    if (compressed && is_flip(self, flipped_layout(*layout), blocksize, dense_dim)) return flipped(self);
    return at::native::sparse_compressed_to_sparse(self, layout, blocksize, dense_dim);
}

ANYMPS_SPARSE_CSR_ROW(zeros_like,
                      at::empty_like(self, dtype, layout, device, pin_memory, memory_format).zero_())

}  // namespace anymps::ops
