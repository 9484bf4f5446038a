#include <anymps/ops/sparse/sampled_addmm_ops.h>

#include "ops/sparse/compressed.h"
#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"
#include "ops/sparse/spmm.h"

namespace anymps::ops {
namespace {

void check(const Tensor& self, const Tensor& mat1, const Tensor& mat2, at::Layout layout,
           at::ScalarType type) {
    TORCH_CHECK(mat1.layout() == at::kStrided,
                "sampled_addmm: Expected mat1 to have strided layout, but got ", mat1.layout());
    TORCH_CHECK(mat2.layout() == at::kStrided,
                "sampled_addmm: Expected mat2 to have strided layout, but got ", mat2.layout());
    TORCH_CHECK(layout == at::kSparseCsr,
                "sampled_addmm: Expected result to have sparse csr layout, but got ", layout);
    TORCH_CHECK(self.dense_dim() == 0, "sampled_addmm: Expected non-hybrid self tensor");
    const auto same = [](const char* a, at::ScalarType x, const char* b, at::ScalarType y) {
        TORCH_CHECK(x == y, "sampled_addmm: Expected ", a, " and ", b, " to have the same dtype, but got ", x,
                    " and ", y);
    };
    same("mat1", mat1.scalar_type(), "mat2", mat2.scalar_type());
    same("mat1", mat1.scalar_type(), "self", self.scalar_type());
    same("result", type, "self", self.scalar_type());
    TORCH_CHECK(mat1.dim() >= 2, "sampled_addmm: Expected mat1 to be a matrix, got ", mat1.dim(),
                "-D tensor");
    TORCH_CHECK(mat2.dim() >= 2, "sampled_addmm: Expected mat2 to be a matrix, got ", mat2.dim(),
                "-D tensor");
    const auto batch = [](const Tensor& t) { return t.sizes().slice(0, t.dim() - 2); };
    TORCH_CHECK(batch(mat1) == batch(mat2),
                "sampled_addmm: Expected mat1 and mat2 to have the same batch size, but got ", batch(mat1),
                " and ", batch(mat2));
    TORCH_CHECK(self.dim() == 2 || batch(self) == batch(mat1),
                "sampled_addmm: Expected self and mat1 to have the same batch size, but got ", batch(self),
                " and ", batch(mat1));
    TORCH_CHECK(mat1.size(-1) == mat2.size(-2), "sampled_addmm: mat1 and mat2 shapes cannot be multiplied (",
                mat1.size(-2), "x", mat1.size(-1), " and ", mat2.size(-2), "x", mat2.size(-1), ")");
    TORCH_CHECK(self.size(-2) == mat1.size(-2), "sampled_addmm: self.shape[-2] must match mat1.shape[-2]");
    TORCH_CHECK(self.size(-1) == mat2.size(-1), "sampled_addmm: self.shape[-1] must match mat2.shape[-1]");
    TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type),
                "sparse_sampled_addmm: Expected self to be a floating-point or complex tensor, but got ",
                type);
}

// One matrix stands for each of a batch.
Tensor in_batch(const Tensor& member, at::IntArrayRef batch) {
    auto sizes = batch.vec();
    sizes.push_back(member.size(-1));
    return member.expand(sizes).clone(at::MemoryFormat::Contiguous);
}

// beta * self + alpha * (mat1 @ mat2 where self has elements).
Tensor sampled(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
               const Scalar& alpha) {
    const at::IntArrayRef batch = mat1.sizes().slice(0, mat1.dim() - 2);
    const Tensor pointers = in_batch(self.crow_indices(), batch),
                 columns = in_batch(self.col_indices(), batch);
    const Tensor found = sddmm("sampled_addmm", pointers, columns, mat1, mat2);
    Tensor values = found;
    if (beta.toComplexDouble() != 0.0 || alpha.toComplexDouble() != 1.0)
        scale_and_add(self.values(), found, beta, alpha, values);
    c10::SymDimVector sizes(c10::fromIntArrayRefSlow(batch));
    sizes.push_back(self.size(-2));
    sizes.push_back(self.size(-1));
    return compressed_tensor(at::kSparseCsr, pointers, columns, values, sizes);
}

}  // namespace

Tensor& ANYMPS_SPARSE_CSR_FUNC(sparse_sampled_addmm_out)(const Tensor& self, const Tensor& mat1,
                                                         const Tensor& mat2, const Scalar& beta,
                                                         const Scalar& alpha, Tensor& out) {
    check(self, mat1, mat2, out.layout(), out.scalar_type());
    return become(out, sampled(self, mat1, mat2, beta, alpha));
}

Tensor ANYMPS_SPARSE_CSR_FUNC(sparse_sampled_addmm)(const Tensor& self, const Tensor& mat1,
                                                    const Tensor& mat2, const Scalar& beta,
                                                    const Scalar& alpha) {
    check(self, mat1, mat2, self.layout(), self.scalar_type());
    return sampled(self, mat1, mat2, beta, alpha);
}

}  // namespace anymps::ops
