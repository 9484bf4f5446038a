#include "runtime/command_encoder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <list>
#include <string>
#include <unordered_map>

#include "runtime/address_map.h"
#include "runtime/argument_ring.h"
#include "runtime/command_graph.h"
#include "runtime/deferred_commands.h"
#include "runtime/device.h"
#include "runtime/kernel_profile.h"
#include "runtime/launch.h"
#include "vulkan/buffer.h"
#include "vulkan/check.h"
#include "vulkan/pipeline.h"
#include "vulkan/query_pool.h"
#include "vulkan/timeline_semaphore.h"

namespace anymps::runtime {
namespace {

constexpr uint32_t kMaxGroups = 65535;           // in one dimension, on Intel and on software drivers
constexpr uint64_t kStagingBytes = 16ull << 20;  // one transfer of a large copy between host and device
constexpr uint64_t kMaxDeferredBytes = 4096;     // of an upload that is kept rather than waited for
constexpr size_t kMaxStaging = 4;                // buffers, so that host and device work at the same time
constexpr uint32_t kErrorWords = 64;
constexpr uint32_t kMessageCode = 1u << 30;  // the first code of errors with words of their own

// Submission cadence: a full batch, or whatever is there when the queue has run dry.
constexpr uint32_t kBatch = 64;
constexpr uint32_t kCheckEvery = 8;

constexpr VkPipelineStageFlags kDeviceStages =
    VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
constexpr VkAccessFlags kWrites = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
constexpr VkAccessFlags kReads = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT;

struct CommandBuffer {
    VkCommandPool pool = VK_NULL_HANDLE;
    VkCommandBuffer handle = VK_NULL_HANDLE;
    uint64_t submission = 0;  // of its last submission
};

struct Staging {
    std::unique_ptr<vulkan::Buffer> buffer;
    uint64_t submission = 0;
};

std::span<const std::byte> bytes_at(const void* data, size_t bytes) {
    return {static_cast<const std::byte*>(data), bytes};
}

}  // namespace

Grid Grid::linear(uint64_t groups) {
    if (groups <= kMaxGroups) return {static_cast<uint32_t>(groups), 1, 1};
    const uint64_t rows = (groups + kMaxGroups - 1) / kMaxGroups;
    TORCH_CHECK(rows <= kMaxGroups, "a kernel of ", groups, " workgroups exceeds the device's limit");
    return {static_cast<uint32_t>((groups + rows - 1) / rows), static_cast<uint32_t>(rows), 1};
}

// Members are guarded by mutex_ but for the semaphore and waited_. Commands go to graph_ where that is set.
class CommandEncoder::Impl {
  public:
    explicit Impl(const vulkan::Device& device)
        : device_(device),
          semaphore_(device),
          ring_(device),
          errors_(device, kErrorWords * sizeof(uint32_t), vulkan::MemoryKind::Ring) {
        std::memset(errors_.host(), 0, errors_.bytes());
    }

    // Now, or later if its pipeline or that of a command before it is still being compiled.
    void launch(const Launch& launch) {
        TORCH_CHECK(launch.args.size() <= ArgumentRing::kMaxBytes, "kernel arguments of ", launch.args.size(),
                    " bytes exceed the argument ring's ", ArgumentRing::kMaxBytes);
        if (can_record(&launch.pipeline)) return record_launch(launch);
        deferred_.push(&launch.pipeline, [this, owned = OwnedLaunch(launch)] { record_launch(owned.get()); });
    }

    // The same for a command of no kernel.
    template <class Command>
    void in_order(Command command) {
        if (can_record(nullptr)) return command();
        deferred_.push(nullptr, command);
    }

    // Everything that callers have asked for is recorded then.
    void record_deferred() { deferred_.record_all(); }

    ArgumentRing::Slice reserve(uint64_t bytes) {
        if (graph_) [[unlikely]]
            return graph_->reserve(bytes);
        ArgumentRing::Slice slice;
        while (!ring_.reserve(bytes, &slice)) {
            submit();
            semaphore_.wait(ring_.oldest());
            ring_.reclaim(semaphore_.value());
        }
        return slice;
    }

