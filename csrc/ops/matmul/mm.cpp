// mm, addmm, bmm, baddbmm and their forms with a dtype of the result, _addmm_activation, _int_mm, addmv, dot,
// vdot, addbmm.
#include <anymps/ops/matmul/mm_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>

#include "gemm/gemm.h"

namespace anymps::ops {
namespace {

void check_same_dtype(const Tensor& a, const Tensor& b) {
    TORCH_CHECK(a.dtype() == b.dtype(), "expected m1 and m2 to have the same dtype, but got: ", a.dtype(),
                " != ", b.dtype());
}

bool overlaps(const Tensor& out, const gemm::Matrices& input) {
    return input.tensor != nullptr && out.is_alias_of(*input.tensor) &&
           at::get_overlap_status(out, *input.tensor) != at::MemOverlapStatus::No;
}

// Runs a product, into a fresh tensor first where `out` overlaps an operand, or self other than element by
// element, or is a conjugate view.
void run_via_temporary(gemm::Gemm gemm, const Tensor& out) {
    at::assert_no_internal_overlap(out);
    TORCH_CHECK(!gemm.self.tensor || gemm.self.tensor->dtype() == out.dtype(), gemm.name,
                ": expected self of dtype ", out.dtype(), ", but found ",
                gemm.self.tensor ? gemm.self.tensor->dtype() : out.dtype());
    const bool self_apart = overlaps(out, gemm.self) &&
                            at::get_overlap_status(out, *gemm.self.tensor) != at::MemOverlapStatus::Full;
    const bool apart = overlaps(out, gemm.a) || overlaps(out, gemm.b) || self_apart || out.is_conj();
    if (!apart) return gemm.run();
    const Tensor fresh = at::empty(out.sizes(), out.options());
    gemm.out = out.dim() == 1 ? gemm::Matrices{&fresh, 0, 1, 0} : gemm::matrices(fresh);
    gemm.run();
    out.copy_(fresh);
}

// self expanded to the shape of out, or out itself where it is that (an in-place call).
Tensor expand_self(const Tensor& self, const Tensor& out, const char* name) {
    return self.sizes() == out.sizes() ? self : *at::expand_size(self, out.sizes(), name);
}

// Of operands without elements, which may have no memory: no kernel reads them.
void multiply_nothing(const Tensor& self, const Scalar& beta, Tensor out) {
    at::assert_no_internal_overlap(out);
    if (!self.defined() || beta.equal(0)) {
        out.zero_();
    } else {
        out.copy_(self.mul(beta).expand(out.sizes()));
    }
}

void multiply(const char* name, const Tensor& self_, const Tensor& a_, const Tensor& b_, const Scalar& beta,
              const Scalar& alpha, const Tensor& out) {
    // PyTorch hands conjugate views to these operators as they are.
    const Tensor self = self_.defined() ? self_.resolve_conj() : self_;
    const Tensor a = a_.resolve_conj(), b = b_.resolve_conj();
    if (a.size(-1) == 0) return multiply_nothing(self, beta, out);
    const bool batched = out.dim() == 3;
    gemm::Gemm gemm{name,
                    batched ? a.size(0) : 1,
                    a.size(-2),
                    b.size(-1),
                    a.size(-1),
                    gemm::matrices(a),
                    gemm::matrices(b),
                    gemm::matrices(out),
                    self.defined() ? gemm::matrices(self) : gemm::kNoMatrices,
                    beta,
                    alpha};
    run_via_temporary(gemm, out);
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

// The forms with out_dtype: that of the operands, or float32 for those of 16 bits.
void check_out_dtype(const Tensor& a, const Tensor& b, ScalarType out_dtype, const Tensor& out) {
    TORCH_CHECK(out_dtype == out.scalar_type(),
                "out_dtype must be the same as the dtype of the provided out tensor");
    TORCH_CHECK(a.scalar_type() == b.scalar_type(), "input dtypes must be the same");
    const bool widened =
        out_dtype == at::kFloat && (a.scalar_type() == at::kHalf || a.scalar_type() == at::kBFloat16);
    TORCH_CHECK(out_dtype == a.scalar_type() || widened,
                "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
}

void check_matrices(const Tensor& a, const Tensor& b) {
    TORCH_CHECK(a.dim() == 2, "self must be a matrix, got ", a.dim(), "-D tensor");
    TORCH_CHECK(b.dim() == 2, "mat2 must be a matrix, got ", b.dim(), "-D tensor");
    TORCH_CHECK(a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x",
                a.size(1), " and ", b.size(0), "x", b.size(1), ")");
}

void check_batches(const Tensor& a, const Tensor& b) {
    TORCH_CHECK(a.dim() == 3, "batch1 must be a 3D tensor");
    TORCH_CHECK(b.dim() == 3, "batch2 must be a 3D tensor");
    const int64_t expected[] = {a.size(0), a.size(2)};
    TORCH_CHECK(b.size(0) == expected[0] && b.size(1) == expected[1],
                "Expected size for first two dimensions of batch2 tensor to be: [", expected[0], ", ",
                expected[1], "] but got: [", b.size(0), ", ", b.size(1), "].");
}

// self as a summand of a result of another dtype.
Tensor summand(const Tensor& self, const Tensor& out, const char* name) {
    return expand_self(self.to(out.scalar_type()), out, name);
}

// What is wrong is said by the CPU's operator, whose words are those of the version of PyTorch.
void check_int_mm(const Tensor& self, const Tensor& mat2, const Tensor& out) {
    const bool operands = self.dim() == 2 && mat2.dim() == 2 && self.size(1) == mat2.size(0) &&
                          (self.scalar_type() == at::kChar || self.scalar_type() == at::kByte) &&
                          mat2.scalar_type() == at::kChar;
    const auto fits = [&] {
        return out.dim() == 2 && out.size(0) == self.size(0) && out.size(1) == mat2.size(1) &&
               out.scalar_type() == at::kInt && out.is_contiguous();
    };
    if (operands && (!out.defined() || fits())) return;
    const auto on_cpu = [](const Tensor& t) {
        return at::empty_strided(t.sizes(), t.strides(), at::dtype(t.scalar_type()));
    };
    if (out.defined()) {
        Tensor result = on_cpu(out);
        at::_int_mm_out(result, on_cpu(self), on_cpu(mat2));
    } else {
        at::_int_mm(on_cpu(self), on_cpu(mat2));
    }
    TORCH_CHECK(false, "_int_mm on MPS: the operands do not fit");
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

// With gelu or relu of the result.
TORCH_IMPL_FUNC(_addmm_activation_out)
(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha,
 bool use_gelu, const Tensor& out) {
    check_same_dtype(mat1, mat2);
    multiply("addmm", expand_self(self, out, "addmm_out"), mat1, mat2, beta, alpha, out);
    Tensor result = out;
    if (use_gelu) {
        at::gelu_(result);
    } else {
        at::relu_(result);
    }
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

Tensor& ANYMPS_FUNC(mm_dtype_out)(const Tensor& self, const Tensor& mat2, ScalarType out_dtype, Tensor& out) {
    check_matrices(self, mat2);
    check_out_dtype(self, mat2, out_dtype, out);
    at::native::resize_output(out, {self.size(0), mat2.size(1)});
    multiply("mm", {}, self, mat2, 0, 1, out);
    return out;
}

ANYMPS_ROW(mm_dtype, mm_dtype_out(self, mat2, out_dtype, NewTensor(self.options().dtype(out_dtype))))

Tensor& ANYMPS_FUNC(addmm_dtype_out)(const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                                     ScalarType out_dtype, const Scalar& beta, const Scalar& alpha,
                                     Tensor& out) {
    check_matrices(mat1, mat2);
    check_out_dtype(mat1, mat2, out_dtype, out);
    at::native::resize_output(out, {mat1.size(0), mat2.size(1)});
    multiply("addmm", summand(self, out, "addmm_out"), mat1, mat2, beta, alpha, out);
    return out;
}

ANYMPS_ROW(addmm_dtype, addmm_dtype_out(self, mat1, mat2, out_dtype, beta, alpha,
                                        NewTensor(self.options().dtype(out_dtype))))

Tensor& ANYMPS_FUNC(bmm_dtype_out)(const Tensor& self, const Tensor& mat2, ScalarType out_dtype,
                                   Tensor& out) {
    check_batches(self, mat2);
    check_out_dtype(self, mat2, out_dtype, out);
    at::native::resize_output(out, {self.size(0), self.size(1), mat2.size(2)});
    multiply("bmm", {}, self, mat2, 0, 1, out);
    return out;
}

ANYMPS_ROW(bmm_dtype, bmm_dtype_out(self, mat2, out_dtype, NewTensor(self.options().dtype(out_dtype))))

Tensor& ANYMPS_FUNC(baddbmm_dtype_out)(const Tensor& self, const Tensor& batch1, const Tensor& batch2,
                                       ScalarType out_dtype, const Scalar& beta, const Scalar& alpha,
                                       Tensor& out) {
    check_batches(batch1, batch2);
    check_out_dtype(batch1, batch2, out_dtype, out);
    at::native::resize_output(out, {batch1.size(0), batch1.size(1), batch2.size(2)});
    multiply("baddbmm", summand(self, out, "baddbmm"), batch1, batch2, beta, alpha, out);
    return out;
}

ANYMPS_ROW(baddbmm_dtype, baddbmm_dtype_out(self, batch1, batch2, out_dtype, beta, alpha,
                                            NewTensor(self.options().dtype(out_dtype))))

// self [m, k] int8 or uint8, mat2 [k, n] int8 -> int32 [m, n]. Errors in the words of the CPU.
Tensor& ANYMPS_FUNC(_int_mm_out)(const Tensor& self, const Tensor& mat2, Tensor& out) {
    check_int_mm(self, mat2, out);
    multiply("_int_mm", {}, self, mat2, 0, 1, out);
    return out;
}

Tensor ANYMPS_FUNC(_int_mm)(const Tensor& self, const Tensor& mat2) {
    check_int_mm(self, mat2, Tensor());
    Tensor out = at::empty({self.size(0), mat2.size(1)}, self.options().dtype(at::kInt));
    return _int_mm_out(self, mat2, out);
}

TORCH_IMPL_FUNC(addmv_out)
(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta, const Scalar& alpha,
 const Tensor& out) {
    TORCH_CHECK(mat.scalar_type() == vec.scalar_type(), "expected scalar type ", mat.scalar_type(),
                " but found ", vec.scalar_type());
    const Tensor expanded = expand_self(self, out, "addmv_out");
    gemm::Gemm gemm{"addmv",
                    1,
                    mat.size(0),
                    1,
                    mat.size(1),
                    gemm::matrices(mat),
                    {&vec, 0, vec.stride(0), 0},
                    {&out, 0, out.stride(0), 0},
                    {&expanded, 0, expanded.stride(0), 0},
                    beta,
                    alpha};
    run_via_temporary(gemm, out);
}

Tensor ANYMPS_FUNC(dot)(const Tensor& self_, const Tensor& other_) {
    check_dot(self_, other_);
    const Tensor self = self_.resolve_conj(), other = other_.resolve_conj();
    const Tensor out = at::empty({}, self.options());
    gemm::Gemm{"dot",
               1,
               1,
               1,
               self.numel(),
               {&self, 0, 0, self.stride(0)},
               {&other, 0, other.stride(0), 0},
               {&out, 0, 0, 0},
               gemm::kNoMatrices}
        .run();
    return out;
}

ANYMPS_ROW(vdot, dot(self.conj(), other))

Tensor& ANYMPS_FUNC(addbmm_out)(const Tensor& self, const Tensor& batch1, const Tensor& batch2,
                                const Scalar& beta, const Scalar& alpha, Tensor& out) {
    check_addbmm(batch1, batch2);
    const int64_t sizes[] = {batch1.size(1), batch2.size(2)};
    check_same_dtype(batch1, batch2);
    TORCH_CHECK(out.dtype() == batch2.dtype(), "self and mat2 must have the same dtype, but got ",
                out.dtype(), " and ", batch2.dtype());
    const Tensor expanded = at::expand_size(self, sizes, "addbmm_out")->to(out.scalar_type());
    at::native::resize_output(out, sizes);
    gemm::Gemm gemm{"addbmm",
                    batch1.size(0),
                    sizes[0],
                    sizes[1],
                    batch1.size(2),
                    gemm::matrices(batch1),
                    gemm::matrices(batch2),
                    gemm::matrices(out),
                    gemm::matrices(expanded),
                    beta,
                    alpha,
                    true};
    run_via_temporary(gemm, out);
    return out;
}

ANYMPS_ROW(addbmm, addbmm_out(self, batch1, batch2, beta, alpha, NewTensor(self.options())))
ANYMPS_ROW(addbmm_, addbmm_out(self, batch1, batch2, beta, alpha, self))

}  // namespace anymps::ops
