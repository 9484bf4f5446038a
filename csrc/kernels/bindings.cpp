// The kernel library as operators of the library `anymps`, for info and for the tests.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <vector>

#include "kernels/kernel_library.h"
#include "kernels/pipeline_table.h"
#include "runtime/device.h"
#include "vulkan/instance.h"
#include "vulkan/pipeline.h"

namespace anymps::kernels {
namespace {

// Builds the pipeline of a kernel with the values of its specialization constants that the shader gives.
void build_kernel(const std::string& name) {
    pipeline(kernel_id(name), {}).handle();
}

// What the driver's compiler says of a kernel built with these first specialization constants: names and
// numbers (vulkan::Pipeline::statistics).
std::tuple<std::vector<std::string>, std::vector<double>> kernel_statistics(const std::string& name,
                                                                            at::IntArrayRef constants) {
    const std::vector<uint32_t> specialization(constants.begin(), constants.end());
    std::tuple<std::vector<std::string>, std::vector<double>> result;
    for (const auto& [label, value] : pipeline(kernel_id(name), specialization).statistics()) {
        std::get<0>(result).push_back(label);
        std::get<1>(result).push_back(value);
    }
    return result;
}

// The SPIR-V words of a kernel as an int32 tensor on the CPU; not to be written to.
at::Tensor spirv_words(const std::string& name) {
    const auto words = kernel_spirv(kernel_id(name));
    return at::from_blob(const_cast<uint32_t*>(words.data()), {static_cast<int64_t>(words.size())}, at::kInt);
}

// The same as this device's driver gets it, with subgroups of the device's default size.
at::Tensor device_spirv_words(const std::string& name) {
    const auto& info = runtime::device_info();
    const auto words = vulkan::module_for(info, kernel_spirv(kernel_id(name)), info.subgroup_size);
    const auto count = static_cast<int64_t>(words.size());
    return at::from_blob(const_cast<uint32_t*>(words.data()), {count}, at::kInt).clone();
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("kernel_names() -> str[]", kernel_names);
    m.def("kernel_spirv(str name) -> Tensor", spirv_words);
    m.def("device_spirv(str name) -> Tensor", device_spirv_words);
    m.def("build_kernel(str name) -> ()", build_kernel);
    m.def("pipeline_count() -> int", [] { return static_cast<int64_t>(pipeline_count()); });
    m.def("kernel_statistics(str name, int[] constants=[]) -> (str[], float[])", kernel_statistics);
}

}  // namespace
}  // namespace anymps::kernels
