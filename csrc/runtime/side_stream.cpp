#include "runtime/side_stream.h"

#include "runtime/command.h"
#include "runtime/command_encoder.h"
#include "runtime/stream_waits.h"
#include "vulkan/buffer.h"
#include "vulkan/check.h"
#include "vulkan/pipeline.h"

namespace anymps::runtime {
namespace {

bool copies_alone(const vulkan::Device& device, vulkan::Lane lane) {
    return device.has_copy_queues() && device.family(lane) == device.family(vulkan::Lane::CopyOut);
}

}  // namespace

SideStream::SideStream(const vulkan::Device& device, vulkan::Lane lane)
    : device_(device),
      lane_(lane),
      stages_(copies_alone(device, lane) ? VK_PIPELINE_STAGE_TRANSFER_BIT : kDeviceStages),
      semaphore_(device) {
    encoder();  // has the timeline that submissions wait for
}

SideStream::~SideStream() {
    try {
        wait(serial_);
    } catch (const vulkan::Error&) {
        // The device is lost, and runs nothing any more.
    }
    for (const Batch& batch : batches_)
        device_.api().vkDestroyCommandPool(device_.handle(), batch.pool, nullptr);
}

void SideStream::barrier(VkPipelineStageFlags from, VkPipelineStageFlags to) {
    VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
    memory.srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT;
    memory.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
    device_.api().vkCmdPipelineBarrier(batches_.back().handle, from, to, 0, 1, &memory, 0, nullptr, 0,
                                       nullptr);
}

void SideStream::begin() {
    if (recording_) return;
    if (!batches_.empty() && completed(batches_.front().serial)) {
        batches_.push_back(batches_.front());
        batches_.pop_front();
        VK_CHECK(device_.api().vkResetCommandPool(device_.handle(), batches_.back().pool, 0));
    } else {
        batches_.push_back(
            {vulkan::create_command_buffer(device_, VK_COMMAND_POOL_CREATE_TRANSIENT_BIT, lane_)});
    }
    vulkan::begin_command_buffer(device_, batches_.back().handle,
                                 VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT);
    recording_ = true;
    bound_ = VK_NULL_HANDLE;
    barrier(VK_PIPELINE_STAGE_HOST_BIT | stages_, stages_);
}

void SideStream::dispatch(const vulkan::Pipeline& pipeline, const void* push, size_t push_bytes, Grid grid) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    begin();
    const std::span bytes(static_cast<const std::byte*>(push), push_bytes);
    record_command(device_, batches_.back().handle, {Command::Kind::kDispatch, &pipeline, bytes, grid},
                   bound_);
}

void SideStream::copy(BufferRange to, BufferRange from, uint64_t bytes) {
    if (bytes == 0) return;
    begin();
    Command command{Command::Kind::kCopy};
    command.source = from.buffer->handle();
    command.source_offset = from.offset;
    command.target = to.buffer->handle();
    command.target_offset = to.offset;
    command.bytes = bytes;
    record_command(device_, batches_.back().handle, command, bound_);
}

uint64_t SideStream::submit(uint64_t after) {
    if (!recording_) return 0;
    recording_ = false;
    Batch& batch = batches_.back();
    barrier(stages_, stages_ | VK_PIPELINE_STAGE_HOST_BIT);
    VK_CHECK(device_.api().vkEndCommandBuffer(batch.handle));
    batch.serial = ++serial_;
    const vulkan::SemaphoreValue before[] = {{StreamWaits::instance().timeline().handle(), after}};
    const vulkan::SemaphoreValue done[] = {{semaphore_.handle(), serial_}};
    device_.submit(lane_, {&batch.handle, 1}, before, done);
    return serial_;
}

}  // namespace anymps::runtime
