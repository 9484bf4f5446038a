#include "runtime/command_encoder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <list>
#include <utility>

#include "runtime/address_map.h"
#include "runtime/argument_ring.h"
#include "runtime/command.h"
#include "runtime/command_graph.h"
#include "runtime/command_timer.h"
#include "runtime/deferred_commands.h"
#include "runtime/device.h"
#include "runtime/device_errors.h"
#include "runtime/dispatch_time.h"
#include "runtime/kept_commands.h"
#include "runtime/launch.h"
#include "runtime/plan_log.h"
#include "runtime/stream_waits.h"
#include "runtime/wait_counts.h"
#include "vulkan/buffer.h"
#include "vulkan/check.h"
#include "vulkan/command_buffer.h"
#include "vulkan/pipeline.h"
#include "vulkan/query_pool.h"
#include "vulkan/timeline_semaphore.h"

namespace anymps::runtime {
namespace {

constexpr uint64_t kStagingBytes = 16ull << 20;  // one transfer of a large copy between host and device
constexpr uint64_t kMaxDeferredBytes = 4096;     // of an upload that is kept rather than waited for
constexpr size_t kMaxStaging = 4;                // buffers, so that host and device work at the same time

// Submission cadence: a full batch, or whatever is there when the queue has run dry.
constexpr uint32_t kBatch = 64;
constexpr uint32_t kCheckEvery = 8;

struct CommandBuffer : vulkan::CommandBuffer {
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

// Members are guarded by mutex_ but for the semaphore and waited_. Commands go to graph_ where that is set.
class CommandEncoder::Impl {
  public:
    explicit Impl(const vulkan::Device& device)
        : device_(device), semaphore_(device), errors_(device), ring_(device) {
        StreamWaits::instance().set_timeline(semaphore_);
    }

    // Now, or later if its pipeline or that of a command before it is still being compiled.
    void launch(const Launch& launch) {
        TORCH_CHECK(launch.args.size() <= ArgumentRing::kMaxBytes, "kernel arguments of ", launch.args.size(),
                    " bytes exceed the argument ring's ", ArgumentRing::kMaxBytes);
        if (logs_dispatches()) [[unlikely]]
            log_dispatch(launch);
        if (timer_) [[unlikely]]
            take_work(origin_);
        if (can_record(&launch.pipeline)) return record_launch(launch);
        defer(&launch.pipeline, [this, owned = OwnedLaunch(launch)] { record_launch(owned.get()); });
    }

    // The same for a command of no kernel.
    template <class Command>
    void in_order(Command command) {
        if (can_record(nullptr)) return command();
        defer(nullptr, command);
    }

    void record_deferred() { deferred_.record_all(); }  // what callers have asked for is recorded then

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

    void copy_regions(Command::Kind kind, uint64_t dst, const BufferRange& from, uint64_t src,
                      uint64_t bytes) {
        copy_regions(kind, find_buffer(dst, bytes), dst, from, src, bytes);
    }

    void copy_regions(Command::Kind kind, const BufferRange& to, uint64_t dst, const BufferRange& from,
                      uint64_t src, uint64_t bytes) {
        const Access accesses[] = {{src, bytes, false}, {dst, bytes, true}};
        Command command{kind};
        command.source = from.buffer->handle();
        command.source_offset = from.offset;
        command.target = to.buffer->handle();
        command.target_offset = to.offset;
        command.bytes = bytes;
        record(command, accesses);
    }

    void copy(uint64_t dst, uint64_t src, uint64_t bytes) {
        if (device_.info().max_submission_seconds() > 0) take_time(copy_seconds(device_.info(), bytes));
        copy_regions(Command::Kind::kCopy, dst, find_buffer(src, bytes), src, bytes);
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
            defer(nullptr, [this, dst, kept = std::vector<std::byte>(src, src + bytes)] {
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
            copy_regions(Command::Kind::kUpload, dst + done, {staging.buffer.get(), 0},
                         staging.buffer->address(), part);
            staging.submission = submit();
        }
    }

    void upload_by_ring(uint64_t dst, std::span<const std::byte> bytes) {
        const ArgumentRing::Slice slice = reserve(bytes.size());
        std::memcpy(slice.host, bytes.data(), bytes.size());
        copy_regions(Command::Kind::kUpload, dst, {slice.buffer, slice.offset}, slice.address, bytes.size());
    }

    // Records the copy of one part into staging memory and submits it.
    Staging& start_download(uint64_t src, uint64_t bytes) {
        Staging& staging = next_staging();
        copy_regions(Command::Kind::kDownload, {staging.buffer.get(), 0}, staging.buffer->address(),
                     find_buffer(src, bytes), src, bytes);
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
        Command command{Command::Kind::kFill};
        command.target = to.buffer->handle();
        command.target_offset = to.offset;
        command.bytes = bytes;
        command.word = byte * 0x01010101u;
        record(command, accesses);
    }

    void write_timestamp(const vulkan::QueryPool& pool, uint32_t index) {
        VkCommandBuffer commands = prepare({});
        barrier(kDeviceStages);
        stream_.hazards.clear();
        device_.api().vkCmdResetQueryPool(commands, pool.handle(), index, 1);
        // At the end of the pipe: the top would be written before earlier kernels have run.
        device_.api().vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool.handle(),
                                          index);
        recorded();
    }