    // The device address of a copy in the argument ring.
    uint64_t arguments(std::span<const std::byte> args) {
        const ArgumentRing::Slice slice = reserve(args.size());
        std::memcpy(slice.host, args.data(), args.size());
        return slice.address;
    }

    void copy_regions(uint64_t dst, VkBuffer src_buffer, uint64_t src_offset, uint64_t src_address,
                      uint64_t bytes) {
        const BufferRange to = find_buffer(dst, bytes);
        const Access accesses[] = {{src_address, bytes, false}, {dst, bytes, true}};
        const VkBufferCopy region{src_offset, to.offset, bytes};
        record("vkCmdCopyBuffer", 1, accesses, [&](VkCommandBuffer commands) {
            device_.api().vkCmdCopyBuffer(commands, src_buffer, to.buffer->handle(), 1, &region);
        });
    }

    void copy(uint64_t dst, uint64_t src, uint64_t bytes) {
        const BufferRange from = find_buffer(src, bytes);
        copy_regions(dst, from.buffer->handle(), from.offset, src, bytes);
    }

    void upload(uint64_t dst, const std::byte* src, uint64_t bytes) {
        if (graph_) [[unlikely]] {
            TORCH_CHECK(bytes <= ArgumentRing::kMaxBytes, "A copy of ", bytes,
                        " bytes from the host is not permitted while a graph is captured: it keeps at most ",
                        ArgumentRing::kMaxBytes);
            return upload_by_ring(dst, bytes_at(src, bytes));
        }
        if (std::byte* host = host_pointer(dst, bytes); host && idle()) {
            std::memcpy(host, src, bytes);
            return;
        }
        if (bytes <= kMaxDeferredBytes && !can_record(nullptr)) {
            deferred_.push(nullptr, [this, dst, kept = std::vector<std::byte>(src, src + bytes)] {
                upload_by_ring(dst, kept);
            });
            return;
        }
        record_deferred();
        if (bytes <= ArgumentRing::kMaxBytes) return upload_by_ring(dst, bytes_at(src, bytes));
        for (uint64_t done = 0; done < bytes; done += kStagingBytes) {
            const uint64_t part = std::min(kStagingBytes, bytes - done);
            Staging& staging = next_staging();
            std::memcpy(staging.buffer->host(), src + done, part);
            copy_regions(dst + done, staging.buffer->handle(), 0, staging.buffer->address(), part);
            staging.submission = submit();
        }
    }

    void upload_by_ring(uint64_t dst, std::span<const std::byte> bytes) {
        const ArgumentRing::Slice slice = reserve(bytes.size());
        std::memcpy(slice.host, bytes.data(), bytes.size());
        copy_regions(dst, slice.buffer->handle(), slice.offset, slice.address, bytes.size());
    }

    // Records the copy of one part into staging memory and submits it.
    Staging& start_download(uint64_t src, uint64_t bytes) {
        Staging& staging = next_staging();
        const BufferRange from = find_buffer(src, bytes);
        const Access accesses[] = {{src, bytes, false}, {staging.buffer->address(), bytes, true}};
        const VkBufferCopy region{from.offset, 0, bytes};
        record("vkCmdCopyBuffer", 1, accesses, [&](VkCommandBuffer commands) {
            device_.api().vkCmdCopyBuffer(commands, from.buffer->handle(), staging.buffer->handle(), 1,
                                          &region);
        });
        staging.submission = submit();
        return staging;
    }

    void download(std::byte* dst, uint64_t src, uint64_t bytes) {
        if (const std::byte* host = host_pointer(src, bytes)) {
            wait(submit());
            std::memcpy(dst, host, bytes);
            return;
        }
        struct Part {
            Staging* staging;
            uint64_t offset, bytes;
        };
        std::deque<Part> parts;
        const auto finish_oldest = [&] {
            const Part part = parts.front();
            parts.pop_front();
            wait(part.staging->submission);
            std::memcpy(dst + part.offset, part.staging->buffer->host(), part.bytes);
        };
        for (uint64_t done = 0; done < bytes; done += kStagingBytes) {
            const uint64_t part = std::min(kStagingBytes, bytes - done);
            if (parts.size() == kMaxStaging) finish_oldest();
            parts.push_back({&start_download(src + done, part), done, part});
        }
        while (!parts.empty()) finish_oldest();
    }

