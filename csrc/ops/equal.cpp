// torch.equal: one answer for two tensors.
#include <anymps/ops/equal_ops.h>

#include <ATen/ops/eq.h>

namespace anymps::ops {

// True for the same size and equal values; NaN equals nothing. Waits for the device.
bool ANYMPS_FUNC(equal)(const Tensor& self, const Tensor& other) {
    TORCH_CHECK(self.device() == other.device(),
                "Cannot compare two tensors on different devices. Got: ", self.device(), " and ",
                other.device());
    if (self.sizes() != other.sizes()) return false;
    return self.numel() == 0 || at::eq(self, other).all().item().toBool();
}

}  // namespace anymps::ops
