// How long dispatches may take, so that no kernel driver takes the device for hung: an estimate, and grids in
// parts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/command_encoder.h"
#include "runtime/hazards.h"

namespace anymps::vulkan {
struct DeviceInfo;
}  // namespace anymps::vulkan

namespace anymps::runtime {

struct Launch;

// What a launcher knows of a dispatch beyond its memory.
struct DispatchWork {
    double operations = 0;           // as many of float32 as take its time, where memory may take less
    bool counts_workgroups = false;  // the kernel asks for the number of all workgroups: its grid stays whole
};

// Tells of the next dispatch of this thread.
void note_dispatch(const DispatchWork& work);
DispatchWork take_dispatch();

// Seconds on a slow device of the kind of this one, by what is read and written (DeviceInfo::slow_rates).
double dispatch_seconds(const vulkan::DeviceInfo& info, std::span<const Access> accesses,
                        const DispatchWork& work);
double copy_seconds(const vulkan::DeviceInfo& info, uint64_t bytes);

struct GridPart {
    Grid base, groups;
};

// The grid as grids with bases, in order, which together run the same workgroups: each at most one of so many
// `parts`, where there are as many workgroups. linear_group_id() holds in each of them: only the outermost
// dimensions are cut.
std::vector<GridPart> split_grid(Grid grid, double parts);

// A dispatch of so many seconds as parts that take `limit` at most, or whole where its grid cannot be cut.
std::vector<GridPart> parts_of(const Launch& launch, double seconds, double limit);

}  // namespace anymps::runtime
