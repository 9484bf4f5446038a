#include "runtime/kept_commands.h"

#include <utility>

#include "runtime/device.h"
#include "vulkan/buffer.h"
#include "vulkan/check.h"
#include "vulkan/command_buffer.h"
#include "vulkan/device.h"
#include "vulkan/query_pool.h"

namespace anymps::runtime {

KeptCommands::KeptCommands(const vulkan::Device& device) : device_(device) {}

KeptCommands::~KeptCommands() {
    if (pool_ == VK_NULL_HANDLE) return;
    if (in_bad_fork()) {
        stamps_.release();  // the parent's
        for (auto& ticks : spare_) ticks.release();
        return;
    }
    device_.api().vkDestroyCommandPool(device_.handle(), pool_, nullptr);
}

void KeptCommands::add(const Command& command, std::span<const Access> accesses,
                       VkPipelineStageFlags barrier) {
    Kept kept{command, {command.push.begin(), command.push.end()}, 0, 0, barrier};
    for (const Access& access : accesses)
        (access.write ? kept.bytes_written : kept.bytes_read) += command.share_of(access.bytes);
    commands_.push_back(std::move(kept));
}

// As CommandTimer does: a command that no barrier keeps apart begins where the last one ends.
uint32_t KeptCommands::number_stamps() {
    uint32_t used = 0;
    for (Kept& kept : commands_) {
        if (used == 0 || kept.barrier != 0) ++used;
        kept.first = used - 1;
        kept.last = used++;
    }
    return used;
}

VkCommandBuffer KeptCommands::timed() {
    if (timed_ != VK_NULL_HANDLE || commands_.empty()) return timed_;
    const auto& api = device_.api();
    const uint32_t count = number_stamps();
    stamps_ = std::make_unique<vulkan::QueryPool>(device_, count);
    const vulkan::CommandBuffer made = vulkan::create_command_buffer(device_);
    pool_ = made.pool;
    const VkCommandBuffer commands = made.handle;
    vulkan::begin_command_buffer(device_, commands, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT);
    record_barrier(device_, commands, kDeviceStages | VK_PIPELINE_STAGE_HOST_BIT);
    api.vkCmdResetQueryPool(commands, stamps_->handle(), 0, count);
    const auto stamp = [&](uint32_t slot) {
        api.vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, stamps_->handle(), slot);
    };
    VkPipeline bound = VK_NULL_HANDLE;
    for (const Kept& kept : commands_) {
        if (kept.barrier != 0) record_barrier(device_, commands, kept.barrier);
        if (kept.barrier != 0 || kept.first == 0) stamp(kept.first);
        Command command = kept.command;
        command.push = kept.push;
        record_command(device_, commands, command, bound);
        stamp(kept.last);
    }
    record_barrier(device_, commands, kDeviceStages | VK_PIPELINE_STAGE_HOST_BIT);
    VK_CHECK(api.vkEndCommandBuffer(commands));
    return timed_ = commands;
}

std::unique_ptr<vulkan::Buffer> KeptCommands::ticks() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) {
        return std::make_unique<vulkan::Buffer>(device_, stamps_->count() * sizeof(uint64_t),
                                                vulkan::MemoryKind::Staging);
    }
    auto result = std::move(spare_.back());
    spare_.pop_back();
    return result;
}

void KeptCommands::give_back(std::unique_ptr<vulkan::Buffer> ticks) {
    const std::lock_guard lock(mutex_);
    spare_.push_back(std::move(ticks));
}

void KeptCommands::take(const uint64_t* ticks, const CommandOrigin& origin,
                        const CommandTimer::Sink& sink) const {
    uint32_t position = 0;
    for (const Kept& kept : commands_) {
        TimedCommand timed{kept.command.name(),
                           kept.command.kind,
                           kept.command.grid,
                           kept.bytes_read,
                           kept.bytes_written,
                           ++position,
                           origin,
                           ticks[kept.first],
                           ticks[kept.last]};
        sink(std::move(timed));
    }
}

}  // namespace anymps::runtime
