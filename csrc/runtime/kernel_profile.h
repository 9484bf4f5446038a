// GPU times by kernel: what torch_anymps.profile() shows, and what launchers tell of their dispatches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// Takes the times of all commands from here on, which do not overlap meanwhile. Raises RuntimeError where
// times are being taken already, by a profile or by torch.profiler.
void start_profile();

// Waits for the device and returns the times since start_profile(), in no order. Raises RuntimeError where no
// profile is being taken.
std::vector<KernelTime> stop_profile();

// True while times are taken, by a profile or by torch.profiler.
bool profiling();

// True while start_profile() is in force.
bool profile_is_taken();

// What the next dispatch of this thread does, told by its launcher where profiling(): floating-point
// operations and sizes as text, e.g. "4096 x 768 x 3072".
void profile_work(double operations, std::string shape);

}  // namespace anymps::runtime
