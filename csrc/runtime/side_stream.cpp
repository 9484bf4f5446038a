#include "runtime/side_stream.h"

#include "runtime/command.h"
#include "runtime/stream_waits.h"
#include "vulkan/check.h"
#include "vulkan/pipeline.h"

namespace anymps::runtime {

SideStream::SideStream(const vulkan::Device& device) : device_(device), semaphore_(device) {}

SideStream::~SideStream() {
    try {
        wait(serial_);
    } catch (const vulkan::Error&) {
        // The device is lost, and runs nothing any more.
    }
    for (const Batch& batch : batches_)
        device_.api().vkDestroyCommandPool(device_.handle(), batch.pool, nullptr);
}

void SideStream::begin() {
    if (!batches_.empty() && completed(batches_.front().serial)) {
        batches_.push_back(batches_.front());
        batches_.pop_front();
        VK_CHECK(device_.api().vkResetCommandPool(device_.handle(), batches_.back().pool, 0));
    } else {
        batches_.push_back({vulkan::create_command_buffer(device_, VK_COMMAND_POOL_CREATE_TRANSIENT_BIT)});
    }
    const VkCommandBuffer commands = batches_.back().handle;
    vulkan::begin_command_buffer(device_, commands, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT);
    VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
    memory.srcAccessMask = VK_ACCESS_HOST_WRITE_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    memory.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
    device_.api().vkCmdPipelineBarrier(
        commands, VK_PIPELINE_STAGE_HOST_BIT | VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &memory, 0, nullptr, 0, nullptr);
    bound_ = VK_NULL_HANDLE;
    recording_ = true;
}

void SideStream::dispatch(const vulkan::Pipeline& pipeline, const void* push, size_t push_bytes, Grid grid) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    if (!recording_) begin();
    const std::span bytes(static_cast<const std::byte*>(push), push_bytes);
    record_command(device_, batches_.back().handle, {Command::Kind::kDispatch, &pipeline, bytes, grid},
                   bound_);
}

uint64_t SideStream::submit(uint64_t after, const vulkan::TimelineSemaphore* signal, uint64_t value) {
    if (!recording_) begin();
    recording_ = false;
    Batch& batch = batches_.back();
    record_barrier(device_, batch.handle, kDeviceStages | VK_PIPELINE_STAGE_HOST_BIT);
    VK_CHECK(device_.api().vkEndCommandBuffer(batch.handle));
    batch.serial = ++serial_;
    const vulkan::SemaphoreValue before[] = {{StreamWaits::instance().timeline().handle(), after}};
    const vulkan::SemaphoreValue signals[] = {{semaphore_.handle(), serial_},
                                              {signal ? signal->handle() : VK_NULL_HANDLE, value}};
    device_.submit(vulkan::Lane::Side, {&batch.handle, 1}, before, {signals, signal ? 2u : 1u});
    return serial_;
}

}  // namespace anymps::runtime
