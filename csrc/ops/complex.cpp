// Complex numbers put together from real tensors, and their conjugates in memory.
#include <anymps/ops/complex_ops.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/view_as_real.h>

namespace anymps::ops {
namespace {

Tensor part(const Tensor& complex, int64_t which) {
    return at::view_as_real(complex).select(-1, which);
}

void check_parts(const Tensor& a, const Tensor& b, Tensor& out, const char* op) {
    TORCH_CHECK((a.scalar_type() == at::kFloat || a.scalar_type() == at::kHalf) &&
                    (b.scalar_type() == at::kFloat || b.scalar_type() == at::kHalf),
                "Expected both inputs to be Half, Float or Double tensors but got ", a.scalar_type(), " and ",
                b.scalar_type());
    TORCH_CHECK(a.scalar_type() == b.scalar_type(), "Expected object of scalar type ", a.scalar_type(),
                " but got scalar type ", b.scalar_type(), " for second argument");
    TORCH_CHECK(out.scalar_type() == c10::toComplexType(a.scalar_type()), "Expected object of scalar type ",
                c10::toComplexType(a.scalar_type()), " but got scalar type ", out.scalar_type(),
                " for argument 'out'");
    out.resize_(at::infer_size(a.sizes(), b.sizes()));
}

}  // namespace

Tensor& ANYMPS_FUNC(complex_out)(const Tensor& real, const Tensor& imag, Tensor& out) {
    check_parts(real, imag, out, "complex");
    part(out, 0).copy_(real);
    part(out, 1).copy_(imag);
    return out;
}

Tensor& ANYMPS_FUNC(polar_out)(const Tensor& abs, const Tensor& angle, Tensor& out) {
    check_parts(abs, angle, out, "polar");
    part(out, 0).copy_(abs.mul(at::cos(angle)));
    part(out, 1).copy_(abs.mul(at::sin(angle)));
    return out;
}

Tensor& ANYMPS_FUNC(conj_physical_out)(const Tensor& self, Tensor& out) {
    if (!self.is_same(out)) {
        out.resize_(self.sizes());
        out.copy_(self);
    }
    if (self.is_complex()) part(out, 1).neg_();
    return out;
}

}  // namespace anymps::ops
