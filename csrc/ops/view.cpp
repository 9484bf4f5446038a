// Views: ATen's own arithmetic of sizes and strides, which does not look at the device.
#include <anymps/ops/view_ops.h>

#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

namespace anymps::ops {

ANYMPS_ROW(view, at::native::view(self, size))
ANYMPS_ROW(as_strided, at::native::as_strided_tensorimpl(self, size, stride, storage_offset))
ANYMPS_ROW(_reshape_alias, at::native::_reshape_alias(self, size, stride))
ANYMPS_ROW(unfold, at::native::unfold(self, dimension, size, step))
ANYMPS_ROW(view_as_real, at::native::view_as_real(self))
ANYMPS_ROW(view_as_complex, at::native::view_as_complex(self))

}  // namespace anymps::ops
