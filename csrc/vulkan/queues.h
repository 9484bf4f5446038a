// The queues of a device: the stream's, and those for work beside it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "vulkan/api.h"

namespace anymps::vulkan {

// What a queue is for. Stream computes. Beside it, for work that goes on while the stream computes or waits:
// Side for kernels, CopyOut and CopyIn for copies to memory of the host and from it.
enum class Lane : uint8_t { Stream, Side, CopyOut, CopyIn };
constexpr size_t kLanes = 4;

struct QueueIndex {
    uint32_t family = 0, index = 0;
    bool operator==(const QueueIndex&) const = default;
};

using Queues = std::array<QueueIndex, kLanes>;  // by lane

std::vector<VkQueueFamilyProperties> queue_families(VkPhysicalDevice device);

// Side takes a family for compute alone, whose queues run at the same time as those with graphics where two
// queues of one family take turns; else a second queue of the stream's family; else the stream's own. The
// copies take a family for copies alone, whose engines leave the compute units to kernels; else Side's queue.
// limit, for tests and measurements: "one" keeps to the stream's queue, "family" to its family, and "compute"
// to families that compute.
Queues choose_queues(const std::vector<VkQueueFamilyProperties>& families, uint32_t stream_family,
                     std::string_view limit = {});

}  // namespace anymps::vulkan
