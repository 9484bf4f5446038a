// Cross products of the 3-vectors along a dimension.
#include <anymps/ops/cross_ops.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

namespace anymps::ops {

TORCH_IMPL_FUNC(linalg_cross_out)(const Tensor& self, const Tensor& other, int64_t dim, const Tensor& out) {
    if (out.numel() == 0) return;
    dim = at::maybe_wrap_dim(dim, out.dim());
    const Tensor a = self.expand(out.sizes()), b = other.expand(out.sizes());
    // Each component needs two others of both operands: not in place.
    const bool separate = at::get_overlap_status(out, self) == at::MemOverlapStatus::No &&
                          at::get_overlap_status(out, other) == at::MemOverlapStatus::No;
    const Tensor to = separate ? out : at::empty_like(out);
    for (int64_t i = 0; i < 3; ++i) {
        const int64_t j = (i + 1) % 3, k = (i + 2) % 3;
        Tensor component = to.select(dim, i);
        at::mul_out(component, a.select(dim, j), b.select(dim, k));
        component.sub_(a.select(dim, k).mul(b.select(dim, j)));
    }
    if (!separate) const_cast<Tensor&>(out).copy_(to);
}

}  // namespace anymps::ops
