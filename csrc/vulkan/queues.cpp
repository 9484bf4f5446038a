#include "vulkan/queues.h"

#include <algorithm>
#include <optional>

namespace anymps::vulkan {
namespace {

// Of decoders and encoders: headers of 2022 do not name them.
constexpr VkQueueFlags kVideoQueues = 0x20 | 0x40;
constexpr VkQueueFlags kKinds =
    VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT | VK_QUEUE_TRANSFER_BIT | kVideoQueues;

// The first family that is for nothing else.
std::optional<uint32_t> family_for(const std::vector<VkQueueFamilyProperties>& families, VkQueueFlags kind,
                                   VkQueueFlags others) {
    for (uint32_t i = 0; i < families.size(); ++i) {
        if ((families[i].queueFlags & kind) && !(families[i].queueFlags & others)) return i;
    }
    return std::nullopt;
}

}  // namespace

std::vector<VkQueueFamilyProperties> queue_families(VkPhysicalDevice device) {
    uint32_t count = 0;
    vkGetPhysicalDeviceQueueFamilyProperties(device, &count, nullptr);
    std::vector<VkQueueFamilyProperties> families(count);
    vkGetPhysicalDeviceQueueFamilyProperties(device, &count, families.data());
    return families;
}

Queues choose_queues(const std::vector<VkQueueFamilyProperties>& families, uint32_t stream_family,
                     std::string_view limit) {
    Queues queues;
    queues.fill({stream_family, 0});
    if (limit == "one") return queues;
    const auto set = [&](Lane lane, uint32_t family, uint32_t index) {
        queues[static_cast<size_t>(lane)] = {family, std::min(index, families[family].queueCount - 1)};
    };
    const auto compute = family_for(families, VK_QUEUE_COMPUTE_BIT, VK_QUEUE_GRAPHICS_BIT | kVideoQueues);
    const bool apart = compute && *compute != stream_family && limit != "family";
    for (const Lane lane : {Lane::Side, Lane::CopyOut, Lane::CopyIn})
        set(lane, apart ? *compute : stream_family, apart ? 0 : 1);
    const auto copies = family_for(families, VK_QUEUE_TRANSFER_BIT, kKinds & ~VK_QUEUE_TRANSFER_BIT);
    if (copies && limit.empty()) {
        set(Lane::CopyOut, *copies, 0);
        set(Lane::CopyIn, *copies, 1);
    }
    return queues;
}

}  // namespace anymps::vulkan
