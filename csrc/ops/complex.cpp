// Complex numbers put together from real tensors.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/complex_ops.h>

#include <ATen/TensorIterator.h>

namespace anymps::ops {
namespace {

// out [of the inputs' broadcast shape] from two real tensors of one dtype.
Tensor& from_parts(const kernels::PointwiseKernel& row, const Tensor& a, const Tensor& b, Tensor& out) {
    TORCH_CHECK((a.scalar_type() == at::kFloat || a.scalar_type() == at::kHalf) &&
                    (b.scalar_type() == at::kFloat || b.scalar_type() == at::kHalf),
                "Expected both inputs to be Half, Float or Double tensors but got ", a.scalar_type(), " and ",
                b.scalar_type());
    TORCH_CHECK(a.scalar_type() == b.scalar_type(), "Expected object of scalar type ", a.scalar_type(),
                " but got scalar type ", b.scalar_type(), " for second argument");
    TORCH_CHECK(out.scalar_type() == c10::toComplexType(a.scalar_type()), "Expected object of scalar type ",
                c10::toComplexType(a.scalar_type()), " but got scalar type ", out.scalar_type(),
                " for argument 'out'");
    auto iter = at::TensorIteratorConfig()
                    .add_output(out)
                    .add_const_input(a)
                    .add_const_input(b)
                    .check_all_same_dtype(false)
                    .build();
    kernels::pointwise(iter, row, {}, out.scalar_type());
    return out;
}

}  // namespace

ANYMPS_ROW(complex_out, from_parts(kernels::rows::complex, real, imag, out))
ANYMPS_ROW(polar_out, from_parts(kernels::rows::polar, abs, angle, out))

}  // namespace anymps::ops
