// mm, addmm, bmm, baddbmm, addmv, dot, vdot, addbmm.
#include <anymps/ops/matmul/mm_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include "ops/matmul/gemm.h"

namespace anymps::ops {
namespace {

void check_same_dtype(const Tensor& a, const Tensor& b) {
    TORCH_CHECK(a.dtype() == b.dtype(), "expected m1 and m2 to have the same dtype, but got: ", a.dtype(),
                " != ", b.dtype());
}

bool overlaps(const Tensor& out, const Matrices& input) {
    return input.tensor != nullptr && out.is_alias_of(*input.tensor) &&
           at::get_overlap_status(out, *input.tensor) != at::MemOverlapStatus::No;
}

// Runs a product, into a fresh tensor first where `out` overlaps a factor, or self other than element by
// element, or is a conjugate view.
void run_apart(Gemm gemm, const Tensor& out) {
    const bool self_apart = overlaps(out, gemm.self) &&
                            at::get_overlap_status(out, *gemm.self.tensor) != at::MemOverlapStatus::Full;
    const bool apart = overlaps(out, gemm.a) || overlaps(out, gemm.b) || self_apart || out.is_conj();
    if (!apart) return gemm.run();
    const Tensor fresh = at::empty(out.sizes(), out.options());
    gemm.out = out.dim() == 1 ? Matrices{&fresh, 0, 1, 0} : matrices(fresh);
    gemm.run();
    out.copy_(fresh);
}

// self expanded to the shape of out, or out itself where it is that (an in-place call).
Tensor expand_self(const Tensor& self, const Tensor& out, const char* name) {
    return self.sizes() == out.sizes() ? self : *at::expand_size(self, out.sizes(), name);
}

void multiply(const char* name, const Tensor& self_, const Tensor& a_, const Tensor& b_, const Scalar& beta,
              const Scalar& alpha, const Tensor& out) {
    // PyTorch hands conjugate views to these operators as they are.
    const Tensor self = self_.defined() ? self_.resolve_conj() : self_;
    const Tensor a = a_.resolve_conj(), b = b_.resolve_conj();
    const bool batched = out.dim() == 3;
    Gemm gemm{name,
              batched ? a.size(0) : 1,
              a.size(-2),
              b.size(-1),
              a.size(-1),
              matrices(a),
              matrices(b),
              matrices(out),
              self.defined() ? matrices(self) : kNoMatrices,
              beta,
              alpha};
    run_apart(gemm, out);
}

void check_dot(const Tensor& self, const Tensor& other) {
    TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected, but got ", self.dim(), "D and ",
                other.dim(), "D tensors");
    TORCH_CHECK(self.scalar_type() == other.scalar_type(),
                "dot : expected both vectors to have same dtype, but found ", self.scalar_type(), " and ",
                other.scalar_type());
    TORCH_CHECK(self.numel() == other.numel(), "inconsistent tensor size, expected tensor [", self.numel(),
                "] and src [", other.numel(), "] to have the same number of elements, but got ", self.numel(),
                " and ", other.numel(), " elements respectively");
}

void check_addbmm(const Tensor& batch1, const Tensor& batch2) {
    TORCH_CHECK(batch1.dim() == 3, "batch1 must be a 3D tensor");
    TORCH_CHECK(batch2.dim() == 3, "batch2 must be a 3D tensor");
    TORCH_CHECK(batch1.size(0) == batch2.size(0), "batch1 and batch2 must have same number of batches, got ",
                batch1.size(0), " and ", batch2.size(0));
    TORCH_CHECK(batch1.size(2) == batch2.size(1), "Incompatible matrix sizes for bmm (", batch1.size(1), "x",
                batch1.size(2), " and ", batch2.size(1), "x", batch2.size(2), ")");
}

}  // namespace

TORCH_IMPL_FUNC(mm_out)(const Tensor& self, const Tensor& mat2, const Tensor& out) {
    check_same_dtype(self, mat2);
    multiply("mm", {}, self, mat2, 0, 1, out);
}

TORCH_IMPL_FUNC(addmm_out)
(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha,
 const Tensor& out) {
    check_same_dtype(mat1, mat2);
    multiply("addmm", expand_self(self, out, "addmm_out"), mat1, mat2, beta, alpha, out);
}

TORCH_IMPL_FUNC(bmm_out)(const Tensor& self, const Tensor& mat2, const Tensor& out) {
    TORCH_CHECK(self.scalar_type() == mat2.scalar_type(), "expected scalar type ", self.scalar_type(),
                " but found ", mat2.scalar_type());
    multiply("bmm", {}, self, mat2, 0, 1, out);
}

TORCH_IMPL_FUNC(baddbmm_out)
(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha,
 const Tensor& out) {
    TORCH_CHECK(batch1.scalar_type() == batch2.scalar_type(), "expected scalar type ", batch1.scalar_type(),
                " but found ", batch2.scalar_type());
    multiply("baddbmm", expand_self(self, out, "baddbmm"), batch1, batch2, beta, alpha, out);
}

TORCH_IMPL_FUNC(addmv_out)
(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta, const Scalar& alpha,
 const Tensor& out) {
    TORCH_CHECK(mat.scalar_type() == vec.scalar_type(), "expected scalar type ", mat.scalar_type(),
                " but found ", vec.scalar_type());
    const Tensor expanded = expand_self(self, out, "addmv_out");
    Gemm gemm{"addmv",
              1,
              mat.size(0),
              1,
              mat.size(1),
              matrices(mat),
              {&vec, 0, vec.stride(0), 0},
              {&out, 0, out.stride(0), 0},
              {&expanded, 0, expanded.stride(0), 0},
              beta,
              alpha};
    run_apart(gemm, out);
}

Tensor ANYMPS_FUNC(dot)(const Tensor& self_, const Tensor& other_) {
    check_dot(self_, other_);
    const Tensor self = self_.resolve_conj(), other = other_.resolve_conj();
    const Tensor out = at::empty({}, self.options());
    Gemm{"dot",
         1,
         1,
         1,
         self.numel(),
         {&self, 0, 0, self.stride(0)},
         {&other, 0, other.stride(0), 0},
         {&out, 0, 0, 0},
         kNoMatrices}
        .run();
    return out;
}

Tensor ANYMPS_FUNC(vdot)(const Tensor& self, const Tensor& other) {
    return dot(self.conj(), other);
}

Tensor& ANYMPS_FUNC(addbmm_out)(const Tensor& self, const Tensor& batch1, const Tensor& batch2,
                                const Scalar& beta, const Scalar& alpha, Tensor& out) {
    check_addbmm(batch1, batch2);
    const int64_t sizes[] = {batch1.size(1), batch2.size(2)};
    const Tensor expanded = *at::expand_size(self, sizes, "addbmm_out");
    check_same_dtype(batch1, batch2);
    at::native::resize_output(out, sizes);
    Gemm gemm{
        "addbmm",         batch1.size(0), sizes[0],           sizes[1], batch1.size(2), matrices(batch1),
        matrices(batch2), matrices(out),  matrices(expanded), beta,     alpha,          true};
    run_apart(gemm, out);
    return out;
}

Tensor ANYMPS_FUNC(addbmm)(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
                           const Scalar& alpha) {
    Tensor out = at::empty({0}, self.options());
    return addbmm_out(self, batch1, batch2, beta, alpha, out);
}

Tensor& ANYMPS_FUNC(addbmm_)(Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
                             const Scalar& alpha) {
    return addbmm_out(self, batch1, batch2, beta, alpha, self);
}

}  // namespace anymps::ops