    uint64_t submit(VkCommandBuffer graph = VK_NULL_HANDLE) {
        const auto waits = StreamWaits::instance().take();
        if (!recording_ && !graph && waits.empty()) return submission_;
        const HostCallScope call("vkQueueSubmit");
        VkCommandBuffer handles[2];
        uint32_t count = 0;
        ++submission_;
        if (recording_) {
            auto& current = buffers_.back();
            graph_barrier(stream_);
            recording_ = false;
            VK_CHECK(device_.api().vkEndCommandBuffer(current.handle));
            current.submission = submission_;
            handles[count++] = current.handle;
        }
        if (graph) handles[count++] = graph;
        const vulkan::SemaphoreValue done[] = {{semaphore_.handle(), submission_}};
        device_.submit(vulkan::Lane::Stream, {handles, count}, values_of(waits), done);
        ring_.close(submission_);
        return submission_;
    }

    uint64_t replay(const Recording& graph, std::span<const PhiloxBase> bases) {
        record_deferred();
        for (const PhiloxBase& base : bases)
            upload_by_ring(base.address, bytes_at(&base.state, sizeof(base.state)));
        if (timer_ && graph.commands > 0) [[unlikely]]
            return replay_timed(graph.kept);
        for (VkCommandBuffer handle : graph.ended) submit(handle);
        return submit(graph.handle);
    }

    // The same commands with timestamps, which are then copied to where the host reads them.
    uint64_t replay_timed(const std::shared_ptr<KeptCommands>& graph) {
        const uint64_t serial = submit(graph->timed());
        auto ticks = graph->ticks();
        constexpr auto kWhole = VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT;
        device_.api().vkCmdCopyQueryPoolResults(prepare({}), graph->stamps().handle(), 0,
                                                graph->stamps().count(), ticks->handle(), 0, sizeof(uint64_t),
                                                kWhole);
        stream_.barrier |= kDeviceStages;  // the last timestamp is of a command before
        timer_->replayed(graph, std::move(ticks), submission_ + 1, origin_);
        recorded();
        return serial;
    }

    // Makes what was written visible to the next submission and to the host.
    void graph_barrier(Recording& recording) {
        record_barrier(device_, recording.handle, kDeviceStages | VK_PIPELINE_STAGE_HOST_BIT);
        recording.hazards.clear();
    }

    // Waits for a serial. The queue may be dry then, so the next command is submitted at once.
    void wait(uint64_t submission) {
        if (semaphore_.value() < submission) {
            const HostCallScope call("vkWaitSemaphores");
            const WaitScope waits(WaitReason::kDevice);
            semaphore_.wait(submission);
        }
        waited_.store(true, std::memory_order_relaxed);
    }

    std::mutex mutex_;
    CommandGraph* graph_ = nullptr;  // what the caller captures
    CommandTimer* timer_ = nullptr;  // the active one as of this call, whose origin is:
    CommandOrigin origin_;
    const vulkan::Device& device_;
    vulkan::TimelineSemaphore semaphore_;
    DeviceErrors errors_;

  private:
    // Nothing that was asked for is still to be done.
    bool idle() {
        return deferred_.empty() && !recording_ && StreamWaits::instance().empty() &&
               semaphore_.value() >= submission_;
    }

    // Whether a command of this kernel (or of none) can be recorded at once: all before it are.
    bool can_record(const vulkan::Pipeline* pipeline) {
        if (graph_) [[unlikely]]
            return true;  // which has no deferred commands: pipelines are built now
        if (!deferred_.empty()) [[unlikely]] {
            deferred_.record_built();
            if (!deferred_.empty()) return false;
        }
        // A profile whose commands do not overlap shows them in the calls that ask for them, too.
        return pipeline == nullptr || pipeline->built() ||
               (timer_ && timer_->isolation() != CommandTimer::Isolation::kNone);
    }

    // Keeps a command for later, and whose it is.
    template <class Function>
    void defer(const vulkan::Pipeline* pipeline, Function function) {
        if (!timer_) return deferred_.push(pipeline, std::move(function));
        origin_.host_end = host_time();
        deferred_.push(pipeline, [this, origin = origin_, function = std::move(function)] {
            const CommandOrigin callers = std::exchange(origin_, origin);
            function();
            origin_ = callers;
        });
    }

