// Unary operators whose arguments need work on the host.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/unary_ops_ops.h>

namespace anymps::ops {

TORCH_IMPL_FUNC(round_decimals_out)(const Tensor& self, int64_t decimals, const Tensor& out) {
    if (decimals == 0) {
        kernels::pointwise(*this, kernels::rows::round);
    } else {
        kernels::pointwise(*this, kernels::rows::round_decimals, {decimals});
    }
}

}  // namespace anymps::ops
