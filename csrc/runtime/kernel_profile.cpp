#include "runtime/kernel_profile.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <optional>
#include <utility>

#include "runtime/command_encoder.h"
#include "runtime/device.h"
#include "vulkan/device.h"
#include "vulkan/query_pool.h"

namespace anymps::runtime {
namespace {

constexpr uint32_t kCommandsPerChunk = 1024;

struct Work {
    double operations;
    std::string shape;
};
thread_local std::optional<Work> next_work;

std::atomic<KernelProfile*> g_active{nullptr};

}  // namespace

KernelProfile* active_profile() {
    return g_active.load(std::memory_order_acquire);
}

bool profiling() {
    return active_profile() != nullptr;
}

void start_profile() {
    auto profile = std::make_unique<KernelProfile>(device());
    encoder().submit();  // what still waits for its pipeline is no part of the profile
    KernelProfile* none = nullptr;
    TORCH_CHECK(g_active.compare_exchange_strong(none, profile.get()),
                "A profile of the mps device is being taken already; profiles do not nest");
    profile.release();
}

std::vector<KernelTime> stop_profile() {
    const std::unique_ptr<KernelProfile> profile(g_active.exchange(nullptr));
    TORCH_CHECK(profile, "No profile of the mps device is being taken");
    // Whoever still records a command into the profile holds the encoder's lock, which submit() waits for.
    const uint64_t submission = encoder().submit();
    encoder().wait(submission);
    profile->collect(submission);
    return profile->times();
}

void profile_work(double operations, std::string shape) {
    next_work = Work{operations, std::move(shape)};
}

// Timestamps of some commands in a row, two each, and whose they are.
struct KernelProfile::Chunk {
    explicit Chunk(const vulkan::Device& device) : stamps(device, 2 * kCommandsPerChunk) {}
    vulkan::QueryPool stamps;
    std::vector<KernelTime*> commands;
    uint64_t submission = 0;  // of the last command's submission
};

KernelProfile::KernelProfile(const vulkan::Device& device) : device_(device) {
    TORCH_CHECK(device.info().timestamp_period_ns > 0, "The Vulkan driver of '", device.info().name,
                "' has no timestamps, which a profile needs");
    next_work.reset();
}

KernelProfile::~KernelProfile() = default;

void KernelProfile::begin(VkCommandBuffer commands, uint64_t submission) {
    if (chunks_.empty() || chunks_.back()->commands.size() == kCommandsPerChunk) {
        chunks_.push_back(std::make_unique<Chunk>(device_));
    }
    Chunk& chunk = *chunks_.back();
    chunk.submission = submission;
    const auto slot = static_cast<uint32_t>(2 * chunk.commands.size());
    device_.api().vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, chunk.stamps.handle(),
                                      slot);
}

void KernelProfile::end(VkCommandBuffer commands, std::string_view name, uint64_t groups,
                        std::span<const Access> accesses) {
    const std::optional<Work> work = std::exchange(next_work, std::nullopt);
    uint64_t bytes = 0;
    for (const Access& access : accesses) bytes += access.bytes;
    const std::string shape = work ? work->shape : std::to_string(groups) + " workgroups";
    KernelTime& time = times_[std::string(name) + '\n' + shape + '\n' + std::to_string(bytes)];
    if (time.calls++ == 0) {
        time.kernel = name;
        time.shape = shape;
        time.bytes = bytes;
        time.operations = work ? work->operations : 0;
    }
    Chunk& chunk = *chunks_.back();
    const auto slot = static_cast<uint32_t>(2 * chunk.commands.size()) + 1;
    device_.api().vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, chunk.stamps.handle(),
                                      slot);
    chunk.commands.push_back(&time);
}

void KernelProfile::collect(uint64_t completed) {
    // The counter wraps at its valid bits; shifting them to the top makes the difference right.
    const uint32_t unused_bits = 64 - device_.info().timestamp_valid_bits;
    while (!chunks_.empty() && chunks_.front()->submission <= completed) {
        const Chunk& chunk = *chunks_.front();
        for (uint32_t i = 0; i < chunk.commands.size(); ++i) {
            uint64_t first = 0, last = 0;
            TORCH_INTERNAL_ASSERT(chunk.stamps.read(2 * i, &first) && chunk.stamps.read(2 * i + 1, &last));
            const uint64_t ticks = ((last - first) << unused_bits) >> unused_bits;
            chunk.commands[i]->nanoseconds += static_cast<double>(ticks) * device_.info().timestamp_period_ns;
        }
        chunks_.pop_front();
    }
}

std::vector<KernelTime> KernelProfile::times() const {
    std::vector<KernelTime> result;
    for (const auto& [key, time] : times_) result.push_back(time);
    return result;
}

}  // namespace anymps::runtime
