#include "vulkan/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "device_fixture.h"
#include "vulkan/check.h"

namespace anymps::vulkan {
namespace {

TEST(Buffer, HasAnAddressAndItsSize) {
    const Buffer buffer(test_device(), 1000, MemoryKind::Device);
    EXPECT_NE(buffer.address(), 0u);
    EXPECT_EQ(buffer.bytes(), 1000u);
    EXPECT_EQ(buffer.host() != nullptr, test_device().info().unified_memory);
}

TEST(Buffer, MappedKindsKeepWhatTheHostWrites) {
    for (const MemoryKind kind : {MemoryKind::Ring, MemoryKind::Staging}) {
        const Buffer buffer(test_device(), 4096, kind);
        ASSERT_NE(buffer.host(), nullptr);
        std::memset(buffer.host(), 0x5a, 4096);
        EXPECT_EQ(buffer.host()[4095], std::byte{0x5a});
    }
}

TEST(Buffer, LiesAroundMemoryOfTheHost) {
    if (!test_device().info().external_memory_host)
        GTEST_SKIP() << test_device().info().name << " takes no memory of the host";
    constexpr size_t kBytes = 1 << 20;
    const int file = memfd_create("buffer_test", 0);
    ASSERT_EQ(ftruncate(file, kBytes), 0);
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ASSERT_NE(memory, MAP_FAILED);
    {
        const Buffer buffer(test_device(), static_cast<std::byte*>(memory), kBytes);
        EXPECT_NE(buffer.address(), 0u);
        EXPECT_EQ(buffer.bytes(), kBytes - kGuardTailBytes);
        EXPECT_EQ(buffer.host(), memory);
        std::memset(buffer.host(), 0x5a, buffer.bytes());
    }
    EXPECT_EQ(static_cast<std::byte*>(memory)[kBytes / 2], std::byte{0x5a});  // it outlives the buffer
    munmap(memory, kBytes);
    close(file);
}

TEST(Buffer, AddressesDoNotOverlap) {
    const Buffer a(test_device(), 4096, MemoryKind::Device);
    const Buffer b(test_device(), 4096, MemoryKind::Device);
    EXPECT_TRUE(a.address() + a.bytes() <= b.address() || b.address() + b.bytes() <= a.address());
}

TEST(Buffer, AnImpossibleSizeIsOutOfMemory) {
    try {
        const Buffer buffer(test_device(), 1ull << 46, MemoryKind::Device);
        FAIL() << "64 TiB were allocated";
    } catch (const Error& error) {
        EXPECT_TRUE(error.out_of_memory()) << error.what();
        EXPECT_NE(std::string(error.what()).find("vk"), std::string::npos);
    }
}

}  // namespace
}  // namespace anymps::vulkan
