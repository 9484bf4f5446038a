// Elements of one place become one: keys are sorted, and values added up by run.
#include <anymps/ops/sparse/coalesce_ops.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/nonzero.h>

#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"

namespace anymps::ops {

Tensor ANYMPS_SPARSE_FUNC(_coalesce)(const Tensor& self) {
    const int64_t nnz = self._nnz();
    if (nnz < 2) return self.clone()._coalesced_(true);
    const Tensor indices = self._indices(), values = self._values();
    Tensor sorted;
    const Tensor order =
        order_of_keys(flat_keys(indices, self.sizes()), self.sizes().slice(0, self.sparse_dim()), &sorted);
    Tensor begins = at::empty({nnz}, sorted.options().dtype(at::kBool));
    begins.narrow(0, 0, 1).fill_(true);
    Tensor later = begins.narrow(0, 1, nnz - 1);
    at::ne_out(later, sorted.narrow(0, 1, nnz - 1), sorted.narrow(0, 0, nnz - 1));
    const Tensor firsts = order.index_select(0, at::nonzero(begins).squeeze(1));  // waits for the device
    const int64_t distinct = firsts.numel();
    const Tensor new_indices = indices.index_select(1, firsts);
    if (distinct == nnz) {
        return sparse_tensor(new_indices, values.index_select(0, firsts), self.sizes(), true);
    }
    const Tensor sums = add_by_run(values, order, begins.cumsum(0).sub_(1), distinct);
    return sparse_tensor(new_indices, sums, self.sizes(), true);
}

}  // namespace anymps::ops
