// shaders/lib/geometry.slang: division by multiplication, grids over 65,535 groups, error words.
#include <bit>
#include <random>

#include "kernel_runner.h"

namespace anymps::kernels {
namespace {

constexpr uint32_t kDivideWorkgroup = 64;

struct DivideArgs {
    uint64_t output, input, error;
    uint32_t divisor, magic, shift;
    uint32_t count, groups_x;
};

// The formula of the shader's comment.
DivideArgs divide_args(uint32_t divisor) {
    const uint32_t shift = 32 - std::countl_zero(divisor - 1);
    const uint64_t magic = ((1ull << 32) * ((1ull << shift) - divisor)) / divisor + 1;
    return {0, 0, 0, divisor, static_cast<uint32_t>(magic), shift, 0, 0};
}

uint32_t divide(uint32_t divisor, const std::vector<uint32_t>& in, std::vector<uint32_t>& out) {
    const DeviceArray input(in), output(in.size() * 8), error(std::vector<uint32_t>{0});
    const auto grid = runtime::Grid::linear((in.size() + kDivideWorkgroup - 1) / kDivideWorkgroup);
    DivideArgs args = divide_args(divisor);
    args.output = output.address();
    args.input = input.address();
    args.error = error.address();
    args.count = static_cast<uint32_t>(in.size());
    args.groups_x = grid.x;
    run("test_divide", {kDivideWorkgroup, 0}, args, grid,
        {input.access(false), output.access(true), error.access(true)});
    out = output.download<uint32_t>();
    return error.download<uint32_t>()[0];
}

TEST(Geometry, FastDividerIsExactForEvery32BitNumber) {
    std::mt19937 random(1);
    std::vector<uint32_t> dividends{0, 1, 2, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
    while (dividends.size() < 4096) dividends.push_back(random() >> (random() % 32));
    std::vector<uint32_t> divisors{1,     2,     3,     5,          7,          64,         641,
                                   65535, 65536, 65537, 0x7fffffff, 0x80000000, 0x80000001, 0xffffffff};
    while (divisors.size() < 64) divisors.push_back((random() >> (random() % 32)) | 1);
    for (const uint32_t divisor : divisors) {
        std::vector<uint32_t> in = dividends, out;
        for (uint32_t k = 1; k < 64; ++k)
            in.insert(in.end(), {k * divisor - 1, k * divisor, k * divisor + 1});
        divide(divisor, in, out);
        for (size_t i = 0; i < in.size(); ++i) {
            ASSERT_EQ(out[2 * i], in[i] / divisor) << in[i] << " / " << divisor;
            ASSERT_EQ(out[2 * i + 1], in[i] % divisor) << in[i] << " % " << divisor;
        }
    }
}

TEST(Geometry, GridsOver65535GroupsReachEveryElement) {
    std::vector<uint32_t> in((65535 + 100) * kDivideWorkgroup + 1), out;
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32_t>(i + 1);
    EXPECT_EQ(divide(10, in, out), 0u);
    size_t wrong = 0;
    for (size_t i = 0; i < in.size(); ++i) wrong += out[2 * i] != in[i] / 10 || out[2 * i + 1] != in[i] % 10;
    EXPECT_EQ(wrong, 0u);
}

TEST(Geometry, AnErrorWordHoldsTheReportedCode) {
    std::vector<uint32_t> in(1000, 5), out;
    EXPECT_EQ(divide(3, in, out), 0u);
    in[700] = in[3] = 0;
    EXPECT_EQ(divide(3, in, out), 7u);
}

}  // namespace
}  // namespace anymps::kernels
