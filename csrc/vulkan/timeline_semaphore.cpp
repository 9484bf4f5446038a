#include "vulkan/timeline_semaphore.h"

#include <chrono>

#include "vulkan/check.h"

namespace anymps::vulkan {
namespace {

constexpr std::chrono::microseconds kSpin{2000};

}  // namespace

TimelineSemaphore::TimelineSemaphore(const Device& device) : device_(device) {
    VkSemaphoreTypeCreateInfo type{VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO};
    type.semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE;
    VkSemaphoreCreateInfo create{VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type};
    VK_CHECK(device.api().vkCreateSemaphore(device.handle(), &create, nullptr, &handle_));
}

TimelineSemaphore::~TimelineSemaphore() {
    device_.api().vkDestroySemaphore(device_.handle(), handle_, nullptr);
}

uint64_t TimelineSemaphore::value() const {
    uint64_t value = 0;
    VK_CHECK(device_.api().vkGetSemaphoreCounterValue(device_.handle(), handle_, &value));
    return value;
}

void TimelineSemaphore::wait(uint64_t value) const {
    // A sleeping thread wakes 50 to 100 us late, so waits for a GPU spin at first; a software driver needs
    // the core.
    if (!device_.info().is_software) {
        const auto end = std::chrono::steady_clock::now() + kSpin;
        do {
            if (this->value() >= value) return;
        } while (std::chrono::steady_clock::now() < end);
    }
    VkSemaphoreWaitInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO};
    info.semaphoreCount = 1;
    info.pSemaphores = &handle_;
    info.pValues = &value;
    VK_CHECK(device_.api().vkWaitSemaphores(device_.handle(), &info, UINT64_MAX));
}

void TimelineSemaphore::signal(uint64_t value) const {
    VkSemaphoreSignalInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO};
    info.semaphore = handle_;
    info.value = value;
    VK_CHECK(device_.api().vkSignalSemaphore(device_.handle(), &info));
}

}  // namespace anymps::vulkan
