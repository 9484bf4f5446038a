// Which memory buffers come from on devices with other heaps than this one's, and where they go when a heap
// is full.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "vulkan/buffer.h"
#include "vulkan/check.h"
#include "vulkan/device.h"

namespace anymps::vulkan {
namespace {

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;
constexpr VkMemoryPropertyFlags kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
constexpr VkMemoryPropertyFlags kMapped =
    VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
constexpr VkMemoryPropertyFlags kCached = kMapped | VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
constexpr VkMemoryPropertyFlags kProtected = VK_MEMORY_PROPERTY_PROTECTED_BIT;
constexpr VkMemoryPropertyFlags kUncached = VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD;

using Types = std::vector<uint32_t>;

struct Memory {
    std::vector<MemoryHeap> heaps;
    std::vector<MemoryType> types;
};

// A card without a large BAR: its own memory, the system's, a window of 256 MiB.
const Memory kCard{{{8 * kGiB, true}, {32 * kGiB, false}, {256 * kMiB, true}},
                   {{1, 0},
                    {0, kLocal | kProtected},
                    {0, kLocal},
                    {1, kMapped},
                    {1, kCached},
                    {2, kLocal | kMapped | kUncached},
                    {2, kLocal | kMapped}}};
// One of which the host sees all.
const Memory kLargeBar{
    {{8 * kGiB, true}, {32 * kGiB, false}},
    {{0, kLocal | kMapped}, {0, kLocal}, {1, kMapped}, {0, kLocal | kCached}, {1, kCached}}};
// A GPU in the processor with a carve-out, for which the system's memory is as good.
const Memory kIntegrated{
    {{512 * kMiB, true}, {16 * kGiB, false}},
    {{0, kLocal}, {1, kMapped}, {0, kLocal | kMapped}, {1, kCached}, {0, kLocal | kCached}}};

// What the driver is asked for, and answers, in place of the real one. Everything comes from the real one's
// first memory type.
struct Driver {
    PFN_vkAllocateMemory allocate;
    PFN_vkGetBufferMemoryRequirements requirements;
    std::map<uint32_t, VkResult> refusals;  // by memory type
    uint32_t allowed = ~0u;                 // memory types of buffers
    Types asked;
} driver;

VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice device, const VkMemoryAllocateInfo* wanted,
                                        const VkAllocationCallbacks* callbacks, VkDeviceMemory* memory) {
    driver.asked.push_back(wanted->memoryTypeIndex);
    if (const auto refusal = driver.refusals.find(wanted->memoryTypeIndex); refusal != driver.refusals.end())
        return refusal->second;
    VkMemoryAllocateInfo real = *wanted;
    real.memoryTypeIndex = 0;
    return driver.allocate(device, &real, callbacks, memory);
}

VKAPI_ATTR void VKAPI_CALL requirements(VkDevice device, VkBuffer buffer, VkMemoryRequirements* found) {
    driver.requirements(device, buffer, found);
    found->memoryTypeBits = driver.allowed;
}

std::unique_ptr<Device> device_with(const Memory& memory, bool integrated, bool unified = false) {
    static const Instance instance;
    const int index = choose_device(instance.physical_devices(), "");
    if (index < 0) throw std::runtime_error("these tests need a Vulkan device");
    PhysicalDevice physical = instance.physical_devices()[index];
    physical.info.heaps = memory.heaps;
    physical.info.memory_types = memory.types;
    physical.info.is_integrated = integrated;
    physical.info.runs_on_cpu = false;
    physical.info.unified_memory = unified;
    physical.info.memory_budget = false;
    auto device = std::make_unique<Device>(instance, physical);
    auto& api = const_cast<VolkDeviceTable&>(device->api());
    driver = {api.vkAllocateMemory, api.vkGetBufferMemoryRequirements};
    api.vkAllocateMemory = allocate;
    api.vkGetBufferMemoryRequirements = requirements;
    return device;
}

// No type gives memory; the error tells whether it is for want of it.
void expect_refused(const Device& device, bool out_of_memory) {
    try {
        const Buffer buffer(device, kMiB, MemoryKind::Device);
        FAIL() << "memory came from somewhere";
    } catch (const Error& error) {
        EXPECT_EQ(error.out_of_memory(), out_of_memory) << error.what();
    }
}

TEST(MemoryTypes, OfACardAreItsOwn) {
    const auto device = device_with(kCard, false);
    EXPECT_EQ(device->memory_types(MemoryKind::Device), (Types{2, 6}));
    EXPECT_EQ(device->memory_types(MemoryKind::Ring), (Types{6, 3}));
    EXPECT_EQ(device->memory_types(MemoryKind::Staging).front(), 4u);
    EXPECT_EQ(device->device_memory(), 8 * kGiB + 256 * kMiB);
    EXPECT_EQ(device->free_memory(), device->device_memory());
    EXPECT_FALSE(device->mapped(MemoryKind::Device, 6));
    EXPECT_TRUE(device->mapped(MemoryKind::Ring, 6));
}

TEST(MemoryTypes, OfALargeBarAreOnesThatTheHostDoesNotMap) {
    const auto device = device_with(kLargeBar, false);
    EXPECT_EQ(device->memory_types(MemoryKind::Device), (Types{1}));
    EXPECT_EQ(device->memory_types(MemoryKind::Ring), (Types{0, 2}));
    EXPECT_EQ(device->memory_types(MemoryKind::Staging).front(), 4u);
}

TEST(MemoryTypes, OfAnIntegratedGpuGoOnInTheSystems) {
    const auto device = device_with(kIntegrated, true);
    EXPECT_EQ(device->memory_types(MemoryKind::Device), (Types{0, 3}));
    EXPECT_EQ(device->device_memory(), 16 * kGiB + 512 * kMiB);
    EXPECT_FALSE(device->mapped(MemoryKind::Device, 0));
    EXPECT_TRUE(device->mapped(MemoryKind::Device, 3));
    EXPECT_FALSE(device->mapped(MemoryKind::Device, 1));  // which the host reads too slowly
    const auto unified = device_with(kIntegrated, true, true);
    EXPECT_EQ(unified->memory_types(MemoryKind::Device), (Types{4, 3}));
    EXPECT_TRUE(unified->mapped(MemoryKind::Device, 4));
}

TEST(MemoryTypes, OfTheHostAreCachedWhereTheyCanBe) {
    const auto device = device_with(kCard, false);
    EXPECT_EQ(device->host_memory_type(~0u), 4u);
    EXPECT_EQ(device->host_memory_type(1u << 3 | 1u << 2), 3u);
    EXPECT_THROW(device->host_memory_type(1u << 2), Error);
}

TEST(MemoryTypes, AFullHeapSpillsToTheNext) {
    const auto device = device_with(kIntegrated, true);
    for (const VkResult full : {VK_ERROR_OUT_OF_DEVICE_MEMORY, VK_ERROR_OUT_OF_HOST_MEMORY}) {
        driver.asked.clear();
        driver.refusals = {{0, full}};
        const Buffer buffer(*device, kMiB, MemoryKind::Device);
        EXPECT_EQ(driver.asked, (Types{0, 3}));
        EXPECT_NE(buffer.host(), nullptr);  // as of the memory it came to
    }
    driver.refusals.clear();
    driver.asked.clear();
    const Buffer buffer(*device, kMiB, MemoryKind::Device);
    EXPECT_EQ(driver.asked, (Types{0}));
    EXPECT_EQ(buffer.host(), nullptr);
}

TEST(MemoryTypes, AHeapThatIsTooSmallIsNotAsked) {
    Memory memory = kIntegrated;
    memory.heaps[0].bytes = kMiB;
    const auto device = device_with(memory, true);
    const Buffer large(*device, kMiB, MemoryKind::Device);  // and its guard tail
    EXPECT_EQ(driver.asked, (Types{3}));
    const Buffer small(*device, kMiB / 2, MemoryKind::Device);
    EXPECT_EQ(driver.asked, (Types{3, 0}));
}

TEST(MemoryTypes, ACardsMemoryThatIsFullIsOut) {
    const auto device = device_with(kCard, false);
    driver.refusals = {{2, VK_ERROR_OUT_OF_DEVICE_MEMORY}, {6, VK_ERROR_OUT_OF_DEVICE_MEMORY}};
    expect_refused(*device, true);
    EXPECT_EQ(driver.asked, (Types{2, 6}));  // and not the system's
}

TEST(MemoryTypes, OtherErrorsAreNotTriedElsewhere) {
    const auto device = device_with(kIntegrated, true);
    driver.refusals = {{0, VK_ERROR_DEVICE_LOST}};
    expect_refused(*device, false);
    EXPECT_EQ(driver.asked, (Types{0}));
}

TEST(MemoryTypes, OnlyThoseThatBuffersCanHaveAreAsked) {
    const auto device = device_with(kIntegrated, true);
    driver.allowed = 1u << 3;
    const Buffer buffer(*device, kMiB, MemoryKind::Device);
    EXPECT_EQ(driver.asked, (Types{3}));
    driver.allowed = 1u << 4;
    expect_refused(*device, false);
    EXPECT_EQ(driver.asked, (Types{3}));
}

}  // namespace
}  // namespace anymps::vulkan
