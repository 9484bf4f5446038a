// Compute pipelines: one layout for all (push constants only), specialization constants by position.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
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

// A compute pipeline. Owner: the kernel library, for the life of the device. Used by any thread.
class Pipeline {
  public:
    // Prepares the kernel; throws Error when the device cannot run it. The driver compiles it in build().
    // spirv: one entry point. specialization: value i becomes the constant with id i, all 32-bit.
    // Constants 32 and 33 are set besides (shaders/lib/software.slang, shaders/lib/math_core.slang).
    // specialization[1], when not 0, is also asked for as the required subgroup size where the device can.
    // name labels the pipeline in profilers and validation messages.
    Pipeline(const Device& device, const std::string& name, std::span<const uint32_t> spirv,
             std::span<const uint32_t> specialization);
    ~Pipeline();
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    // Has the driver compile it, once: of several threads one does, and the others wait. Never throws: what
    // went wrong is thrown by each handle().
    void build() const;
    bool built() const { return built_.load(std::memory_order_acquire); }

    // Builds it if nobody has. Throws Error when the driver could not.
    VkPipeline handle() const;
    const std::string& name() const { return name_; }

    // What the driver's compiler says of the code (registers, spills, ...), by the driver's own names. Empty
    // unless ANYMPS_PIPELINE_STATISTICS=1 was set and the driver has VK_KHR_pipeline_executable_properties.
    std::vector<std::pair<std::string, double>> statistics() const;

  private:
    // What build() needs, and nobody afterwards.
    struct Source {
        std::vector<uint32_t> words, specialization;
        uint32_t subgroup_size;  // to ask for, or 0
    };
    VkResult compile() const;

    const Device& device_;
    std::string name_;
    // Written by the thread that builds, before built_.
    mutable std::once_flag once_;
    mutable Source source_;
    mutable VkPipeline handle_ = VK_NULL_HANDLE;
    mutable VkResult result_ = VK_SUCCESS;
    mutable std::atomic<bool> built_{false};
};

}  // namespace anymps::vulkan