    void fill(uint64_t dst, uint8_t byte, uint64_t bytes) {
        const BufferRange to = find_buffer(dst, bytes);
        TORCH_INTERNAL_ASSERT(to.offset % 4 == 0 && bytes % 4 == 0, "fill of an unaligned range");
        const Access accesses[] = {{dst, bytes, true}};
        record("vkCmdFillBuffer", 1, accesses, [&](VkCommandBuffer commands) {
            device_.api().vkCmdFillBuffer(commands, to.buffer->handle(), to.offset, bytes,
                                          byte * 0x01010101u);
        });
    }

    void write_timestamp(const vulkan::QueryPool& pool, uint32_t index) {
        VkCommandBuffer commands = prepare({});
        barrier(commands, kDeviceStages, kReads | kWrites);
        stream_.hazards.clear();
        device_.api().vkCmdResetQueryPool(commands, pool.handle(), index, 1);
        // At the end of the pipe: the top would be written before earlier kernels have run.
        device_.api().vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool.handle(),
                                          index);
        recorded({});
    }

    uint64_t submit(VkCommandBuffer graph = VK_NULL_HANDLE) {
        if (!recording_ && !graph) return submission_;
        const auto& api = device_.api();
        VkCommandBuffer handles[2];
        uint32_t count = 0;
        ++submission_;
        if (recording_) {
            CommandBuffer& current = buffers_.back();
            graph_barrier(stream_);
            recording_ = false;
            VK_CHECK(api.vkEndCommandBuffer(current.handle));
            current.submission = submission_;
            handles[count++] = current.handle;
        }
        if (graph) handles[count++] = graph;
        VkSemaphore semaphore = semaphore_.handle();
        VkTimelineSemaphoreSubmitInfo timeline{VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
        timeline.signalSemaphoreValueCount = 1;
        timeline.pSignalSemaphoreValues = &submission_;
        VkSubmitInfo submit{VK_STRUCTURE_TYPE_SUBMIT_INFO, &timeline};
        submit.commandBufferCount = count;
        submit.pCommandBuffers = handles;
        submit.signalSemaphoreCount = 1;
        submit.pSignalSemaphores = &semaphore;
        VK_CHECK(api.vkQueueSubmit(device_.queue(), 1, &submit, VK_NULL_HANDLE));
        ring_.close(submission_);
        return submission_;
    }

    uint64_t replay(const Recording& graph, std::span<const PhiloxBase> bases) {
        record_deferred();
        for (const PhiloxBase& base : bases)
            upload_by_ring(base.address, bytes_at(&base.state, sizeof(base.state)));
        return submit(graph.handle);
    }

    // Makes what was written visible to the next submission and to the host.
    void graph_barrier(Recording& recording) {
        barrier(recording.handle, kDeviceStages | VK_PIPELINE_STAGE_HOST_BIT,
                kReads | kWrites | VK_ACCESS_HOST_READ_BIT);
        recording.hazards.clear();
    }

    // Raises what kernels have reported since the last time.
    void check_errors() {
        auto* words = reinterpret_cast<volatile uint32_t*>(errors_.host());
        const uint32_t code = words[0];
        if (code == 0) return;
        words[0] = 0;
        throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                    static_cast<int32_t>(code),
                                    "MPS error: device-side assert triggered: " + error_message(code) +
                                        ". Kernel errors are reported at the next synchronization, so the "
                                        "stack trace may be of a later call.");
    }

    ErrorSlot error_slot(const char* op) {
        std::lock_guard lock(mutex_);
        const auto found = std::find(error_ops_.begin(), error_ops_.end(), op);
        const auto index = static_cast<uint32_t>(found - error_ops_.begin());
        if (found == error_ops_.end()) error_ops_.emplace_back(op);
        return {errors_.address(), index + 1};
    }

