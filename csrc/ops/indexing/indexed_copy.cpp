#include "ops/indexing/indexed_copy.h"

#include <anymps/shaders/indexing/indexing.h>

#include <ATen/Context.h>
#include <ATen/OpMathType.h>
#include <ATen/native/NonEmptyUtils.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/DimVector.h>

#include <vector>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "ops/indexing/indexed_rows.h"
#include "ops/indexing/ordered_rows.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using kernels::FastDivider;

namespace shader = shaders::indexing;
using shader::IndexingArgs;
using shader::IndexTensor;

constexpr int kMaxIndices = shader::kMaxIndices;

// The argument block: IndexingArgs, the index tensors, then rows of {FastDivider, strides of dst, src,
// indices}.
class Arguments {
  public:
    explicit Arguments(const IndexingArgs& args) { append(args); }
    template <class T>
    void append(const T& value) {
        const auto* first = reinterpret_cast<const std::byte*>(&value);
        bytes_.insert(bytes_.end(), first, first + sizeof(T));
    }
    const std::vector<std::byte>& bytes() const { return bytes_; }

  private:
    std::vector<std::byte> bytes_;
};

struct Line {
    uint32_t length = 0;
    std::vector<int32_t> strides;  // of dst, src, indices along the line, in bytes
};

void dispatch(at::TensorIteratorBase& iter, const IndexedCopy& how, std::span<const int64_t> sizes,
              std::span<const int64_t> strides, const Line* line) {
    const int indices = iter.ntensors() - 2;
    TORCH_CHECK(indices <= kMaxIndices, "indexing by more than ", kMaxIndices,
                " tensors is not supported on mps");
    const auto address = [&](int arg) { return reinterpret_cast<uint64_t>(iter.data_ptr(arg)); };
    const auto error = runtime::encoder().error_slot(how.op);
    const uint32_t word = line || how.operation != IndexedOperation::Assign
                              ? static_cast<uint32_t>(iter.element_size(0))
                              : word_bytes(iter, strides);
    const auto per_word = static_cast<int64_t>(word / iter.element_size(0));
    Arguments args({.dst = address(0),
                    .src = address(1),
                    .error = error.address,
                    .error_code = error.code,
                    .count = static_cast<uint32_t>(iter.numel() / per_word),
                    .ndim = static_cast<uint32_t>(iter.ndim()),
                    .line_length = line ? line->length : 0,
                    .skip = how.skip});
    for (int k = 0; k < indices; ++k)
        args.append(IndexTensor{.address = address(2 + k), .size = sizes[k], .stride = strides[k]});
    for (int d = 0; d < iter.ndim(); ++d) {
        const int64_t step = d == 0 ? per_word : 1;
        args.append(FastDivider(static_cast<uint32_t>(iter.shape()[d] / step)));
        for (int t = 0; t < iter.ntensors(); ++t)
            args.append(static_cast<int32_t>(iter.strides(t)[d] * step));
    }
    if (line) {
        args.append(FastDivider());
        for (const int32_t stride : line->strides) args.append(stride);
    }
    const bool software = runtime::device().info().is_software;
    const uint32_t workgroup = kernels::flat_workgroup(), per_thread = line ? 1 : software ? 16 : 2;
    // Moved elements are bits, of types that no kernel computes in, too.
    const at::ScalarType type = how.operation == IndexedOperation::Assign
                                    ? kernels::integer_of_size(iter.element_size(0))
                                    : iter.dtype(0);
    auto call = (line ? shader::indexed_lines : shader::indexed_copy)
                    .call({.workgroup = workgroup,
                           .type = kernels::code(type),
                           .indices = static_cast<uint32_t>(indices),
                           .index_type = kernels::code(iter.dtype(2)),
                           .indexed_destination = how.indexed_destination || line != nullptr,
                           .operation = static_cast<uint32_t>(how.operation),
                           .wrap = how.wrap,
                           .per_thread = per_thread,
                           .word_bytes = word});
    call.write(iter.tensor_base(0));
    for (int t = 1; t < iter.ntensors(); ++t) call.read(iter.tensor_base(t));
    const uint64_t per_group = uint64_t{workgroup} * per_thread;
    call.dispatch_prefix(*reinterpret_cast<const IndexingArgs*>(args.bytes().data()), args.bytes().size(),
                         kernels::Grid::linear(kernels::ceil_div(iter.numel() / per_word, per_group)));
}

// The tensor as seen from index's positions, standing still in `dim`.
at::Tensor restrided(const at::Tensor& tensor, int64_t dim, at::IntArrayRef shape) {
    c10::DimVector strides(shape.size(), 0);
    for (size_t d = 0; d < shape.size(); ++d) {
        if (static_cast<int64_t>(d) != dim) strides[d] = at::native::ensure_nonempty_stride(tensor, d);
    }
    return tensor.as_strided(shape, strides);
}

at::Tensor cropped(const at::Tensor& tensor, at::IntArrayRef shape) {
    c10::DimVector strides(shape.size(), 0);
    for (size_t d = 0; d < shape.size(); ++d) strides[d] = at::native::ensure_nonempty_stride(tensor, d);
    return tensor.as_strided(shape, strides);
}

at::TensorIterator iterator(const at::Tensor& dst, const at::Tensor& src, const at::Tensor& index) {
    return at::TensorIteratorConfig()
        .set_check_mem_overlap(false)
        .resize_outputs(false)
        .check_all_same_dtype(false)
        .declare_static_shape(index.sizes())
        .add_output(dst)
        .add_const_input(src)
        .add_const_input(index)
        .build();
}

