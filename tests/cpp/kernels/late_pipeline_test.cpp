// What is asked for while a pipeline is not built yet happens in its order all the same.
#include <numeric>
#include <thread>

#include "kernel_runner.h"
#include "runtime/device.h"
#include "vulkan/pipeline.h"

namespace anymps::kernels {
namespace {

constexpr uint32_t kThreads = 64, kCount = 9;  // of shaders/subgroup_test.slang

std::unique_ptr<vulkan::Pipeline> unbuilt() {
    const uint32_t specialization[] = {kThreads, runtime::device_info().subgroup_size};
    return std::make_unique<vulkan::Pipeline>(runtime::device(), "late",
                                              kernel_spirv(kernel_id("test_subgroup")), specialization);
}

void exchange(const vulkan::Pipeline& pipeline, const DeviceArray& output, const DeviceArray& input) {
    const struct { uint64_t output, input; } args{output.address(), input.address()};
    const runtime::Access accesses[] = {input.access(false), output.access(true)};
    runtime::encoder().dispatch(pipeline, &args, sizeof(args), {}, accesses);
}

// The word that each thread's neighbour has.
std::vector<uint32_t> neighbours(const std::vector<uint32_t>& results) {
    std::vector<uint32_t> words;
    for (size_t i = 0; i < results.size(); i += kCount) words.push_back(results[i]);
    return words;
}

class LatePipeline : public ::testing::Test {
  protected:
    void SetUp() override {
        std::iota(numbers_.begin(), numbers_.end(), 1000u);
        for (uint32_t i = 0; i < kThreads; ++i) swapped_.push_back(numbers_[i ^ 1]);
        runtime::encoder().synchronize();
    }
    static constexpr uint64_t kBytes = kThreads * sizeof(uint32_t);
    std::vector<uint32_t> numbers_ = std::vector<uint32_t>(kThreads), swapped_;
    std::vector<uint32_t> sevens_ = std::vector<uint32_t>(kThreads, 0x07070707);
};

TEST_F(LatePipeline, FillsCopiesAndUploadsBehindItWait) {
    const auto late = unbuilt();
    auto& stream = runtime::encoder();
    const DeviceArray input(numbers_), results(kBytes * kCount), copied(kBytes * kCount);
    exchange(*late, results, input);
    EXPECT_FALSE(late->built());
    // After the kernel has read it; what the kernel wrote; after the copy has read it.
    stream.fill(input.address(), 7, kBytes);
    stream.copy(copied.address(), results.address(), kBytes * kCount);
    stream.upload(results.address(), sevens_.data(), kBytes);
    EXPECT_FALSE(late->built());
    EXPECT_EQ(neighbours(copied.download<uint32_t>()), swapped_);
    EXPECT_TRUE(late->built());
    EXPECT_EQ(input.download<uint32_t>(), sevens_);
    const auto after = results.download<uint32_t>();
    EXPECT_EQ(std::vector<uint32_t>(after.begin(), after.begin() + kThreads), sevens_);
}

TEST_F(LatePipeline, AnUploadMayBeChangedAtOnce) {
    const auto late = unbuilt();
    const DeviceArray input(numbers_), results(kBytes * kCount), other(kBytes);
    exchange(*late, results, input);
    auto mine = sevens_;
    runtime::encoder().upload(other.address(), mine.data(), kBytes);
    mine.assign(kThreads, 0);
    EXPECT_EQ(other.download<uint32_t>(), sevens_);
}

TEST_F(LatePipeline, LargeUploadsWaitForIt) {
    const auto late = unbuilt();
    const DeviceArray input(numbers_), results(kBytes * kCount);
    const std::vector<uint32_t> many(1 << 20, 5);
    const DeviceArray other(many.size() * sizeof(uint32_t));
    exchange(*late, results, input);
    runtime::encoder().upload(other.address(), many.data(), many.size() * sizeof(uint32_t));
    EXPECT_EQ(neighbours(results.download<uint32_t>()), swapped_);
    EXPECT_EQ(other.download<uint32_t>(), many);
}

TEST_F(LatePipeline, LaunchesBehindItAreRecordedWhenItIsBuilt) {
    const auto late = unbuilt(), built = unbuilt();
    built->build();
    const DeviceArray input(numbers_), results(kBytes * kCount), again(kBytes * kCount);
    exchange(*late, results, input);
    exchange(*built, again, results);
    std::thread([&] { late->build(); }).join();
    exchange(*built, again, input);
    EXPECT_EQ(neighbours(again.download<uint32_t>()), swapped_);
    EXPECT_EQ(neighbours(results.download<uint32_t>()), swapped_);
}

TEST_F(LatePipeline, ASerialIsOfEverythingAskedForBefore) {
    const auto late = unbuilt();
    const DeviceArray input(numbers_), results(kBytes * kCount);
    exchange(*late, results, input);
    const uint64_t serial = runtime::encoder().submit();
    EXPECT_TRUE(late->built());
    runtime::encoder().wait(serial);
    EXPECT_EQ(neighbours(results.download<uint32_t>()), swapped_);
}

}  // namespace
}  // namespace anymps::kernels
