#include "kernels/kernel_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "runtime/device.h"
#include "vulkan/device_profile.h"
#include "vulkan/instance.h"
#include "vulkan/spirv_loops.h"
#include "vulkan/spirv_specialize.h"

namespace anymps::kernels {
namespace {

constexpr uint32_t kSpirvMagic = 0x07230203;

TEST(KernelLibrary, EveryKernelIsFoundByItsName) {
    const auto names = kernel_names();
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
    for (KernelId id = 0; id < names.size(); ++id) {
        const KernelId found = kernel_id(names[id]);
        // Where the device can, the variant with the device's own atomics stands in for a kernel, and where
        // its profile says so, the one of few registers.
        const bool lean = runtime::device_info().profile->lean() && names[found] == names[id] + "_lean";
        EXPECT_TRUE(found == id || names[found] == names[id] + "_native" || lean) << names[id];
        ASSERT_GT(kernel_spirv(id).size(), 5u);
        EXPECT_EQ(kernel_spirv(id)[0], kSpirvMagic) << names[id];
    }
}

TEST(KernelLibrary, AKernelThatComesLeanComesOtherwise) {
    const auto names = kernel_names();
    size_t lean = 0;
    for (const std::string& name : names) {
        if (!name.ends_with("_lean")) continue;
        ++lean;
        EXPECT_EQ(std::ranges::count(names, name.substr(0, name.size() - 5)), 1) << name;
    }
    EXPECT_GT(lean, 0u);
}

// What a GPU's driver gets of the kernels with loops over matrices: the rest of the constants can still
// follow, and it is little code. An unrolled epilogue with all that may be in it had 568,000 words, of which
// NVIDIA's compiler made a kernel in 7 s.
TEST(KernelLibrary, LoopsOverMatricesAloneKeepTheirConstants) {
    constexpr size_t kMaxWords = 170000;
    const std::vector<std::pair<uint32_t, uint32_t>> defaults;
    size_t loops = 0;
    for (const std::string& name : kernel_names()) {
        if (!name.ends_with("_bf16")) continue;
        const auto spirv = kernel_spirv(kernel_id(name));
        const auto kept = vulkan::constants_of_matrix_loops(spirv);
        if (kept.empty()) continue;
        ++loops;
        const auto part = vulkan::specialize(spirv, defaults, false, kept);
        EXPECT_TRUE(std::ranges::includes(kept, vulkan::constants_of_matrix_loops(part))) << name;
        EXPECT_EQ(vulkan::specialize(part, defaults, false).size(),
                  vulkan::specialize(spirv, defaults, false).size())
            << name;
        EXPECT_LT(part.size(), kMaxWords) << name;
    }
    EXPECT_GT(loops, 20u);
}

TEST(KernelLibrary, AnUnknownNameIsAnErrorThatSaysIt) {
    try {
        kernel_id("no_such_kernel");
        FAIL() << "an id for a kernel that does not exist";
    } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()).find("no_such_kernel"), std::string::npos) << error.what();
    }
}

TEST(KernelLibrary, OnePipelineForEachSpecialization) {
    const KernelId id = kernel_id("test_divide");
    const uint32_t a[] = {64, 0}, same_as_a[] = {64, 0}, b[] = {128, 0}, shorter[] = {64};
    EXPECT_EQ(&pipeline(id, a), &pipeline(id, same_as_a));
    EXPECT_NE(&pipeline(id, a), &pipeline(id, b));
    EXPECT_NE(&pipeline(id, a), &pipeline(id, shorter));
    EXPECT_EQ(pipeline(id, a).name(), "test_divide[64,0]");
}

// Threads that ask for many specializations in different orders get the same pipelines.
TEST(KernelLibrary, ThreadsShareThePipelines) {
    const KernelId id = kernel_id("test_divide");
    constexpr uint32_t kThreads = 4, kVariants = 40;
    std::vector<std::vector<const vulkan::Pipeline*>> seen(kThreads,
                                                           std::vector<const vulkan::Pipeline*>(kVariants));
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            for (uint32_t i = 0; i < kVariants; ++i) {
                const uint32_t variant = (i * 7 + t * 11) % kVariants;
                const uint32_t specialization[] = {8 * (variant % 8 + 1), 0, variant};
                seen[t][variant] = &pipeline(id, specialization);
            }
        });
    }
    for (auto& thread : threads) thread.join();
    for (uint32_t t = 1; t < kThreads; ++t) EXPECT_EQ(seen[t], seen[0]);
    EXPECT_EQ(std::set(seen[0].begin(), seen[0].end()).size(), kVariants);
}

}  // namespace
}  // namespace anymps::kernels
