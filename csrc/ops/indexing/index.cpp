// Advanced indexing: tensor[indices], tensor[indices] = values, take, put and the masked forms.
#include <anymps/ops/indexing/index_ops.h>

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorAdvancedIndexing.h>
#include <ATen/native/TensorAdvancedIndexingUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <ATen/ops/where.h>

#include "ops/indexing/indexed_copy.h"
#include "ops/indexing/indexed_rows.h"
#include "ops/indexing/ordered_rows.h"

namespace anymps::ops {
namespace {

using OptionalTensors = c10::List<std::optional<Tensor>>;

// A mask without dimensions leaves none.
void check_indexed(const char* op, size_t dimensions) {
    TORCH_CHECK_INDEX(dimensions > 0, op, ": expected an index of at least one dimension");
}

at::TensorIterator index_put_iterator(const at::native::AdvancedIndex& info, const Tensor& value) {
    TORCH_CHECK(at::is_expandable_to(value.sizes(), info.src.sizes()),
                "shape mismatch: value tensor of shape ", value.sizes(),
                " cannot be broadcast to indexing result of shape ", info.src.sizes());
    TORCH_CHECK(value.scalar_type() == info.src.scalar_type(),
                "Index put requires the source and destination dtypes match, got ", info.src.scalar_type(),
                " for the destination and ", value.scalar_type(), " for the source.");
    at::TensorIteratorConfig config;
    config.set_check_mem_overlap(false).resize_outputs(false).check_all_same_dtype(false);
    config.add_output(info.src).add_const_input(value);
    for (const Tensor& index : info.indices) config.add_const_input(index);
    return config.build();
}

// self[indices] += values as adds_in_float says, for `count` elements; whether that was done. A mask names no
// place twice.
bool accumulated_in_float(Tensor& self, const OptionalTensors& indices, const Tensor& values, int64_t count) {
    if (!adds_in_float(self, count, IndexedOperation::Add)) return false;
    for (const std::optional<Tensor>& index : indices) {
        if (index.has_value() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte))
            return false;
    }
    const ScalarType wide = at::toOpMathType(self.scalar_type());
    Tensor sums = self.to(wide);
    sums.index_put_(indices, values.to(wide), true);
    self.copy_(sums);
    return true;
}

// The index tensors as one int64 index [count] of rows, the indexed dimensions flattened. Where one of them
// is out of range, so is the row.
Tensor row_index(const at::native::AdvancedIndex& info) {
    Tensor row, outside;
    int64_t rows = 1;
    for (size_t k = 0; k < info.indices.size(); ++k) {
        const int64_t size = info.indexed_sizes[k];
        Tensor index = info.indices[k].reshape(-1).to(at::kLong);
        index = at::where(index.lt(0), index.add(size), index);
        const Tensor beyond = index.lt(0).logical_or_(index.ge(size));
        outside = outside.defined() ? outside.logical_or_(beyond) : beyond;
        row = row.defined() ? row.mul_(size).add_(index) : index;
        rows *= size;
    }
    return at::where(outside, rows, row);
}

// self[indices] op= value where elements for one place meet in the order of the indices.
void put_in_order(const at::native::AdvancedIndex& info, const Tensor& value, const IndexedCopy& how) {
    const int64_t before = info.dims_before, after = info.src.dim() - info.dims_after;
    at::DimVector sizes(info.indexed_sizes), strides, order;
    for (const int64_t bytes : info.indexed_strides)
        strides.push_back(bytes / static_cast<int64_t>(info.src.element_size()));
    for (int64_t d = before; d < after; ++d) order.push_back(d);
    for (int64_t d = 0; d < info.src.dim(); ++d) {
        if (d >= before && d < after) continue;
        sizes.push_back(info.src.size(d));
        strides.push_back(info.src.stride(d));
        order.push_back(d);
    }
    const Tensor self = info.src.as_strided(sizes, strides);
    const Tensor index = row_index(info), from = value.expand(info.src.sizes()).permute(order);
    const int64_t width = info.src.numel() / index.numel();
    const Tensor rows = self.reshape({-1, width});
    ordered_rows(rows, from.reshape({-1, width}), index, how);
    if (!rows.is_alias_of(self)) self.copy_(rows.view(sizes));
}

void check_take(const Tensor& self, const Tensor& index, const char* op) {
    TORCH_CHECK(index.scalar_type() == at::kLong, op, "(): Expected a long tensor for index, but got ",
                index.scalar_type());
}

}  // namespace

TORCH_IMPL_FUNC(index_Tensor_out)
(const Tensor& self, at::DimVector sizes, at::DimVector strides, const Tensor& result) {
    check_indexed("index", sizes.size());
    indexed_copy(*this, {.op = "index", .wrap = true}, sizes, strides);
}

