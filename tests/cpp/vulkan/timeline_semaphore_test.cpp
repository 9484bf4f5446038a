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
        device.submit(Lane::Stream, submit);
        semaphore.wait(serial);
        EXPECT_EQ(semaphore.value(), serial);
    }
}

TEST(TimelineSemaphore, HoldsTheQueueUntilTheHostRaisesIt) {
    const Device& device = test_device();
    const TimelineSemaphore host(device), queue(device);
    const uint64_t one = 1;
    const VkSemaphore before = host.handle(), after = queue.handle();
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    VkTimelineSemaphoreSubmitInfo timeline{VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
    timeline.waitSemaphoreValueCount = timeline.signalSemaphoreValueCount = 1;
    timeline.pWaitSemaphoreValues = timeline.pSignalSemaphoreValues = &one;
    VkSubmitInfo submit{VK_STRUCTURE_TYPE_SUBMIT_INFO, &timeline};
    submit.waitSemaphoreCount = submit.signalSemaphoreCount = 1;
    submit.pWaitSemaphores = &before;
    submit.pWaitDstStageMask = &stage;
    submit.pSignalSemaphores = &after;
    device.submit(Lane::Stream, submit);
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
