// Tensors without values: empty, empty_strided, zero tensors without memory.
#include <anymps/ops/empty_ops.h>

#include <ATen/EmptyTensor.h>
#include <ATen/mps/EmptyTensor.h>
#include <c10/core/Allocator.h>

namespace anymps::ops {

ANYMPS_ROW(empty_memory_format, at::detail::empty_mps(size, dtype, layout, device, pin_memory, memory_format))
ANYMPS_ROW(empty_strided,
           at::detail::empty_strided_mps(
               size, stride,
               TensorOptions().dtype(dtype).layout(layout).device(device).pinned_memory(pin_memory)))

// A tensor of zeros that has no memory: gradients that are known to vanish. Its dispatch key keeps every
// kernel away.
Tensor ANYMPS_FUNC(_efficientzerotensor)(IntArrayRef size, std::optional<ScalarType> dtype,
                                         std::optional<Layout> layout, std::optional<Device> device,
                                         std::optional<bool> pin_memory) {
    struct NoMemory final : c10::Allocator {
        c10::DataPtr allocate(size_t) override { return {nullptr, {at::kMPS, 0}}; }
        void copy_data(void*, const void*, size_t) const override {}
    };
    static NoMemory* const no_memory = new NoMemory;  // outlives every tensor
    const c10::DispatchKeySet keys{c10::DispatchKey::MPS, c10::DispatchKey::ZeroTensor};
    return at::detail::empty_generic(size, no_memory, keys, c10::dtype_or_default(dtype), std::nullopt);
}

}  // namespace anymps::ops
