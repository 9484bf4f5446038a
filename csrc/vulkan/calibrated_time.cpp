#include "vulkan/calibrated_time.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "vulkan/device.h"

namespace anymps::vulkan {
namespace {

// Other threads may take the processor between two readings: of several tries the nearest counts.
constexpr int kTries = 8;

// The KHR form has the same functions under its own suffix; the headers of stable distributions predate it.
constexpr const char* kExtensions[] = {"VK_KHR_calibrated_timestamps", "VK_EXT_calibrated_timestamps"};

bool has_monotonic(VkInstance instance, VkPhysicalDevice device, bool khr) {
    const auto get_domains = reinterpret_cast<PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT>(
        vkGetInstanceProcAddr(instance, khr ? "vkGetPhysicalDeviceCalibrateableTimeDomainsKHR"
                                            : "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT"));
    uint32_t count = 0;
    if (!get_domains || get_domains(device, &count, nullptr) != VK_SUCCESS) return false;
    std::vector<VkTimeDomainEXT> domains(count);
    if (get_domains(device, &count, domains.data()) != VK_SUCCESS) return false;
    const auto has = [&](VkTimeDomainEXT domain) {
        return std::find(domains.begin(), domains.end(), domain) != domains.end();
    };
    return has(VK_TIME_DOMAIN_DEVICE_EXT) && has(VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT);
}

}  // namespace

const char* calibrated_timestamps_extension(VkInstance instance, VkPhysicalDevice device) {
    const char* caps = std::getenv("ANYMPS_CAPS");
    if (caps && std::string_view(caps) == "minimal") return nullptr;
    uint32_t count = 0;
    if (vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr) != VK_SUCCESS) return nullptr;
    std::vector<VkExtensionProperties> present(count);
    if (vkEnumerateDeviceExtensionProperties(device, nullptr, &count, present.data()) != VK_SUCCESS)
        return nullptr;
    for (const char* name : kExtensions) {
        const bool found = std::any_of(present.begin(), present.end(), [&](const auto& e) {
            return std::strcmp(e.extensionName, name) == 0;
        });
        if (found && has_monotonic(instance, device, name == kExtensions[0])) return name;
    }
    return nullptr;
}

std::optional<CalibratedTime> calibrated_time(const Device& device) {
    auto get = reinterpret_cast<PFN_vkGetCalibratedTimestampsEXT>(
        vkGetDeviceProcAddr(device.handle(), "vkGetCalibratedTimestampsKHR"));
    if (!get) get = device.api().vkGetCalibratedTimestampsEXT;
    if (!get) return std::nullopt;
    VkCalibratedTimestampInfoEXT infos[2]{};
    infos[0].sType = infos[1].sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT;
    infos[0].timeDomain = VK_TIME_DOMAIN_DEVICE_EXT;
    infos[1].timeDomain = VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT;
    CalibratedTime best{};
    uint64_t smallest = std::numeric_limits<uint64_t>::max();
    for (int i = 0; i < kTries; ++i) {
        uint64_t times[2], deviation;
        if (get(device.handle(), 2, infos, times, &deviation) != VK_SUCCESS) return std::nullopt;
        if (deviation >= smallest) continue;
        smallest = deviation;
        best = {times[0], static_cast<int64_t>(times[1])};
    }
    return best;
}

}  // namespace anymps::vulkan