    void record_launch(const Launch& launch) {
        if (!launch.pipeline.built()) [[unlikely]] {
            const WaitScope waits(WaitReason::kCompiler);
            launch.pipeline.build();
        }
        const Grid grid = launch.grid;
        if (launch.grid_address == 0 && (grid.x == 0 || grid.y == 0 || grid.z == 0)) return;
        const vulkan::DeviceInfo& info = device_.info();
        const double limit = info.max_submission_seconds();
        if (limit == 0) return record_part(launch, {{0, 0, 0}, grid}, 1);
        const double seconds = dispatch_seconds(info, launch.accesses, launch.work);
        if (seconds <= limit || !info.splits_dispatches()) {
            take_time(seconds);
            return record_part(launch, {{0, 0, 0}, grid}, 1);
        }
        const auto parts = parts_of(launch, seconds, limit);
        for (const GridPart& part : parts) {
            take_time(seconds / static_cast<double>(parts.size()));
            record_part(launch, part, 1.0 / static_cast<double>(parts.size()));
        }
    }

    // Counts the seconds of the next command, before anything is reserved for it in this submission.
    void take_time(double seconds) {
        Recording& current = recording();
        if (!graph_ && !recording_) current.seconds = 0;
        if (current.seconds > 0 && current.seconds + seconds > device_.info().max_submission_seconds()) {
            graph_ ? graph_->begin_submission() : static_cast<void>(submit());
            current.seconds = 0;
        }
        current.seconds += seconds;
    }

    void record_part(const Launch& launch, const GridPart& part, double share) {
        uint64_t address = 0;
        std::span<const std::byte> push = launch.args;
        if (launch.in_ring) {
            address = arguments(launch.args);
            push = bytes_at(&address, sizeof(address));
        }
        Command command{Command::Kind::kDispatch, &launch.pipeline, push, part.groups};
        if (launch.grid_address != 0) return dispatch_indirect(command, launch);
        command.base = part.base;
        command.share = share;
        record(command, launch.accesses);
    }

    void dispatch_indirect(Command& command, const Launch& launch) {
        const BufferRange counts = find_buffer(launch.grid_address, sizeof(VkDispatchIndirectCommand));
        command.kind = Command::Kind::kDispatchIndirect;
        command.grid = {0, 0, 0};
        command.source = counts.buffer->handle();
        command.source_offset = counts.offset;
        // Barriers before other commands leave out this stage, which would hold up the queue.
        prepare({});
        barrier(kDeviceStages | VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT);
        recording().hazards.clear();
        record(command, launch.accesses);
    }

    void barrier(VkPipelineStageFlags stages) {
        Recording& current = recording();
        record_barrier(device_, current.handle, stages);
        current.barrier |= stages;
    }

    Recording& recording() { return graph_ ? graph_->recording() : stream_; }

    VkCommandBuffer prepare(std::span<const Access> accesses) {
        if (!recording_ && !graph_) begin();
        if (graph_) [[unlikely]] {
            for (const Access& access : accesses) graph_->retain(share_buffer(access.address));
        }
        Recording& current = recording();
        if (current.hazards.add(accesses)) barrier(kDeviceStages);
        return current.handle;
    }

    // Records one command that reads and writes what `accesses` says.
    void record(const Command& command, std::span<const Access> accesses) {
        const VkCommandBuffer commands = prepare(accesses);
        Recording& current = recording();
        if (graph_) [[unlikely]] {
            graph_->record(command, accesses);
        } else if (timer_) [[unlikely]] {
            return record_timed(command, accesses);
        }
        record_command(device_, commands, command, current.bound);
        current.barrier = 0;
        if (!graph_) recorded();
    }

    void record_timed(const Command& command, std::span<const Access> accesses) {
        const auto isolation = timer_->isolation();
        if (isolation != CommandTimer::Isolation::kNone) barrier(kDeviceStages);
        if (timer_->full()) timer_->collect(semaphore_.value());
        const bool apart = std::exchange(stream_.barrier, 0) != 0 || stream_.commands == 0;
        timer_->begin(device_, stream_.handle, submission_ + 1, apart);
        record_command(device_, stream_.handle, command, stream_.bound);
        timer_->end(stream_.handle, command, accesses, origin_);
        recorded();
        if (isolation == CommandTimer::Isolation::kWait) wait(submit());
    }

    void recorded() {
        const uint32_t commands = ++stream_.commands;
        const bool check = commands % kCheckEvery == 0 || waited_.exchange(false, std::memory_order_relaxed);
        if (commands >= kBatch || (check && semaphore_.value() >= submission_)) submit();
    }

