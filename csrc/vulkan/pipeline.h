// Compute pipelines: one layout for all (push constants only), specialization constants by position.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vulkan/api.h"

namespace anymps::vulkan {

class Device;

struct DeviceInfo;

// A kernel as a device's driver gets it: without what the device lacks, where that has another way. lanes: of
// a subgroup.
std::vector<uint32_t> module_for(const DeviceInfo& info, std::span<const uint32_t> spirv, uint32_t lanes);

// A compute pipeline. Owner: the kernel library, for the life of the device. Immutable, used by any thread.
class Pipeline {
  public:
    // spirv: one entry point. specialization: value i becomes the constant with id i, all 32-bit.
    // Constant 32 is set besides: true on software drivers (shaders/lib/software.slang).
    // specialization[1], when not 0, is also asked for as the required subgroup size where the device can.
    // name labels the pipeline in profilers and validation messages.
    Pipeline(const Device& device, const std::string& name, std::span<const uint32_t> spirv,
             std::span<const uint32_t> specialization);
    ~Pipeline();
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    VkPipeline handle() const { return handle_; }
    const std::string& name() const { return name_; }

    // What the driver's compiler says of the code (registers, spills, ...), by the driver's own names. Empty
    // unless ANYMPS_PIPELINE_STATISTICS=1 was set and the driver has VK_KHR_pipeline_executable_properties.
    std::vector<std::pair<std::string, double>> statistics() const;

  private:
    const Device& device_;
    std::string name_;
    VkPipeline handle_ = VK_NULL_HANDLE;
};

}  // namespace anymps::vulkan
