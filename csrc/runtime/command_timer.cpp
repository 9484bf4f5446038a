#include "runtime/command_timer.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

#include "runtime/command_graph.h"
#include "runtime/device.h"
#include "runtime/kept_commands.h"
#include "vulkan/buffer.h"
#include "vulkan/device.h"
#include "vulkan/query_pool.h"

namespace anymps::runtime {
namespace {

constexpr uint32_t kStampsPerChunk = 2048;

// The calls of the host since a timer became active: threads may be in one when it no longer is.
struct HostCalls {
    std::mutex mutex;
    bool taken = false;
    std::vector<HostCall> list;

    static HostCalls& instance() {
        static auto* calls = new HostCalls;
        return *calls;
    }
};

}  // namespace

std::atomic<CommandTimer*> active_command_timer{nullptr};

// Timestamps of some commands in a row, and whose they are.
struct CommandTimer::Chunk {
    explicit Chunk(const vulkan::Device& device) : stamps(device, kStampsPerChunk) {
        commands.reserve(kStampsPerChunk);
    }
    struct Entry {
        TimedCommand command;
        uint32_t first, last;  // slots
    };
    vulkan::QueryPool stamps;
    std::vector<Entry> commands;
    uint32_t used = 0;        // slots
    uint32_t begun = 0;       // slot at which the command being recorded begins
    uint64_t submission = 0;  // of the last command's submission
};

struct CommandTimer::Replay {
    std::shared_ptr<KeptCommands> graph;
    std::unique_ptr<vulkan::Buffer> ticks;
    uint64_t submission;
    CommandOrigin origin;
};

CommandTimer::CommandTimer(Isolation isolation, Sink sink) : isolation_(isolation), sink_(std::move(sink)) {}

CommandTimer::~CommandTimer() {
    try {
        deactivate();
    } catch (const std::exception&) {
        // The device is lost, and its times with it.
    }
}

void CommandTimer::activate() {
    const OutsideCapture outside;
    const vulkan::DeviceInfo& info = device_info();
    TORCH_CHECK(info.timestamp_period_ns > 0 && info.timestamp_valid_bits > 0, "The Vulkan driver of '",
                info.name, "' has no timestamps, which a profile needs");
    if (device_created()) {
        encoder().submit();  // what still waits for its pipeline is no part of this
        clock_.start(device());
    }
    CommandOrigin unused;
    take_work(unused);
    CommandTimer* none = nullptr;
    TORCH_CHECK(active_command_timer.compare_exchange_strong(none, this),
                "A profile of the mps device is being taken already; profiles do not nest");
    auto& calls = HostCalls::instance();
    const std::lock_guard lock(calls.mutex);
    calls.list.clear();
    calls.taken = true;
}

void CommandTimer::deactivate() {
    CommandTimer* self = this;
    if (!active_command_timer.compare_exchange_strong(self, nullptr)) return;
    {
        auto& calls = HostCalls::instance();
        const std::lock_guard lock(calls.mutex);
        calls.taken = false;
    }
    if (!device_created() || in_bad_fork()) return;
    const OutsideCapture outside;
    // Whoever still records a command into this holds the encoder's lock, which submit() waits for.
    const uint64_t submission = encoder().submit();
    encoder().wait(submission);
    collect(submission);
    clock_.stop(device());
}

std::vector<HostCall> CommandTimer::host_calls() const {
    auto& calls = HostCalls::instance();
    const std::lock_guard lock(calls.mutex);
    return calls.list;
}

void CommandTimer::write(VkCommandBuffer commands) {
    Chunk& chunk = *chunks_.back();
    // At the end of the pipe: the top would be written before earlier kernels have run.
    device_->api().vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, chunk.stamps.handle(),
                                       chunk.used++);
}

void CommandTimer::begin(const vulkan::Device& device, VkCommandBuffer commands, uint64_t submission,
                         bool apart) {
    if (!device_) {
        device_ = &device;
        clock_.start(device);
    }
    if (chunks_.empty() || chunks_.back()->used + 2 > kStampsPerChunk) {
        if (spare_.empty()) spare_.push_back(std::make_unique<Chunk>(device));
        chunks_.push_back(std::move(spare_.back()));
        spare_.pop_back();
    }
    Chunk& chunk = *chunks_.back();
    chunk.submission = submission;
    if (apart || chunk.used == 0) write(commands);
    chunk.begun = chunk.used - 1;
}

void CommandTimer::end(VkCommandBuffer commands, const Command& command, std::span<const Access> accesses,
                       const CommandOrigin& origin) {
    write(commands);
    Chunk& chunk = *chunks_.back();
    TimedCommand timed{command.name(), command.kind, command.grid};
    for (const Access& access : accesses)
        (access.write ? timed.bytes_written : timed.bytes_read) += command.share_of(access.bytes);
    timed.origin = origin;
    timed.origin.operations *= command.share;
    if (timed.origin.host_end == 0) timed.origin.host_end = host_time();
    chunk.commands.push_back({std::move(timed), chunk.begun, chunk.used - 1});
}

void CommandTimer::replayed(std::shared_ptr<KeptCommands> graph, std::unique_ptr<vulkan::Buffer> ticks,
                            uint64_t submission, const CommandOrigin& origin) {
    if (!device_) {
        device_ = &device();
        clock_.start(*device_);
    }
    replays_.push_back(
        std::make_unique<Replay>(Replay{std::move(graph), std::move(ticks), submission, origin}));
    replays_.back()->origin.host_end = host_time();
}

void CommandTimer::collect(uint64_t completed) {
    std::vector<uint64_t> ticks(kStampsPerChunk);
    while (!chunks_.empty() && chunks_.front()->submission <= completed) {
        std::unique_ptr<Chunk> chunk = std::move(chunks_.front());
        chunks_.pop_front();
        TORCH_INTERNAL_ASSERT(chunk->stamps.read(0, chunk->used, ticks.data()));
        for (auto& [command, first, last] : chunk->commands) {
            command.first = ticks[first];
            command.last = ticks[last];
            sink_(std::move(command));
        }
        chunk->stamps.reset(0, chunk->used);
        chunk->commands.clear();
        chunk->used = 0;
        spare_.push_back(std::move(chunk));
    }
    while (!replays_.empty() && replays_.front()->submission <= completed) {
        const std::unique_ptr<Replay> replay = std::move(replays_.front());
        replays_.pop_front();
        const auto* ticks_of_replay = reinterpret_cast<const uint64_t*>(replay->ticks->host());
        replay->graph->take(ticks_of_replay, replay->origin, sink_);
        replay->graph->give_back(std::move(replay->ticks));
    }
}

void HostCallScope::begin(const char* name) {
    call_.origin = command_origin();
    call_.name = name;
}

void HostCallScope::end() {
    call_.origin.host_end = host_time();
    auto& calls = HostCalls::instance();
    const std::lock_guard lock(calls.mutex);
    if (calls.taken) calls.list.push_back(std::move(call_));
}

}  // namespace anymps::runtime
