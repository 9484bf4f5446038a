// Sampled products: the lanes of an element read its terms, which lie together.
#include <ATen/ops/empty.h>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/kernel_call.h"
#include "ops/sparse/coordinates.h"
#include "ops/sparse/spmm.h"

namespace anymps::ops {
namespace {

// Twin of SddmmArgs in shaders/sddmm.slang.
struct SddmmArgs {
    uint64_t out, rows, columns, left, right, error;
    int64_t height, width, left_batch, left_row, right_batch, right_row;
    uint32_t count, inner;
    kernels::FastDivider batch;
    uint32_t error_code;
};

// Matrices [batch..., rows, terms] as [batch, rows, terms] whose terms follow one another.
at::Tensor with_terms_together(const at::Tensor& matrices) {
    const at::Tensor plain = matrices.resolve_conj().resolve_neg();
    const at::Tensor t = plain.dim() == 2 ? plain.unsqueeze(0) : plain.flatten(0, -3);
    return t.stride(2) == 1 || t.size(2) < 2 ? t : t.contiguous();
}

// Whether four terms are one aligned load, whatever the row.
bool is_wide(const at::Tensor& t) {
    const uint64_t bytes = t.element_size() == 2 ? 8 : 16;
    return t.size(2) % 4 == 0 && t.stride(0) % 4 == 0 && t.stride(1) % 4 == 0 &&
           kernels::address(t) % bytes == 0;
}

}  // namespace

at::Tensor sddmm(const char* op, const at::Tensor& pointers, const at::Tensor& columns,
                 const at::Tensor& left, const at::Tensor& right) {
    const at::Tensor out = at::empty(columns.sizes(), left.options());
    if (out.numel() == 0) return out;
    const at::Tensor a = with_terms_together(left), b = with_terms_together(right.mT());
    TORCH_CHECK(out.numel() <= UINT32_MAX && a.size(2) <= INT32_MAX, op, ": ", out.numel(), " elements of ",
                a.size(2), " terms are too many for the mps device");
    const int64_t nnz = columns.size(-1);
    const at::Tensor row = rows_of_elements(pointers, nnz), column = columns.contiguous();
    const auto error = runtime::encoder().error_slot(op);
    const SddmmArgs args{kernels::address(out),
                         kernels::address(row),
                         kernels::address(column),
                         kernels::address(a),
                         kernels::address(b),
                         error.address,
                         a.size(1),
                         b.size(1),
                         a.stride(0),
                         a.stride(1),
                         b.stride(0),
                         b.stride(1),
                         static_cast<uint32_t>(out.numel()),
                         static_cast<uint32_t>(a.size(2)),
                         kernels::FastDivider(static_cast<uint32_t>(nnz)),
                         error.code};
    const uint32_t vector = is_wide(a) && is_wide(b) ? 4 : 1, workgroup = kernels::tuning().workgroup;
    const uint32_t lanes = kernels::lanes_a_row(args.count, kernels::ceil_div(args.inner, vector));
    kernels::KernelCall(at::isComplexType(out.scalar_type()) ? "sddmm_c64" : "sddmm_f32",
                        {workgroup, kernels::tuning().subgroup, kernels::code(out.scalar_type()),
                         kernels::code(column.scalar_type()), lanes, vector})
        .read(row)
        .read(column)
        .read(a)
        .read(b)
        .write(out)
        .dispatch_pointer(args, kernels::flat_grid(uint64_t{args.count} * lanes, workgroup));
    return out;
}

}  // namespace anymps::ops