    ErrorSlot message_slot(const std::string& message) {
        std::lock_guard lock(mutex_);
        const auto next = static_cast<uint32_t>(error_messages_.size());
        const auto found = error_messages_.try_emplace(message, kMessageCode + next).first;
        return {errors_.address(), found->second};
    }

    // Waits for a serial. The queue may be dry then, so the next command is submitted at once.
    void wait(uint64_t submission) {
        semaphore_.wait(submission);
        waited_.store(true, std::memory_order_relaxed);
    }

    std::mutex mutex_;
    CommandGraph* graph_ = nullptr;  // what the caller captures
    const vulkan::Device& device_;
    vulkan::TimelineSemaphore semaphore_;

  private:
    // What a code of error_slot or message_slot stands for.
    std::string error_message(uint32_t code) {
        std::lock_guard lock(mutex_);
        if (code < kMessageCode) {
            return "index out of range in " +
                   (code <= error_ops_.size() ? error_ops_[code - 1] : std::string("an operator"));
        }
        const auto found = std::find_if(error_messages_.begin(), error_messages_.end(),
                                        [&](const auto& entry) { return entry.second == code; });
        return found != error_messages_.end() ? found->first : "an assertion failed";
    }

    // Nothing that was asked for is still to be done.
    bool idle() { return deferred_.empty() && !recording_ && semaphore_.value() >= submission_; }

    // Whether a command of this kernel (or of none) can be recorded at once: all before it are.
    bool can_record(const vulkan::Pipeline* pipeline) {
        if (graph_) [[unlikely]]
            return true;  // which has no deferred commands: pipelines are built now
        if (!deferred_.empty()) [[unlikely]] {
            deferred_.record_built();
            if (!deferred_.empty()) return false;
        }
        // A profile notes what the caller has said of its next command, so that is recorded at once.
        return pipeline == nullptr || pipeline->built() || active_profile() != nullptr;
    }

    void record_launch(const Launch& launch) {
        uint64_t address = 0;
        std::span<const std::byte> push = launch.args;
        if (launch.in_ring) {
            address = arguments(launch.args);
            push = bytes_at(&address, sizeof(address));
        }
        if (launch.grid_address != 0) return dispatch_indirect(launch, push);
        const Grid& grid = launch.grid;
        if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
        const uint64_t groups = uint64_t{grid.x} * grid.y * grid.z;
        record(launch.pipeline.name(), groups, launch.accesses, [&](VkCommandBuffer commands) {
            bind(commands, launch.pipeline, push);
            device_.api().vkCmdDispatch(commands, grid.x, grid.y, grid.z);
        });
    }

    void dispatch_indirect(const Launch& launch, std::span<const std::byte> push) {
        const BufferRange counts = find_buffer(launch.grid_address, sizeof(VkDispatchIndirectCommand));
        // Barriers before other commands leave out this stage, which would hold up the queue.
        VkCommandBuffer commands = prepare({});
        barrier(commands, kDeviceStages | VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT,
                kReads | kWrites | VK_ACCESS_INDIRECT_COMMAND_READ_BIT);
        recording().hazards.clear();
        record(launch.pipeline.name(), 0, launch.accesses, [&](VkCommandBuffer commands) {
            bind(commands, launch.pipeline, push);
            device_.api().vkCmdDispatchIndirect(commands, counts.buffer->handle(), counts.offset);
        });
    }

