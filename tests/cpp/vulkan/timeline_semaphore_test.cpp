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
        const SemaphoreValue done[] = {{handle, serial}};
        device.submit(Lane::Stream, {}, {}, done);
        semaphore.wait(serial);
        EXPECT_EQ(semaphore.value(), serial);
    }
}

TEST(TimelineSemaphore, HoldsTheQueueUntilTheHostRaisesIt) {
    const Device& device = test_device();
    const TimelineSemaphore host(device), queue(device);
    const SemaphoreValue before[] = {{host.handle(), 1}}, after[] = {{queue.handle(), 1}};
    device.submit(Lane::Stream, {}, before, after);
    EXPECT_EQ(queue.value(), 0u);
    host.signal(1);
    queue.wait(1);
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
