#include <ATen/TensorIterator.h>
#include <ATen/mps/EmptyTensor.h>

#include "kernels/float8.h"
#include "kernels/pointwise_launcher.h"

namespace anymps::kernels {

void pointwise_of_float8(at::TensorIteratorBase& iter, const PointwiseKernel& kernel,
                         std::initializer_list<c10::Scalar> scalars, c10::ScalarType compute) {
    const at::Tensor out = iter.tensor(0);
    const bool narrows = is_float8(out.scalar_type());
    // The smallest number of a scale is none that float32 arithmetic keeps on every GPU.
    if (narrows && compute == c10::ScalarType::Float8_e8m0fnu) kernel.check(compute);
    if (iter.numel() == 0) return;
    const at::Tensor result =
        narrows ? at::Tensor(at::detail::empty_mps(out.sizes(), out.options().dtype(at::kFloat))) : out;
    auto config = at::TensorIteratorConfig();
    config.set_check_mem_overlap(false).resize_outputs(false).check_all_same_dtype(false);
    config.allow_cpu_scalars(true).add_owned_output(result);
    for (int k = iter.noutputs(); k < iter.ntensors(); ++k) {
        const at::Tensor& operand = iter.tensor(k);
        // Numbers are rounded to the common dtype, as on the CPU.
        config.add_owned_const_input(operand.is_floating_point() ? operand.to(compute).to(at::kFloat)
                                                                 : operand);
    }
    auto floats = config.build();
    pointwise(floats, kernel, scalars, at::kFloat);
    if (narrows) out.copy_(result);
}

}  // namespace anymps::kernels
