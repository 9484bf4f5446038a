// GPU times of single commands, for whoever asks: a pair of timestamps around each.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/hazards.h"
#include "vulkan/api.h"

namespace anymps::vulkan {
class Device;
class QueryPool;
}  // namespace anymps::vulkan

namespace anymps::runtime {

// All commands of one kernel with the same work.
struct KernelTime {
    std::string kernel;  // with its specialization constants: "add_f32_dense[256,0,...]"
    std::string shape;   // as its launcher told by profile_work, or the number of workgroups
    uint64_t calls = 0;
    double nanoseconds = 0;  // of all calls
    uint64_t bytes = 0;      // of one call: read and written, each tensor once
    double operations = 0;   // of one call; 0 where the launcher does not tell
};

// Takes the times of all commands from here on. Raises RuntimeError where a profile is being taken already.
void start_profile();

// Waits for the device and returns the times since start_profile(), in no order. Raises RuntimeError where no
// profile is being taken.
std::vector<KernelTime> stop_profile();

// True while a profile is taken.
bool profiling();

// What the next command of this thread does, told by its launcher where profiling(): floating-point
// operations and sizes as text, e.g. "4096 x 768 x 3072".
void profile_work(double operations, std::string shape);

// Collects the times of commands. Commands of a profile do not overlap: the encoder puts a barrier before
// each. Used under the encoder's lock while it is the active one, by stop_profile() alone after that.
class KernelProfile {
  public:
    explicit KernelProfile(const vulkan::Device& device);
    ~KernelProfile();

    // Around one command of the command buffer, whose submission will have this serial number.
    void begin(VkCommandBuffer commands, uint64_t submission);
    void end(VkCommandBuffer commands, std::string_view name, uint64_t groups,
             std::span<const Access> accesses);

    // Takes the times of what the device has completed, so that the timestamps can be reused.
    void collect(uint64_t completed);
    // Of everything collected, in no order.
    std::vector<KernelTime> times() const;

  private:
    struct Chunk;

    const vulkan::Device& device_;
    std::deque<std::unique_ptr<Chunk>> chunks_;  // oldest first; the last one is being filled
    std::map<std::string, KernelTime> times_;    // by kernel, shape and bytes
};

// nullptr where no profile is taken.
KernelProfile* active_profile();

}  // namespace anymps::runtime
