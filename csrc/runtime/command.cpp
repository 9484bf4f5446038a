#include "runtime/command.h"

#include "vulkan/device.h"
#include "vulkan/pipeline.h"

namespace anymps::runtime {
namespace {

void bind(const vulkan::Device& device, VkCommandBuffer commands, const Command& command, VkPipeline& bound) {
    const auto& api = device.api();
    if (const VkPipeline handle = command.pipeline->handle(); handle != bound) {
        api.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, handle);
        bound = handle;
    }
    api.vkCmdPushConstants(commands, device.pipeline_layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0,
                           static_cast<uint32_t>((command.push.size() + 3) & ~size_t{3}),
                           command.push.data());
}

}  // namespace

std::string_view Command::name() const {
    if (pipeline) return pipeline->name();
    return kind == Kind::kFill ? "vkCmdFillBuffer" : "vkCmdCopyBuffer";
}

void record_command(const vulkan::Device& device, VkCommandBuffer commands, const Command& command,
                    VkPipeline& bound) {
    const auto& api = device.api();
    switch (command.kind) {
        case Command::Kind::kDispatch:
            bind(device, commands, command, bound);
            if (command.base.x == 0 && command.base.y == 0 && command.base.z == 0) {
                api.vkCmdDispatch(commands, command.grid.x, command.grid.y, command.grid.z);
            } else {
                api.vkCmdDispatchBase(commands, command.base.x, command.base.y, command.base.z,
                                      command.grid.x, command.grid.y, command.grid.z);
            }
            break;
        case Command::Kind::kDispatchIndirect:
            bind(device, commands, command, bound);
            api.vkCmdDispatchIndirect(commands, command.source, command.source_offset);
            break;
        case Command::Kind::kUpload:
        case Command::Kind::kDownload:
        case Command::Kind::kCopy: {
            const VkBufferCopy region{command.source_offset, command.target_offset, command.bytes};
            api.vkCmdCopyBuffer(commands, command.source, command.target, 1, &region);
            break;
        }
        case Command::Kind::kFill:
            api.vkCmdFillBuffer(commands, command.target, command.target_offset, command.bytes, command.word);
            break;
    }
}

void record_barrier(const vulkan::Device& device, VkCommandBuffer commands, VkPipelineStageFlags stages) {
    VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
    memory.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
    memory.dstAccessMask = memory.srcAccessMask | VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT;
    if (stages & VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT)
        memory.dstAccessMask |= VK_ACCESS_INDIRECT_COMMAND_READ_BIT;
    if (stages & VK_PIPELINE_STAGE_HOST_BIT) memory.dstAccessMask |= VK_ACCESS_HOST_READ_BIT;
    device.api().vkCmdPipelineBarrier(commands, kDeviceStages, stages, 0, 1, &memory, 0, nullptr, 0, nullptr);
}

}  // namespace anymps::runtime
