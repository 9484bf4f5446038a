#include "vulkan/queues.h"

#include <gtest/gtest.h>

namespace anymps::vulkan {
namespace {

constexpr VkQueueFlags kAll = VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT | VK_QUEUE_TRANSFER_BIT;
constexpr VkQueueFlags kCompute = VK_QUEUE_COMPUTE_BIT | VK_QUEUE_TRANSFER_BIT;
constexpr VkQueueFlags kVideo = 0x20 | VK_QUEUE_TRANSFER_BIT;

VkQueueFamilyProperties family(VkQueueFlags flags, uint32_t count) {
    VkQueueFamilyProperties properties{};
    properties.queueFlags = flags;
    properties.queueCount = count;
    return properties;
}

void expect(const Queues& queues, QueueIndex side, QueueIndex out, QueueIndex in) {
    EXPECT_EQ(queues[static_cast<size_t>(Lane::Stream)], (QueueIndex{0, 0}));
    EXPECT_EQ(queues[static_cast<size_t>(Lane::Side)], side);
    EXPECT_EQ(queues[static_cast<size_t>(Lane::CopyOut)], out);
    EXPECT_EQ(queues[static_cast<size_t>(Lane::CopyIn)], in);
}

TEST(Queues, TakeFamiliesOfTheirOwn) {
    const std::vector families = {family(kAll, 16), family(VK_QUEUE_TRANSFER_BIT, 2), family(kCompute, 8),
                                  family(kVideo, 1)};
    expect(choose_queues(families, 0), {2, 0}, {1, 0}, {1, 1});
    expect(choose_queues(families, 0, "compute"), {2, 0}, {2, 0}, {2, 0});
    expect(choose_queues(families, 0, "family"), {0, 1}, {0, 1}, {0, 1});
    expect(choose_queues(families, 0, "one"), {0, 0}, {0, 0}, {0, 0});
}

TEST(Queues, ShareWhatThereIs) {
    expect(choose_queues({family(kAll, 1)}, 0), {0, 0}, {0, 0}, {0, 0});
    expect(choose_queues({family(kAll, 4)}, 0), {0, 1}, {0, 1}, {0, 1});
    expect(choose_queues({family(kAll, 1), family(kCompute, 1)}, 0), {1, 0}, {1, 0}, {1, 0});
    expect(choose_queues({family(kAll, 1), family(VK_QUEUE_TRANSFER_BIT, 1)}, 0), {0, 0}, {1, 0}, {1, 0});
    expect(choose_queues({family(kAll, 2), family(kVideo, 1)}, 0), {0, 1}, {0, 1}, {0, 1});
}

}  // namespace
}  // namespace anymps::vulkan
