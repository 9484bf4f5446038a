// Outer products that are added: PyTorch's composite, behind the checks of the CPU's kernel.
#include <anymps/ops/matmul/addr_ops.h>

#include <ATen/Dispatch.h>
#include <ATen/ops/addr_compositeexplicitautograd_dispatch.h>
#include <c10/core/ScalarType.h>

namespace anymps::ops {
namespace {

// Raises where the CPU does: bools, fractions and complex numbers beside results that cannot hold them.
void check_scalar(const Scalar& value, at::ScalarType dtype, const char* name) {
    TORCH_CHECK(!value.isBoolean() || dtype == at::kBool, "Boolean ", name,
                " only supported for Boolean results.");
    const bool fraction = at::isFloatingType(dtype) || at::isComplexType(dtype);
    TORCH_CHECK(fraction || value.isIntegral(true), "For integral input tensors, argument ", name,
                " must not be a floating point number.");
    if (at::isFloatingType(dtype)) {
        AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "addr",
                                        [&] { (void)value.to<scalar_t>(); });
    }
}

void check_scalars(const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta,
                   const Scalar& alpha) {
    const auto dtype =
        c10::promoteTypes(c10::promoteTypes(vec1.scalar_type(), vec2.scalar_type()), self.scalar_type());
    check_scalar(beta, dtype, "beta");
    check_scalar(alpha, dtype, "alpha");
}

}  // namespace

// beta * self + alpha * outer(vec1, vec2): vec1 [m], vec2 [n], self broadcasts to [m, n].
Tensor ANYMPS_FUNC(addr)(const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta,
                         const Scalar& alpha) {
    check_scalars(self, vec1, vec2, beta, alpha);
    return at::compositeexplicitautograd::addr(self, vec1, vec2, beta, alpha);
}

Tensor& ANYMPS_FUNC(addr_out)(const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta,
                              const Scalar& alpha, Tensor& out) {
    check_scalars(self, vec1, vec2, beta, alpha);
    return at::compositeexplicitautograd::addr_out(out, self, vec1, vec2, beta, alpha);
}

}  // namespace anymps::ops
