// Sampled products: the lanes of an element read its terms, which lie together.
#include <anymps/shaders/sparse/sddmm.h>

#include <ATen/ops/empty.h>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "ops/sparse/coordinates.h"
#include "ops/sparse/spmm.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::sddmm;

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
    const shader::SddmmArgs args{.out = kernels::address(out),
                                 .rows = kernels::address(row),
                                 .columns = kernels::address(column),
                                 .left = kernels::address(a),
                                 .right = kernels::address(b),
                                 .error = error.address,
                                 .height = a.size(1),
                                 .width = b.size(1),
                                 .left_batch = a.stride(0),
                                 .left_row = a.stride(1),
                                 .right_batch = b.stride(0),
                                 .right_row = b.stride(1),
                                 .count = static_cast<uint32_t>(out.numel()),
                                 .inner = static_cast<uint32_t>(a.size(2)),
                                 .batch = kernels::FastDivider(static_cast<uint32_t>(nnz)),
                                 .error_code = error.code};
    const uint32_t vector = is_wide(a) && is_wide(b) ? 4 : 1, workgroup = kernels::launch_config().workgroup;
    const uint32_t lanes = kernels::threads_per_row(args.count, kernels::ceil_div(args.inner, vector));
    const auto& kernel = at::isComplexType(out.scalar_type()) ? shader::sddmm_c64 : shader::sddmm_f32;
    kernel
        .call({.workgroup = workgroup,
               .subgroup = kernels::launch_config().subgroup,
               .type = kernels::code(out.scalar_type()),
               .index_type = kernels::code(column.scalar_type()),
               .lanes = lanes,
               .vector = vector})
        .read(row)
        .read(column)
        .read(a)
        .read(b)
        .write(out)
        .dispatch(args, kernels::flat_grid(uint64_t{args.count} * lanes, workgroup));
    return out;
}

}  // namespace anymps::ops
