// at::detail::empty_mps and empty_strided_mps, which PyTorch declares and builds only for macOS: the
// generated registrations and the factories allocate with them.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/mps/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>

#include "kernels/dtype.h"
#include "kernels/float8.h"
#include "runtime/allocator.h"
#include "runtime/device.h"

namespace at::detail {

namespace {

constexpr DispatchKeySet kKeys(DispatchKey::MPS);

void check_options(ScalarType dtype, Layout layout, std::optional<Device> device) {
    TORCH_CHECK_NOT_IMPLEMENTED(layout == Layout::Strided, "only strided tensors are supported on MPS");
    TORCH_CHECK_TYPE(
        dtype != ScalarType::Double,
        "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
        "Please use float32 instead.");
    // Some are held, moved and viewed, but no kernel computes in them.
    if (!anymps::kernels::is_float8(dtype)) anymps::kernels::dtype_of(dtype);
    TORCH_CHECK(
        !device || (device->type() == DeviceType::MPS && anymps::runtime::is_own_index(device->index())),
        "invalid device ", device ? device->str() : "", ": there is one mps device, mps:0");
    anymps::runtime::device();  // raises what the user can do where there is none, also for an empty tensor
}

// torch.use_deterministic_algorithms fills new memory, so that reading it shows.
TensorBase filled_if_deterministic(TensorBase base) {
    const Context& context = globalContext();
    if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
        Tensor tensor(base);
        native::fill_empty_deterministic_(tensor);
    }
    return base;
}

}  // namespace

TensorBase empty_mps(IntArrayRef size, std::optional<ScalarType> dtype_opt, std::optional<Layout> layout_opt,
                     std::optional<Device> device_opt, std::optional<bool> pin_memory_opt,
                     std::optional<MemoryFormat> memory_format_opt) {
    const ScalarType dtype = dtype_or_default(dtype_opt);
    check_options(dtype, layout_or_default(layout_opt), device_opt);
    TORCH_CHECK(!pinned_memory_or_default(pin_memory_opt), "Only dense CPU tensors can be pinned");
    return filled_if_deterministic(
        empty_generic(size, &anymps::runtime::allocator(), kKeys, dtype, memory_format_opt));
}

TensorBase empty_mps(IntArrayRef size, const TensorOptions& options) {
    return empty_mps(size, optTypeMetaToScalarType(options.dtype_opt()), options.layout_opt(),
                     options.device_opt(), options.pinned_memory_opt(), options.memory_format_opt());
}

TensorBase empty_strided_mps(IntArrayRef size, IntArrayRef stride, ScalarType dtype,
                             std::optional<Device> device_opt) {
    check_options(dtype, Layout::Strided, device_opt);
    return filled_if_deterministic(
        empty_strided_generic(size, stride, &anymps::runtime::allocator(), kKeys, dtype));
}

TensorBase empty_strided_mps(IntArrayRef size, IntArrayRef stride, const TensorOptions& options) {
    return empty_strided_mps(size, stride, typeMetaToScalarType(options.dtype()), options.device_opt());
}

}  // namespace at::detail
