// One Vulkan command as data: what the encoder records, graphs keep and profilers show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/command_encoder.h"
#include "vulkan/api.h"

namespace anymps::runtime {

struct Command {
    enum class Kind : uint8_t { kDispatch, kDispatchIndirect, kUpload, kDownload, kCopy, kFill };
    Kind kind;
    const vulkan::Pipeline* pipeline = nullptr;  // of a dispatch
    std::span<const std::byte> push{};           // its push constants
    Grid grid{0, 0, 0};                          // zeros where an earlier command writes it
    Grid base{0, 0, 0};                          // its first workgroup
    double share = 1;                            // of a dispatch that is recorded in parts
    VkBuffer source = VK_NULL_HANDLE;            // of a copy; of the grid in memory
    uint64_t source_offset = 0;
    VkBuffer target = VK_NULL_HANDLE;  // of a copy or a fill
    uint64_t target_offset = 0;
    uint64_t bytes = 0;
    uint32_t word = 0;  // that a fill repeats

    uint64_t share_of(uint64_t bytes) const {
        return share == 1 ? bytes : static_cast<uint64_t>(share * static_cast<double>(bytes));
    }

    // The pipeline's, or the Vulkan function's; lives as long as the process.
    std::string_view name() const;
};

constexpr VkPipelineStageFlags kDeviceStages =
    VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;

// bound: the pipeline that the command buffer has bound; kept up to date.
void record_command(const vulkan::Device& device, VkCommandBuffer commands, const Command& command,
                    VkPipeline& bound);

// Makes everything written before visible to these stages: kDeviceStages, and those of indirect dispatches or
// of the host besides.
void record_barrier(const vulkan::Device& device, VkCommandBuffer commands, VkPipelineStageFlags stages);

}  // namespace anymps::runtime
