#include "vulkan/timeline_semaphore.h"

#include "device_fixture.h"
#include "vulkan/check.h"

namespace anymps::vulkan {
namespace {

TEST(TimelineSemaphore, StartsAtZeroAndFollowsSubmissions) {
    const Device& device = test_device();
    const TimelineSemaphore semaphore(device);
    EXPECT_EQ(semaphore.value(), 0u);
    const VkSemaphore handle = semaphore.handle();
    for (uint64_t serial : {1u, 2u, 7u}) {
        VkTimelineSemaphoreSubmitInfo timeline{VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
        timeline.signalSemaphoreValueCount = 1;
        timeline.pSignalSemaphoreValues = &serial;
        VkSubmitInfo submit{VK_STRUCTURE_TYPE_SUBMIT_INFO, &timeline};
        submit.signalSemaphoreCount = 1;
        submit.pSignalSemaphores = &handle;
        VK_CHECK(device.api().vkQueueSubmit(device.queue(), 1, &submit, VK_NULL_HANDLE));
        semaphore.wait(serial);
        EXPECT_EQ(semaphore.value(), serial);
    }
}

TEST(Check, NamesTheCallTheResultAndThePlace) {
    try {
        VK_CHECK(VK_ERROR_DEVICE_LOST);
        FAIL();
    } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("VK_ERROR_DEVICE_LOST"), std::string::npos);
        EXPECT_NE(text.find("timeline_semaphore_test.cpp:"), std::string::npos);
        EXPECT_FALSE(error.out_of_memory());
    }
}

}  // namespace
}  // namespace anymps::vulkan