    void begin() {
        // The oldest command buffer is reused once it has completed; the list stays as long as the queue
        // needs.
        if (!buffers_.empty() && buffers_.front().submission <= semaphore_.value()) {
            ring_.reclaim(semaphore_.value());
            buffers_.push_back(buffers_.front());
            buffers_.pop_front();
            VK_CHECK(device_.api().vkResetCommandPool(device_.handle(), buffers_.back().pool, 0));
        } else {
            buffers_.push_back(
                {vulkan::create_command_buffer(device_, VK_COMMAND_POOL_CREATE_TRANSIENT_BIT)});
        }
        vulkan::begin_command_buffer(device_, buffers_.back().handle,
                                     VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT);
        recording_ = true;
        stream_.handle = buffers_.back().handle;
        stream_.commands = 0;
        stream_.bound = VK_NULL_HANDLE;
        stream_.barrier = 0;
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
    std::list<Staging> staging_;  // oldest use first
};

// The lock of one call, which goes to the graph that its thread captures.
class CommandEncoder::Call {
  public:
    explicit Call(CommandEncoder& encoder, bool records = true)
        : lock_((records ? enter_current_stream() : void(), encoder.impl_->mutex_)), impl_(*encoder.impl_) {
        if (records) encoder.calls_.fetch_add(1, std::memory_order_relaxed);
        impl_.graph_ = capturing();
        impl_.timer_ = active_timer();
        if (impl_.timer_) [[unlikely]]
            impl_.origin_ = command_origin();
    }
    ~Call() { impl_.graph_ = nullptr; }

  private:
    std::lock_guard<std::mutex> lock_;
    Impl& impl_;
};

CommandEncoder::CommandEncoder(const vulkan::Device& device) : impl_(std::make_unique<Impl>(device)) {}
CommandEncoder::~CommandEncoder() = default;

void CommandEncoder::dispatch(const vulkan::Pipeline& pipeline, const void* push, size_t push_bytes,
                              Grid grid, std::span<const Access> accesses) {
    const Call call(*this);
    impl_->launch({pipeline, bytes_at(push, push_bytes), false, grid, 0, accesses, take_dispatch()});
}

void CommandEncoder::dispatch_pointer(const vulkan::Pipeline& pipeline, const void* args, size_t bytes,
                                      Grid grid, std::span<const Access> accesses) {
    const Call call(*this);
    impl_->launch({pipeline, bytes_at(args, bytes), true, grid, 0, accesses, take_dispatch()});
}

void CommandEncoder::dispatch_pointer(const vulkan::Pipeline& pipeline, const void* args, size_t bytes,
                                      uint64_t grid, std::span<const Access> accesses) {
    const Call call(*this);
    impl_->launch({pipeline, bytes_at(args, bytes), true, {}, grid, accesses, take_dispatch()});
}

void CommandEncoder::copy(uint64_t dst, uint64_t src, uint64_t bytes) {
    if (bytes == 0) return;
    const Call call(*this);
    impl_->in_order([impl = impl_.get(), dst, src, bytes] { impl->copy(dst, src, bytes); });
}

void CommandEncoder::upload(uint64_t dst, const void* src, uint64_t bytes) {
    if (bytes == 0) return;
    const Call call(*this);
    impl_->upload(dst, static_cast<const std::byte*>(src), bytes);
}

void CommandEncoder::download(void* dst, uint64_t src, uint64_t bytes) {
    if (bytes == 0) return;
    check_not_capturing("Copying from the mps device to the host");
    {
        const Call call(*this);
        impl_->record_deferred();
        impl_->download(static_cast<std::byte*>(dst), src, bytes);
    }
    impl_->errors_.check();
}

void CommandEncoder::fill(uint64_t dst, uint8_t byte, uint64_t bytes) {
    if (bytes == 0) return;
    const Call call(*this);
    impl_->in_order([impl = impl_.get(), dst, byte, bytes] { impl->fill(dst, byte, bytes); });
}

void CommandEncoder::write_timestamp(const vulkan::QueryPool& pool, uint32_t index) {
    check_not_capturing("An event with a time");
    const Call call(*this);
    impl_->record_deferred();
    impl_->write_timestamp(pool, index);
}

uint64_t CommandEncoder::submit() {
    check_not_capturing("A synchronization or an event");
    const Call call(*this, false);
    impl_->record_deferred();
    return impl_->submit();
}

uint64_t CommandEncoder::replay(const Recording& graph, std::span<const PhiloxBase> bases) {
    const Call call(*this);
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
    impl_->errors_.check();
}

void CommandEncoder::check_errors() {
    impl_->errors_.check();
}

ErrorSlot CommandEncoder::error_slot(const char* op) {
    return impl_->errors_.slot_of_op(op);
}

ErrorSlot CommandEncoder::message_slot(const std::string& message) {
    return impl_->errors_.slot_of_message(message);
}

CommandEncoder& encoder() {
    check_not_forked();
    static auto* const instance = new CommandEncoder(device());
    return *instance;
}

}  // namespace anymps::runtime
