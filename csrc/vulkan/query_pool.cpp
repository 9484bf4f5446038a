#include "vulkan/query_pool.h"

#include "vulkan/check.h"

namespace anymps::vulkan {

QueryPool::QueryPool(const Device& device, uint32_t count) : device_(device), count_(count) {
    VkQueryPoolCreateInfo create{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    create.queryType = VK_QUERY_TYPE_TIMESTAMP;
    create.queryCount = count;
    VK_CHECK(device.api().vkCreateQueryPool(device.handle(), &create, nullptr, &handle_));
    device.api().vkResetQueryPool(device.handle(), handle_, 0, count);
}

QueryPool::~QueryPool() {
    device_.api().vkDestroyQueryPool(device_.handle(), handle_, nullptr);
}

void QueryPool::reset(uint32_t first, uint32_t count) {
    device_.api().vkResetQueryPool(device_.handle(), handle_, first, count);
}

bool QueryPool::read(uint32_t first, uint32_t count, uint64_t* ticks) const {
    const VkResult result =
        device_.api().vkGetQueryPoolResults(device_.handle(), handle_, first, count, count * sizeof(*ticks),
                                            ticks, sizeof(*ticks), VK_QUERY_RESULT_64_BIT);
    if (result == VK_NOT_READY) return false;
    VK_CHECK(result);
    return true;
}

}  // namespace anymps::vulkan