    void bind(VkCommandBuffer commands, const vulkan::Pipeline& pipeline, std::span<const std::byte> push) {
        const auto& api = device_.api();
        VkPipeline& bound = recording().bound;
        if (const VkPipeline handle = pipeline.handle(); handle != bound) {
            api.vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, handle);
            bound = handle;
        }
        api.vkCmdPushConstants(commands, device_.pipeline_layout(), VK_SHADER_STAGE_COMPUTE_BIT, 0,
                               static_cast<uint32_t>((push.size() + 3) & ~size_t{3}), push.data());
    }

    void barrier(VkCommandBuffer commands, VkPipelineStageFlags stages, VkAccessFlags accesses) {
        VkMemoryBarrier memory{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
        memory.srcAccessMask = kWrites;
        memory.dstAccessMask = accesses;
        device_.api().vkCmdPipelineBarrier(commands, kDeviceStages, stages, 0, 1, &memory, 0, nullptr, 0,
                                           nullptr);
    }

    Recording& recording() { return graph_ ? graph_->recording() : stream_; }

    VkCommandBuffer prepare(std::span<const Access> accesses) {
        if (!recording_ && !graph_) begin();
        if (graph_) [[unlikely]] {
            for (const Access& access : accesses) graph_->retain(share_buffer(access.address));
        }
        Recording& current = recording();
        if (current.hazards.add(accesses)) barrier(current.handle, kDeviceStages, kReads | kWrites);
        return current.handle;
    }

    // Records one command that reads and writes what `accesses` says.
    template <class Command>
    void record(std::string_view name, uint64_t groups, std::span<const Access> accesses, Command command) {
        VkCommandBuffer commands = prepare(accesses);
        if (KernelProfile* profile = graph_ ? nullptr : active_profile()) [[unlikely]] {
            barrier(commands, kDeviceStages, kReads | kWrites);
            profile->collect(semaphore_.value());
            profile->begin(commands, submission_ + 1);
            command(commands);
            profile->end(commands, name, groups, accesses);
        } else {
            command(commands);
        }
        recorded(name);
    }

    void recorded(std::string_view name) {
        if (graph_) [[unlikely]]
            return graph_->recorded(name);
        const uint32_t commands = ++stream_.commands;
        const bool check = commands % kCheckEvery == 0 || waited_.exchange(false, std::memory_order_relaxed);
        if (commands >= kBatch || (check && semaphore_.value() >= submission_)) submit();
    }

    void begin() {
        const auto& api = device_.api();
        // The oldest command buffer is reused once it has completed; the list stays as long as the queue
        // needs.
        if (!buffers_.empty() && buffers_.front().submission <= semaphore_.value()) {
            ring_.reclaim(semaphore_.value());
            buffers_.push_back(buffers_.front());
            buffers_.pop_front();
            VK_CHECK(api.vkResetCommandPool(device_.handle(), buffers_.back().pool, 0));
        } else {
            buffers_.push_back(create());
        }
        VkCommandBufferBeginInfo info{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
        info.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
        VK_CHECK(api.vkBeginCommandBuffer(buffers_.back().handle, &info));
        recording_ = true;
        stream_.handle = buffers_.back().handle;
        stream_.commands = 0;
        stream_.bound = VK_NULL_HANDLE;
    }

    CommandBuffer create() {
        const auto& api = device_.api();
        CommandBuffer result;
        VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
        pool.flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT;
        pool.queueFamilyIndex = device_.info().queue_family;
        VK_CHECK(api.vkCreateCommandPool(device_.handle(), &pool, nullptr, &result.pool));
        VkCommandBufferAllocateInfo allocate{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
        allocate.commandPool = result.pool;
        allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
        allocate.commandBufferCount = 1;
        VK_CHECK(api.vkAllocateCommandBuffers(device_.handle(), &allocate, &result.handle));
        return result;
    }

    Staging& next_staging() {
        if (staging_.size() < kMaxStaging) {
            staging_.push_back(
                {std::make_unique<vulkan::Buffer>(device_, kStagingBytes, vulkan::MemoryKind::Staging), 0});
            return staging_.back();
        }
        staging_.splice(staging_.end(), staging_, staging_.begin());
        semaphore_.wait(staging_.back().submission);
        return staging_.back();
    }

    std::deque<CommandBuffer> buffers_;  // oldest submission first; the back one is being recorded
    std::atomic<bool> waited_{false};
    bool recording_ = false;
    Recording stream_;
    uint64_t submission_ = 0;
    DeferredCommands deferred_;
    ArgumentRing ring_;
    vulkan::Buffer errors_;
    std::vector<std::string> error_ops_;
    std::unordered_map<std::string, uint32_t> error_messages_;  // and their codes
    std::list<Staging> staging_;                                // oldest use first
};

// The lock of one call, which goes to the graph that its thread captures.
class CommandEncoder::Call {
  public:
    explicit Call(Impl& impl) : lock_(impl.mutex_), impl_(impl) { impl_.graph_ = capturing(); }
    ~Call() { impl_.graph_ = nullptr; }

  private:
    std::lock_guard<std::mutex> lock_;
    Impl& impl_;
};

CommandEncoder::CommandEncoder(const vulkan::Device& device) : impl_(std::make_unique<Impl>(device)) {}
CommandEncoder::~CommandEncoder() = default;

void CommandEncoder::dispatch(const vulkan::Pipeline& pipeline, const void* push, size_t push_bytes,
                              Grid grid, std::span<const Access> accesses) {
    const Call call(*impl_);
    impl_->launch({pipeline, bytes_at(push, push_bytes), false, grid, 0, accesses});
}

void CommandEncoder::dispatch_pointer(const vulkan::Pipeline& pipeline, const void* args, size_t bytes,
                                      Grid grid, std::span<const Access> accesses) {
    const Call call(*impl_);
    impl_->launch({pipeline, bytes_at(args, bytes), true, grid, 0, accesses});
}

void CommandEncoder::dispatch_pointer(const vulkan::Pipeline& pipeline, const void* args, size_t bytes,
                                      uint64_t grid, std::span<const Access> accesses) {
    const Call call(*impl_);
    impl_->launch({pipeline, bytes_at(args, bytes), true, {}, grid, accesses});
}

void CommandEncoder::copy(uint64_t dst, uint64_t src, uint64_t bytes) {
    if (bytes == 0) return;
    const Call call(*impl_);
    impl_->in_order([impl = impl_.get(), dst, src, bytes] { impl->copy(dst, src, bytes); });
}

void CommandEncoder::upload(uint64_t dst, const void* src, uint64_t bytes) {
    if (bytes == 0) return;
    const Call call(*impl_);
    impl_->upload(dst, static_cast<const std::byte*>(src), bytes);
}

void CommandEncoder::download(void* dst, uint64_t src, uint64_t bytes) {
    if (bytes == 0) return;
    check_not_capturing("Copying from the mps device to the host");
    {
        const Call call(*impl_);
        impl_->record_deferred();
        impl_->download(static_cast<std::byte*>(dst), src, bytes);
    }
    impl_->check_errors();
}

void CommandEncoder::fill(uint64_t dst, uint8_t byte, uint64_t bytes) {
    if (bytes == 0) return;
    const Call call(*impl_);
    impl_->in_order([impl = impl_.get(), dst, byte, bytes] { impl->fill(dst, byte, bytes); });
}

void CommandEncoder::write_timestamp(const vulkan::QueryPool& pool, uint32_t index) {
    check_not_capturing("An event with a time");
    const Call call(*impl_);
    impl_->record_deferred();
    impl_->write_timestamp(pool, index);
}

uint64_t CommandEncoder::submit() {
    check_not_capturing("A synchronization or an event");
    const Call call(*impl_);
    impl_->record_deferred();
    return impl_->submit();
}

uint64_t CommandEncoder::replay(const Recording& graph, std::span<const PhiloxBase> bases) {
    const Call call(*impl_);
    return impl_->replay(graph, bases);
}

void CommandEncoder::graph_barrier(Recording& graph) {
    impl_->graph_barrier(graph);
}

void CommandEncoder::wait(uint64_t submission) {
    impl_->wait(submission);
}

bool CommandEncoder::completed(uint64_t submission) const {
    return impl_->semaphore_.value() >= submission;
}

void CommandEncoder::synchronize() {
    wait(submit());
    impl_->check_errors();
}

void CommandEncoder::check_errors() {
    impl_->check_errors();
}

ErrorSlot CommandEncoder::error_slot(const char* op) {
    return impl_->error_slot(op);
}

ErrorSlot CommandEncoder::message_slot(const std::string& message) {
    return impl_->message_slot(message);
}

CommandEncoder& encoder() {
    check_not_forked();
    static auto* const instance = new CommandEncoder(device());
    return *instance;
}

}  // namespace anymps::runtime
