// _assert_async: the device looks at the value, and the next synchronization raises. Its form for graphs
// takes and returns a tensor that orders it.
#include <anymps/ops/assert_async_ops.h>
#include <anymps/shaders/assert_async.h>

#include <ATen/ops/empty.h>

#include <string>

#include "kernels/launch_config.h"

namespace anymps::ops {
// Raises at once for a tensor of more or fewer than one element; torch.AcceleratorError with the message
// later.
void ANYMPS_FUNC(_assert_async_msg)(const Tensor& self, std::string_view message) {
    TORCH_CHECK(self.numel() != 0, "Boolean value of Tensor with no values is ambiguous");
    TORCH_CHECK(self.numel() < 2, "Boolean value of Tensor with more than one value is ambiguous");
    const auto error = runtime::encoder().message_slot(std::string(message));
    shaders::assert_async::assert_nonzero
        .call({.workgroup = kernels::launch_config().workgroup, .type = kernels::code(self.scalar_type())})
        .read(self)
        .dispatch({.value = kernels::address(self), .error = error.address, .code = error.code},
                  kernels::Grid{});
}

ANYMPS_ROW(_assert_async, _assert_async_msg(self, "Expected Tensor with single nonzero value, but got zero"))

Tensor ANYMPS_FUNC(_functional_assert_async_msg)(const Tensor& self, std::string_view message,
                                                 const Tensor& dep_token) {
    _assert_async_msg(self, message);
    return dep_token;
}

// A 0-d tensor without a value.
ANYMPS_ROW(_make_dep_token, at::empty({}, dtype, layout, device, pin_memory, memory_format))

}  // namespace anymps::ops
