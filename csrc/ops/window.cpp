// Kaiser windows, for which PyTorch looks into a table of kernels that has no place for mps.
#include <anymps/ops/window_ops.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/kaiser_window.h>

namespace anymps::ops {

namespace {

// The CPU's window, copied: short, and made once.
Tensor kaiser(int64_t length, bool periodic, double beta, std::optional<ScalarType> dtype,
              std::optional<Layout> layout, std::optional<Device> device, std::optional<bool> pin_memory) {
    const Tensor window = at::kaiser_window(length, periodic, beta, dtype, layout, Device(at::kCPU), false);
    return at::empty(window.sizes(), window.scalar_type(), layout, device, pin_memory, std::nullopt)
        .copy_(window);
}

}  // namespace

// 12 is PyTorch's beta where none is given.
ANYMPS_ROW(kaiser_window, kaiser(window_length, true, 12.0, dtype, layout, device, pin_memory))
ANYMPS_ROW(kaiser_window_periodic, kaiser(window_length, periodic, 12.0, dtype, layout, device, pin_memory))
ANYMPS_ROW(kaiser_window_beta, kaiser(window_length, periodic, beta, dtype, layout, device, pin_memory))

}  // namespace anymps::ops
