// Norms that bound or divide slices: renorm and weight normalisation.
#include <anymps/ops/renorm_ops.h>

#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/norm_except_dim.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <numeric>
#include <vector>

namespace anymps::ops {
namespace {

std::vector<int64_t> all_dims_but(int64_t dim, int64_t count) {
    std::vector<int64_t> dims(count);
    std::iota(dims.begin(), dims.end(), 0);
    dims.erase(dims.begin() + dim);
    return dims;
}

Tensor sum_except(const Tensor& tensor, int64_t dim) {
    return tensor.sum(all_dims_but(dim, tensor.dim()), true, at::kFloat);
}

}  // namespace

// Slices along dim whose p-norm is over maxnorm are scaled by maxnorm / (norm + 1e-7).
TORCH_IMPL_FUNC(renorm_out)
(const Tensor& self, const Scalar& p, int64_t dim, const Scalar& maxnorm, const Tensor& out) {
    if (self.numel() == 0) return;
    dim = at::maybe_wrap_dim(dim, self.dim());
    const Tensor norm = at::linalg_vector_norm(self, p.toDouble(), all_dims_but(dim, self.dim()), true,
                                               at::toOpMathType(self.scalar_type()));
    const Tensor scale = norm.add(1e-7).reciprocal_().mul_(maxnorm);
    const Tensor factor = at::where(norm.gt(maxnorm), scale, at::ones_like(norm));
    at::mul_out(const_cast<Tensor&>(out), self, factor.to(self.scalar_type()));
}

// w = v * g / |v|, with a norm for each slice along dim, the first or the last.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_weight_norm_interface)(const Tensor& v, const Tensor& g,
                                                               int64_t dim) {
    const Tensor norms = at::norm_except_dim(v, 2, dim);
    return {v.mul(g.div(norms)), norms.to(at::kFloat)};
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(_weight_norm_interface_backward)(const Tensor& grad_w,
                                                                        const Tensor& saved_v,
                                                                        const Tensor& saved_g,
                                                                        const Tensor& saved_norms,
                                                                        int64_t dim) {
    TORCH_CHECK(saved_v.is_contiguous(), "saved_v must be contiguous");
    TORCH_CHECK(saved_g.is_contiguous(), "saved_g must be contiguous");
    const Tensor along = sum_except(grad_w.mul(saved_v), at::maybe_wrap_dim(dim, saved_v.dim()));
    const Tensor norms = saved_norms.view(saved_g.sizes());
    const Tensor per_norm = along.view(saved_g.sizes()).div(norms);
    const Tensor grad_v = grad_w.sub(saved_v.mul(per_norm.div(norms))).mul_(saved_g.div(norms));
    return {grad_v.to(saved_v.scalar_type()), per_norm.to(saved_g.scalar_type())};
}

}  // namespace anymps::ops
