// gather, scatter and its reductions.
#include <anymps/ops/indexing/gather_scatter_ops.h>

#include <ATen/Dispatch.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReductionType.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/DimVector.h>

#include "kernels/check_dtype.h"
#include "ops/indexing/indexed_copy.h"

namespace anymps::ops {
namespace {

using at::native::ReductionType;

IndexedOperation operation_of(ReductionType reduction) {
    switch (reduction) {
        case ReductionType::SUM:
        case ReductionType::MEAN:
            return IndexedOperation::Add;
        case ReductionType::PROD:
            return IndexedOperation::Multiply;
        case ReductionType::MIN:
            return IndexedOperation::Minimum;
        case ReductionType::MAX:
            return IndexedOperation::Maximum;
    }
    TORCH_INTERNAL_ASSERT(false);
}

// Complex numbers have no order, and means of truth values are refused as on the CPU.
void check_reduces(ReductionType reduction, ScalarType type) {
    const bool ordered = reduction == ReductionType::MIN || reduction == ReductionType::MAX;
    const bool mean = reduction == ReductionType::MEAN;
    const char* name = mean ? "mean" : reduction == ReductionType::MAX ? "amax" : "amin";
    kernels::check_implemented(!(ordered && at::isComplexType(type)) && !(mean && type == at::kBool), type,
                               "scatter_gather_tensor_cpu_reduce_", name);
}

// What does not change the other operand of a reduction.
Scalar identity_of(ReductionType reduction, ScalarType type) {
    const bool floating = at::isFloatingType(type);
    const double infinity = std::numeric_limits<double>::infinity();
    switch (reduction) {
        case ReductionType::SUM:
        case ReductionType::MEAN:
            return 0;
        case ReductionType::PROD:
            return 1;
        case ReductionType::MIN:
        case ReductionType::MAX: {
            const bool low = reduction == ReductionType::MAX;
            if (floating) return low ? -infinity : infinity;
            if (type == at::kBool) return !low;
            return AT_DISPATCH_INTEGRAL_TYPES(type, "scatter_reduce", [&] {
                return Scalar(low ? std::numeric_limits<scalar_t>::lowest()
                                  : std::numeric_limits<scalar_t>::max());
            });
        }
    }
    TORCH_INTERNAL_ASSERT(false);
}

void scatter(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src, const Tensor& out,
             IndexedOperation operation, const char* op) {
    if (!self.is_same(out)) out.copy_(self);
    if (index.numel() == 0) return;
    dim = at::maybe_wrap_dim(dim, self.dim());
    indexed_copy_dim(out, src, index, dim, {.op = op, .indexed_destination = true, .operation = operation});
}

// A number as a source of index's shape.
Tensor source(const Scalar& value, const Tensor& index, const Tensor& self) {
    return number_for(self, value).expand(index.dim() == 0 ? IntArrayRef({1}) : index.sizes());
}

// out = self, then out.select(dim, index[i]) reduced with src.select(dim, i); without self: what is reduced
// replaces the elements.
void scatter_reduce(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& src,
                    ReductionType reduction, bool include_self, const Tensor& out, const char* op) {
    if (!self.is_same(out)) out.copy_(self);
    if (index.numel() == 0) return;
    check_reduces(reduction, self.scalar_type());
    const IndexedOperation operation = operation_of(reduction);
    if (!reduce_rows_dim(
            out, src, index, dim,
            {.op = op, .indexed_destination = true, .operation = operation, .replaces = !include_self})) {
        if (!include_self) {
            scatter(out, dim, index, source(identity_of(reduction, self.scalar_type()), index, self), out,
                    IndexedOperation::Assign, op);
        }
        scatter(out, dim, index, src, out, operation, op);
    }
    if (reduction != ReductionType::MEAN) return;
    // Where an index is that of a whole row it is counted once.
    auto sizes = out.sizes().vec();
    Tensor counted = index;
    for (int64_t d = 0; d < out.dim() && out.dim() == index.dim(); ++d) {
        if (d == dim || index.stride(d) != 0 || index.size(d) != out.size(d)) continue;
        sizes[d] = 1;
        counted = counted.narrow(d, 0, 1);
    }
    Tensor count = include_self ? at::ones(sizes, out.options()) : at::zeros(sizes, out.options());
    scatter(count, dim, counted, source(1, counted, count), count, IndexedOperation::Add, op);
    count.masked_fill_(count.eq(0), 1);
    Tensor mean = out;
    if (at::isFloatingType(out.scalar_type()) || at::isComplexType(out.scalar_type())) {
        mean.div_(count);
    } else {
        mean.div_(count, "floor");
    }
}

}  // namespace

TORCH_IMPL_FUNC(gather_out)
(const Tensor& self, int64_t dim, const Tensor& index, bool sparse_grad, const Tensor& out) {
    if (index.numel() == 0) return;
    dim = at::maybe_wrap_dim(dim, self.dim());
    indexed_copy_dim(out, self, index, dim, {.op = "gather"});
}

ANYMPS_ROW(scatter_src_out, scatter(self, dim, index, src, out, IndexedOperation::Assign, "scatter"))
ANYMPS_ROW(scatter_value_out,
           scatter(self, dim, index, source(value, index, self), out, IndexedOperation::Assign, "scatter"))
ANYMPS_ROW(scatter_reduce_out, scatter(self, dim, index, src, out,
                                       operation_of(at::native::get_operator_enum(reduce, false)), "scatter"))
ANYMPS_ROW(scatter_value_reduce_out,
           scatter(self, dim, index, source(value, index, self), out,
                   operation_of(at::native::get_operator_enum(reduce, false)), "scatter"))
ANYMPS_ROW(scatter_add_out, scatter(self, dim, index, src, out, IndexedOperation::Add, "scatter_add"))
ANYMPS_ROW(scatter_reduce_two_out,
           scatter_reduce(self, at::maybe_wrap_dim(dim, self.dim()), index, src,
                          at::native::get_operator_enum(reduce, true), include_self, out, "scatter_reduce"))

TORCH_IMPL_FUNC(index_reduce_out)
(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, c10::string_view reduce,
 bool include_self, const Tensor& out) {
    TORCH_WARN_ONCE("index_reduce() is in beta and the API may change at any time.");
    const ScalarType type = self.scalar_type();
    kernels::check_implemented(type != at::kBool && !at::isComplexType(type), type,
                               include_self ? "index_func_" : "index_reduce_func_exclude_input_init");
    const Tensor from = source.dim() == 0 ? source.view(1) : source;
    // The vector as an index of from's positions that moves along dim only.
    c10::DimVector strides(from.dim(), 0);
    strides[dim] = index.dim() == 0 ? 1 : index.stride(0);
    scatter_reduce(self, dim, index.as_strided(from.sizes(), strides), from,
                   at::native::get_operator_enum(reduce, true), include_self, out, "index_reduce");
}

}  // namespace anymps::ops
