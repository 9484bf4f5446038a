// Views: ATen's own arithmetic of sizes and strides, which does not look at the device.
#include <anymps/ops/view_ops.h>

#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

namespace anymps::ops {

Tensor ANYMPS_FUNC(view)(const Tensor& self, IntArrayRef size) {
    return at::native::view(self, size);
}

Tensor ANYMPS_FUNC(as_strided)(const Tensor& self, IntArrayRef size, IntArrayRef stride,
                               std::optional<int64_t> storage_offset) {
    return at::native::as_strided_tensorimpl(self, size, stride, storage_offset);
}

Tensor ANYMPS_FUNC(_reshape_alias)(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
    return at::native::_reshape_alias(self, size, stride);
}

Tensor ANYMPS_FUNC(unfold)(const Tensor& self, int64_t dimension, int64_t size, int64_t step) {
    return at::native::unfold(self, dimension, size, step);
}

Tensor ANYMPS_FUNC(view_as_real)(const Tensor& self) {
    return at::native::view_as_real(self);
}

Tensor ANYMPS_FUNC(view_as_complex)(const Tensor& self) {
    return at::native::view_as_complex(self);
}

}  // namespace anymps::ops
