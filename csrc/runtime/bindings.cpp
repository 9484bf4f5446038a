// What the Python part of the package asks, as operators of the library `anymps`: no Python API is needed.
#include <torch/library.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <string>

#include "runtime/address_map.h"
#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "runtime/json.h"
#include "runtime/kernel_profile.h"
#include "vulkan/device.h"

namespace anymps::runtime {
namespace {

std::string features_json(const vulkan::DeviceInfo& info) {
    return JsonObject()
        .boolean("fp16", info.float16)
        .boolean("bf16", info.bfloat16)
        .boolean("coopmat", info.cooperative_matrix)
        .boolean("bf16 coopmat", info.cooperative_matrix_bfloat16)
        .boolean("atomics", info.float32_atomic_add)
        .boolean("UMA", info.unified_memory)
        .boolean("external memory", info.external_memory_host)
        .str();
}

std::string heaps_json(const vulkan::DeviceInfo& info) {
    return json_list(info.heaps, [](const vulkan::MemoryHeap& heap) {
        return JsonObject().number("bytes", heap.bytes).boolean("device_local", heap.device_local).str();
    });
}

std::string memory_types_json(const vulkan::DeviceInfo& info) {
    return json_list(info.memory_types, [](const vulkan::MemoryType& type) {
        return JsonObject().number("heap", type.heap).number("flags", type.properties).str();
    });
}

// The row of csrc/vulkan/device_profile.cpp that is in force: its name, rates and exclusions.
std::string profile_json(const vulkan::DeviceProfile& profile) {
    return JsonObject()
        .text("name", profile.name)
        .boolean("measured", &profile != &vulkan::find_profile(device_info()))
        .text("rates", vulkan::rates_text(profile.rates))
        .number("registers", profile.registers)
        .raw("excluded",
             json_list(profile.excluded,
                       [](const vulkan::Exclusion& e) {
                           return JsonObject().text("kernels", e.kernels).text("reason", e.reason).str();
                       }))
        .str();
}

// Properties of the chosen device as a JSON object. Raises RuntimeError where there is none.
std::string device_info_json() {
    const vulkan::DeviceInfo& info = device_info();
    return JsonObject()
        .text("name", info.name)
        .number("vendor_id", info.vendor_id)
        .text("driver", info.driver_name + " " + info.driver_info)
        .text("vulkan_version", vulkan::version_string(info.api_version))
        .text("kind", info.is_software     ? "software"
                      : info.is_integrated ? "integrated GPU"
                                           : "discrete GPU")
        .raw("features", features_json(info))
        .number("compute_units", info.reported_compute_units)
        .number("planned_compute_units", info.compute_units())
        .number("subgroup_size", info.subgroup_size)
        .number("min_subgroup_size", info.min_subgroup_size)
        .number("max_subgroup_size", info.max_subgroup_size)
        .number("shared_memory_bytes", info.shared_memory_bytes)
        .raw("heaps", heaps_json(info))
        .raw("memory_types", memory_types_json(info))
        .raw("profile", profile_json(*info.profile))
        .text("cache_folder", cache_folder())
        .str();
}

// A CPU tensor over the same bytes as a contiguous mps tensor, which it keeps alive. The caller orders the
// accesses of both sides by torch.mps.synchronize(). Raises RuntimeError where the host cannot see the
// device's memory.
at::Tensor host_alias(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_mps() && tensor.is_contiguous(), "host_alias: expected a contiguous tensor on mps");
    if (tensor.numel() == 0) return at::from_blob(nullptr, tensor.sizes(), tensor.options().device(at::kCPU));
    encoder().synchronize();
    const auto address = reinterpret_cast<uint64_t>(tensor.mutable_data_ptr());
    void* host = host_pointer(address, tensor.nbytes());
    TORCH_CHECK(host,
                "Aliasing an MPS storage from the host needs unified memory, which this device has not.");
    return at::from_blob(
        host, tensor.sizes(), [tensor](void*) {}, tensor.options().device(at::kCPU));
}

// What torch_anymps.profile() collected, as a JSON list.
std::string stop_profile_json() {
    return json_list(stop_profile(), [](const KernelTime& time) {
        return JsonObject()
            .text("kernel", time.kernel)
            .text("shape", time.shape)
            .number("calls", time.calls)
            .number("nanoseconds", static_cast<uint64_t>(time.nanoseconds))
            .number("bytes", time.bytes)
            .number("operations", static_cast<uint64_t>(time.operations))
            .str();
    });
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("start_profile() -> ()", start_profile);
    m.def("stop_profile() -> str", stop_profile_json);
    m.def("device_info() -> str", device_info_json);
    m.def("device_list() -> str[]", device_list);
    m.def("unavailable_reason() -> str", unavailable_reason);
    m.def("device_count() -> int", [] { return static_cast<int64_t>(device_count()); });
    m.def("set_device(int index) -> ()", set_device);
    m.def("host_alias(Tensor tensor) -> Tensor", host_alias);
}

}  // namespace
}  // namespace anymps::runtime