// The views of an indexed_copy_dim.
struct Along {
    Along(const at::Tensor& dst, const at::Tensor& src, const at::Tensor& index_, int64_t dim,
          const IndexedCopy& how)
        : index(index_.dim() == 0 ? index_.view(1) : index_) {
        const at::Tensor& indexed = how.indexed_destination ? dst : src;
        size = at::native::ensure_nonempty_size(indexed, dim);
        TORCH_CHECK(size > 0, "index ", index.flatten()[0].item<int64_t>(),
                    " is out of bounds for dimension ", dim, " with size 0");
        stride = at::native::ensure_nonempty_stride(indexed, dim) * indexed.element_size();
        const auto view = [&](const at::Tensor& t) {
            return &t == &indexed ? restrided(t, dim, index.sizes()) : cropped(t, index.sizes());
        };
        to = view(dst);
        from = view(src);
    }
    at::TensorIterator iterator() const { return ops::iterator(to, from, index); }

    at::Tensor index, to, from;
    int64_t size, stride;  // of the dimension that is indexed; bytes
};

}  // namespace

at::Tensor number_for(const at::Tensor& self, const at::Scalar& value) {
    if (self.scalar_type() == at::kHalf) (void)value.to<at::Half>();
    if (self.scalar_type() == at::kBFloat16) (void)value.to<at::BFloat16>();
    return at::scalar_tensor(value, self.options());
}

bool order_matters(IndexedOperation operation, at::ScalarType type) {
    switch (operation) {
        case IndexedOperation::Assign:
            return true;
        case IndexedOperation::Add:
        case IndexedOperation::Multiply:
            return !at::isIntegralType(type, /*includeBool=*/true);
        case IndexedOperation::Minimum:
        case IndexedOperation::Maximum:
            return false;
    }
    TORCH_INTERNAL_ASSERT(false);
}

bool adds_in_float(const at::Tensor& dst, int64_t count, IndexedOperation operation) {
    const at::ScalarType type = dst.scalar_type();
    return operation == IndexedOperation::Add && dst.numel() <= 4 * count &&
           (type == at::kHalf || type == at::kBFloat16 || type == at::kComplexHalf);
}

void indexed_copy(at::TensorIteratorBase& iter, const IndexedCopy& how, std::span<const int64_t> sizes,
                  std::span<const int64_t> strides) {
    if (iter.numel() == 0 || reduce_rows(iter, how, sizes, strides) || move_rows(iter, how, sizes, strides))
        return;
    if (!iter.can_use_32bit_indexing()) {
        for (auto& part : iter.with_32bit_indexing()) indexed_copy(part, how, sizes, strides);
        return;
    }
    dispatch(iter, how, sizes, strides, nullptr);
}

bool reduce_rows_dim(const at::Tensor& dst, const at::Tensor& src, const at::Tensor& index, int64_t dim,
                     const IndexedCopy& how) {
    if (!may_reduce_rows(dst.scalar_type(), index.numel(), how.operation)) return false;
    const Along along(dst, src, index, dim, how);
    auto iter = along.iterator();
    return reduce_rows(iter, how, std::span(&along.size, 1), std::span(&along.stride, 1));
}

void indexed_copy_dim(const at::Tensor& dst, const at::Tensor& src, const at::Tensor& index, int64_t dim,
                      const IndexedCopy& how) {
    if (index.numel() == 0 || reduce_rows_dim(dst, src, index, dim, how)) return;
    if (adds_in_float(dst, index.numel(), how.operation)) {
        const at::ScalarType wide = at::toOpMathType(dst.scalar_type());
        const at::Tensor sums = dst.to(wide);
        indexed_copy_dim(sums, src.to(wide), index, dim, how);
        dst.copy_(sums);
        return;
    }
    const Along along(dst, src, index, dim, how);
    const at::Tensor &to = along.to, &from = along.from, &at_index = along.index;
    const bool wide = dst.element_size() == 8 && how.operation != IndexedOperation::Assign &&
                      how.operation != IndexedOperation::Add;
    const bool fixed = at::globalContext().deterministicAlgorithms() && !how.any_order &&
                       order_matters(how.operation, dst.scalar_type());
    if (!how.indexed_destination || !(wide || fixed)) {
        auto iter = along.iterator();
        indexed_copy(iter, how, std::span(&along.size, 1), std::span(&along.stride, 1));
        return;
    }
    // A tensor of one dimension is one line, the work of one thread.
    const bool adds = how.operation == IndexedOperation::Add;
    const bool as_rows =
        how.operation == IndexedOperation::Assign || (adds && at_index.numel() > kLongestSum);
    if (fixed && at_index.dim() == 1 && as_rows && how.skip == IndexedCopy{}.skip) {
        ordered_rows(dst.dim() == 0 ? dst.view({1, 1}) : dst.unsqueeze(1), from.unsqueeze(1), at_index, how);
        return;
    }
    const auto byte_stride = [&](const at::Tensor& t) {
        return static_cast<int32_t>(t.stride(dim) * t.element_size());
    };
    const Line line{static_cast<uint32_t>(at_index.size(dim)),
                    {byte_stride(to), byte_stride(from), byte_stride(at_index)}};
    const at::Tensor first_to = to.select(dim, 0), first_from = from.select(dim, 0),
                     first_index = at_index.select(dim, 0);
    auto lines = iterator(first_to, first_from, first_index);  // borrows them
    TORCH_CHECK(lines.can_use_32bit_indexing(), how.op,
                ": the tensor is too large for an ordered scatter on mps");
    dispatch(lines, how, std::span(&along.size, 1), std::span(&along.stride, 1), &line);
}

}  // namespace anymps::ops