Tensor& ANYMPS_FUNC(_index_put_impl_)(Tensor& self, const OptionalTensors& indices, const Tensor& values,
                                      bool accumulate, bool unsafe) {
    TORCH_CHECK_INDEX(indices.size() <= static_cast<size_t>(self.dim()),
                      "too many indices for tensor of dimension ", self.dim(), " (got ", indices.size(), ")");
    const bool overlaps = at::has_internal_overlap(self) == at::MemOverlap::Yes;
    if (overlaps) {
        TORCH_WARN(
            "Use of index_put_ on expanded tensors is deprecated. Please clone() the tensor before "
            "performing "
            "this operation. This also applies to advanced indexing e.g. tensor[indices] = tensor");
    }
    if (!accumulate) {
        auto [possible, mask] = at::native::canDispatchToMaskedFill(self, indices, values);
        if (possible) return self.masked_fill_(mask, values.item());
    }
    Tensor value = values;
    if (values.device() != self.device() && values.numel() == 1 && values.dim() == 0)
        value = values.to(self.device());
    at::assert_no_overlap(self, value);
    for (const std::optional<Tensor>& index : indices) {
        if (index.has_value()) at::assert_no_overlap(self, *index);
    }
    auto info = at::native::make_info(self, indices);
    check_indexed("index_put_", info.indices.size());
    auto iter = index_put_iterator(info, value);
    const IndexedCopy how{.op = "index_put_",
                          .indexed_destination = true,
                          .operation = accumulate ? IndexedOperation::Add : IndexedOperation::Assign,
                          .wrap = true};
    if (accumulate && !overlaps &&
        (reduce_rows(iter, how, info.indexed_sizes, info.indexed_strides) ||
         accumulated_in_float(self, indices, value, iter.numel())))
        return self;
    if (at::globalContext().deterministicAlgorithms() && iter.numel() > 0 &&
        order_matters(how.operation, self.scalar_type())) {
        if (!overlaps) {
            put_in_order(info, value, how);
            return self;
        }
        at::globalContext().alertNotDeterministic("index_put_ of an expanded tensor");
    }
    indexed_copy(iter, how, info.indexed_sizes, info.indexed_strides);
    return self;
}

Tensor& ANYMPS_FUNC(take_out)(const Tensor& self, const Tensor& index, Tensor& out) {
    check_take(self, index, "take");
    TORCH_CHECK(self.scalar_type() == out.scalar_type(),
                "take(): self and out expected to have the same dtype, but got self.dtype = ",
                self.scalar_type(), " and out.dtype = ", out.scalar_type());
    TORCH_CHECK_INDEX(!(self.numel() == 0 && index.numel() != 0),
                      "take(): tried to take from an empty tensor");
    at::assert_no_internal_overlap(out);
    at::assert_no_overlap(out, self);
    at::assert_no_overlap(out, index);
    at::native::resize_output(out, index.sizes());
    if (index.numel() == 0) return out;
    const Tensor flat = self.reshape(-1);
    const Tensor positions = index.reshape(-1);
    Tensor taken = out.is_contiguous() ? out.view(-1) : at::empty({index.numel()}, out.options());
    indexed_copy_dim(taken, flat, positions, 0, {.op = "take", .wrap = true});
    if (!out.is_contiguous()) out.copy_(taken.view(out.sizes()));
    return out;
}

ANYMPS_ROW(take, take_out(self, index, NewTensor(at::empty(index.sizes(), self.options()))))

Tensor& ANYMPS_FUNC(put_)(Tensor& self, const Tensor& index, const Tensor& source, bool accumulate) {
    // Of several elements for one place any may stay; PyTorch refuses that on every device.
    if (!accumulate) at::globalContext().alertNotDeterministic("put_");
    check_take(self, index, "put_");
    TORCH_CHECK(self.scalar_type() == source.scalar_type(),
                "put_(): self and source expected to have the same dtype, but got self.dtype = ",
                self.scalar_type(), " and source.dtype = ", source.scalar_type());
    TORCH_CHECK_INDEX(
        index.numel() == source.numel(),
        "put_(): Expected source and index to have the same number of elements, but got source.numel() = ",
        source.numel(), ", index.numel() = ", index.numel());
    TORCH_CHECK_INDEX(!(self.numel() == 0 && index.numel() != 0),
                      "put_(): Tried to put elements into an empty tensor");
    at::assert_no_internal_overlap(self);
    at::assert_no_overlap(self, index);
    at::assert_no_overlap(self, source);
    if (index.numel() == 0) return self;
    const Tensor flat = self.contiguous().view(-1);
    indexed_copy_dim(flat, source.reshape(-1), index.reshape(-1), 0,
                     {.op = "put_",
                      .indexed_destination = true,
                      .operation = accumulate ? IndexedOperation::Add : IndexedOperation::Assign,
                      .wrap = true});
    if (!self.is_contiguous()) self.copy_(flat.view(self.sizes()));
    return self;
}

Tensor& ANYMPS_FUNC(masked_scatter_)(Tensor& self, const Tensor& mask, const Tensor& source) {
    at::assert_no_internal_overlap(self);
    TORCH_CHECK(self.scalar_type() == source.scalar_type(),
                "masked_scatter_: expected self and source to have same dtypes but got ", self.scalar_type(),
                " and ", source.scalar_type());
    TORCH_CHECK(mask.scalar_type() == at::kBool,
                "masked_scatter_ only supports boolean masks, but got mask with dtype ", mask.scalar_type());
    if (self.numel() == 0) return self;
    const Tensor to = self.dim() == 0 ? self.unsqueeze(0) : self;
    const Tensor where = mask.expand(self.sizes()).view_as(to).nonzero();
    TORCH_CHECK(where.size(0) <= source.numel(),
                "masked_scatter: expected self and source to have enough elements: ",
                "Number of elements of source < number of ones in mask");
    OptionalTensors indices;
    for (const Tensor& column : where.unbind(1)) indices.push_back(column);
    to.index_put_(indices, source.reshape(-1).narrow(0, 0, where.size(0)));
    return self;
}

}  // namespace anymps::ops
