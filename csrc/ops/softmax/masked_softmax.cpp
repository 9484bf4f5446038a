// _masked_softmax and its gradient, of softmax and masked_fill.
#include "ops/softmax/masked_softmax.h"

#include <anymps/ops/softmax/masked_softmax_ops.h>

#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>

#include <limits>

#include "kernels/check_dtype.h"

namespace anymps::ops {
namespace {

constexpr double kLeftOut = -std::numeric_limits<double>::infinity();

void check_bool(const Tensor& mask) {
    TORCH_CHECK(mask.scalar_type() == at::kBool, "Mask should be a boolean tensor");
}

}  // namespace

Tensor broadcast_mask(const Tensor& mask, IntArrayRef scores, std::optional<int64_t> type) {
    check_bool(mask);
    if (mask.dim() != 2 || scores.size() != 4) type = 2;
    TORCH_CHECK(type.has_value(), "Mask Type should be defined");
    switch (*type) {
        case 0:
            TORCH_CHECK(scores[2] == mask.size(0) && scores[2] == mask.size(1),
                        "For mask_type == 0 mask shape should be (L, L)");
            return mask.view({1, 1, scores[2], scores[2]});
        case 1:
            TORCH_CHECK(scores[0] == mask.size(0) && scores[2] == mask.size(1),
                        "For mask_type == 1 mask shape should be (B, L)");
            return mask.view({scores[0], 1, 1, scores[2]});
        case 2:
            TORCH_CHECK(scores == mask.sizes(), "For mask_type == 2 mask shape should match input shape");
            return mask;
        default:
            TORCH_CHECK(false,
                        "Mask Type should be 0 (src_mask) or 1 (src_key_padding_mask), or 2 (default_mask)");
    }
}

// softmax of what the mask keeps, 0 elsewhere; NaN where it keeps nothing.
Tensor ANYMPS_FUNC(_masked_softmax)(const Tensor& self, const Tensor& mask, std::optional<int64_t> dim,
                                    std::optional<int64_t> mask_type) {
    const Tensor left_out = broadcast_mask(mask, self.sizes(), mask_type);
    kernels::check_floating(self.scalar_type(), "masked_softmax");
    return at::_softmax(self.masked_fill(left_out, kLeftOut), dim.value_or(-1), false);
}

Tensor ANYMPS_FUNC(_masked_softmax_backward)(const Tensor& grad_output, const Tensor& output,
                                             const Tensor& mask, std::optional<int64_t> dim) {
    TORCH_CHECK(grad_output.sizes() == mask.sizes(), "Mask shape should match grad shape");
    check_bool(mask);
    kernels::check_floating(grad_output.scalar_type(), "masked_softmax_backward");
    const Tensor kept = grad_output.masked_fill(mask, 0);
    return at::_softmax_backward_data(kept, output, dim.value_or(-1), output.scalar_type())
        .masked_fill_(mask, 0);
}

}  // namespace anymps::ops
