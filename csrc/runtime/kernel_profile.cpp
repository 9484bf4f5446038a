#include "runtime/kernel_profile.h"

#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/command_timer.h"

namespace anymps::runtime {
namespace {

// Sums while commands complete, so that a long profile stays small.
class KernelProfile {
  public:
    KernelProfile()
        : timer_(CommandTimer::Isolation::kBarrier, [this](TimedCommand&& command) { add(command); }) {}

    void start() { timer_.activate(); }

    std::vector<KernelTime> stop() {
        timer_.deactivate();
        std::vector<KernelTime> result;
        for (const auto& [key, sum] : sums_) result.push_back(sum);
        return result;
    }

  private:
    void add(const TimedCommand& command) {
        const uint64_t bytes = command.bytes_read + command.bytes_written;
        const Grid& grid = command.grid;
        const uint64_t groups = command.grid.x == 0 && command.kind != Command::Kind::kDispatchIndirect
                                    ? 1
                                    : uint64_t{grid.x} * grid.y * grid.z;
        const std::string shape =
            command.origin.shape.empty() ? std::to_string(groups) + " workgroups" : command.origin.shape;
        const std::string key = std::string(command.name) + '\n' + shape + '\n' + std::to_string(bytes);
        KernelTime& sum = sums_[key];
        if (sum.calls++ == 0) {
            sum.kernel = command.name;
            sum.shape = shape;
            sum.bytes = bytes;
            sum.operations = command.origin.operations;
        }
        sum.nanoseconds += timer_.clock().duration_ns(command.first, command.last);
    }

    std::map<std::string, KernelTime> sums_;  // by kernel, shape and bytes
    CommandTimer timer_;                      // ends before what it fills
};

std::mutex g_mutex;
std::unique_ptr<KernelProfile> g_profile;  // guarded by g_mutex

}  // namespace

bool profiling() {
    return active_timer() != nullptr;
}

bool profile_is_taken() {
    const std::lock_guard lock(g_mutex);
    return g_profile != nullptr;
}

void start_profile() {
    auto profile = std::make_unique<KernelProfile>();
    profile->start();
    const std::lock_guard lock(g_mutex);
    g_profile = std::move(profile);
}

std::vector<KernelTime> stop_profile() {
    std::unique_ptr<KernelProfile> profile;
    {
        const std::lock_guard lock(g_mutex);
        profile = std::move(g_profile);
    }
    TORCH_CHECK(profile, "No profile of the mps device is being taken");
    return profile->stop();
}

void profile_work(double operations, std::string shape) {
    note_work(operations, std::move(shape));
}

}  // namespace anymps::runtime
