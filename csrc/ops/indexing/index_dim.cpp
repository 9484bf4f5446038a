// index_select, index_add, index_copy, index_fill: one dimension addressed by a vector.
#include <anymps/ops/indexing/index_dim_ops.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>

#include "ops/indexing/indexed_copy.h"

namespace anymps::ops {
namespace {

// The vector as an index of `shape`'s positions that moves along `dim` only.
Tensor along(const Tensor& index, int64_t dim, IntArrayRef shape) {
    c10::DimVector strides(shape.size(), 0);
    strides[dim] = index.dim() == 0 ? 1 : index.stride(0);
    return index.as_strided(shape, strides);
}

Tensor at_least_1d(const Tensor& tensor) {
    return tensor.dim() == 0 ? tensor.view(1) : tensor;
}

// out.select(dim, index[i]) op= source.select(dim, i).
void into(const Tensor& out, int64_t dim, const Tensor& index, const Tensor& source,
          IndexedOperation operation, bool wrap, const char* op) {
    if (index.numel() == 0 || source.numel() == 0) return;
    if (operation == IndexedOperation::Add && out.numel() == 0) {  // the CPU looks at vectors' indices alone
        TORCH_CHECK_INDEX(out.dim() > 1, "index out of range in self");
        return;
    }
    const Tensor from = at_least_1d(source);
    indexed_copy_dim(at_least_1d(out), from, along(index, dim, from.sizes()), dim,
                     {.op = op, .indexed_destination = true, .operation = operation, .wrap = wrap});
}

void check_index_fill(const Tensor& self, int64_t dim, const Tensor& index) {
    TORCH_CHECK_INDEX(index.scalar_type() == at::kLong, "index_fill_(): Expected dtype int64 for index.");
    TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
    if (at::has_internal_overlap(self) == at::MemOverlap::Yes) {
        TORCH_WARN(
            "Use of index_fill_ on expanded tensors is deprecated. Please clone() the tensor before "
            "performing "
            "this operation. This also applies to advanced indexing e.g. tensor[mask] = scalar");
    }
    at::assert_no_overlap(self, index);
}

}  // namespace

Tensor& ANYMPS_FUNC(index_select_out)(const Tensor& self, int64_t dim, const Tensor& index, Tensor& out) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
    TORCH_CHECK(!(self.dim() == 0 && index.numel() != 1),
                "index_select(): Index to scalar can have only 1 value, got ", index.numel(), " value(s)");
    TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                "index_select(): Expected dtype int32 or int64 for index");
    TORCH_CHECK(self.scalar_type() == out.scalar_type(),
                "index_select(): self and result must have the same scalar type");
    TORCH_CHECK(dim == 0 || dim < self.dim(), "index_select(): Indexing dim ", dim,
                " is out of bounds of tensor");
    at::assert_no_internal_overlap(out);
    at::assert_no_overlap(out, self);
    at::assert_no_overlap(out, index);
    if (self.dim() > 0 && self.size(dim) == 0 && index.numel() > 0) {
        TORCH_CHECK_INDEX(self.dim() > 1, "index out of range in self");
        TORCH_CHECK(false, "index_select(): self indexing axis dim should be positive");
    }
    auto sizes = self.sizes().vec();
    if (self.dim() > 0) sizes[dim] = index.numel();
    at::native::resize_output(out, sizes);
    if (out.numel() == 0) return out;
    const Tensor to = at_least_1d(out);
    indexed_copy_dim(to, at_least_1d(self), along(index, dim, to.sizes()), dim, {.op = "index_select"});
    return out;
}

ANYMPS_ROW(index_select, index_select_out(self, dim, index, NewTensor(self.options())))

TORCH_IMPL_FUNC(index_add_out)
(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const Scalar& alpha,
 const Tensor& out) {
    if (!out.is_same(self)) out.copy_(self);
    const bool scaled =
        !(alpha.isIntegral(true) && alpha.to<int64_t>() == 1) && alpha.toComplexDouble() != 1.0;
    const Scalar factor = source.scalar_type() == at::kBool ? Scalar(alpha.to<bool>()) : alpha;
    into(out, dim, index, scaled ? source.mul(factor) : source, IndexedOperation::Add, false, "index_add");
}

TORCH_IMPL_FUNC(index_copy_out)
(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const Tensor& out) {
    if (!out.is_same(self)) out.copy_(self);
    into(out, dim, index, source, IndexedOperation::Assign, false, "index_copy_");
}

Tensor& ANYMPS_FUNC(index_fill__int_Scalar)(Tensor& self, int64_t dim, const Tensor& index,
                                            const Scalar& value) {
    check_index_fill(self, dim, index);
    TORCH_CHECK(self.is_complex() || !value.isComplex(),
                "index_fill_(): Converting complex Scalar to non-complex type is not supported");
    dim = at::maybe_wrap_dim(dim, self.dim());
    const Tensor to = at_least_1d(self);
    auto shape = to.sizes().vec();
    shape[dim] = index.numel();
    into(self, dim, index, number_for(self, value).expand(shape), IndexedOperation::Assign, true,
         "index_fill_");
    return self;
}

Tensor& ANYMPS_FUNC(index_fill__int_Tensor)(Tensor& self, int64_t dim, const Tensor& index,
                                            const Tensor& value) {
    TORCH_CHECK(value.dim() == 0,
                "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ", value.dim(),
                " dimension(s).");
    return index_fill__int_Scalar(self, dim, index, value.item());
}

}  // namespace anymps::ops
