#include "runtime/dispatch_time.h"

#include <algorithm>
#include <utility>

#include "runtime/launch.h"
#include "vulkan/instance.h"

namespace anymps::runtime {
namespace {

thread_local DispatchWork next_work;

// Appends the parts of one dimension.
void cut(std::vector<GridPart>& result, GridPart part, uint32_t Grid::*dimension, double parts) {
    const uint64_t count = part.groups.*dimension;
    const uint64_t each = std::max<uint64_t>(static_cast<uint64_t>(static_cast<double>(count) / parts), 1);
    for (uint64_t begin = 0; begin < count; begin += each) {
        part.base.*dimension = static_cast<uint32_t>(begin);
        part.groups.*dimension = static_cast<uint32_t>(std::min(each, count - begin));
        result.push_back(part);
    }
}

}  // namespace

void note_dispatch(const DispatchWork& work) {
    next_work = work;
}

DispatchWork take_dispatch() {
    return std::exchange(next_work, {});
}

double dispatch_seconds(const vulkan::DeviceInfo& info, std::span<const Access> accesses,
                        const DispatchWork& work) {
    double bytes = 0;
    for (const Access& access : accesses) bytes += static_cast<double>(access.bytes);
    const vulkan::SlowRates& rate = info.slow_rates();
    return std::max(bytes / rate.bytes, work.operations / rate.operations);
}

double copy_seconds(const vulkan::DeviceInfo& info, uint64_t bytes) {
    return 2.0 * static_cast<double>(bytes) / info.slow_rates().bytes;
}

std::vector<GridPart> split_grid(Grid grid, double parts) {
    parts = std::max(parts, 1.0);
    std::vector<GridPart> result;
    // Workgroups are numbered by x + y * (the count of x): x is cut where y is 1 alone.
    const auto inner = grid.y > 1 ? &Grid::y : &Grid::x;
    const GridPart whole{{0, 0, 0}, grid};
    if (grid.z <= 1) {
        cut(result, whole, inner, parts);
    } else if (grid.z >= parts) {
        cut(result, whole, &Grid::z, parts);
    } else {
        for (uint32_t z = 0; z < grid.z; ++z)
            cut(result, {{0, 0, z}, {grid.x, grid.y, 1}}, inner, parts / grid.z);
    }
    return result;
}

std::vector<GridPart> parts_of(const Launch& launch, double seconds, double limit) {
    const bool whole = launch.grid_address != 0 || launch.work.counts_workgroups;
    return split_grid(launch.grid, whole ? 1.0 : seconds / limit);
}

}  // namespace anymps::runtime
