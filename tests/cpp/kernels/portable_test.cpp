// shaders/lib/portable.slang and philox.slang: errors against double, known answers of the cipher.
#include <bit>
#include <cmath>
#include <functional>
#include <numbers>
#include <random>

#include "kernel_runner.h"

namespace anymps::kernels {
namespace {

constexpr uint32_t kPortableWorkgroup = 64;

struct PortableArgs {
    uint64_t output, input;
    uint32_t count;
};

std::vector<float> evaluate(uint32_t function, const std::vector<uint32_t>& in) {
    const DeviceArray input(in), output(in.size() * sizeof(float));
    const auto count = static_cast<uint32_t>(in.size());
    run("test_portable", {kPortableWorkgroup, 0, function},
        PortableArgs{output.address(), input.address(), count},
        runtime::Grid::linear((count + kPortableWorkgroup - 1) / kPortableWorkgroup),
        {input.access(false), output.access(true)});
    return output.download<float>();
}

// The largest error in units of the last place of the exact result, or of `floor` where that is smaller.
double worst_ulp(uint32_t function, const std::vector<uint32_t>& in,
                 const std::function<double(uint32_t)>& exact, double floor = 1e-30) {
    const std::vector<float> out = evaluate(function, in);
    double worst = 0;
    for (size_t i = 0; i < in.size(); ++i) {
        const double expected = exact(in[i]);
        int exponent;
        std::frexp(std::max(std::abs(expected), floor), &exponent);
        worst = std::max(worst, std::abs(out[i] - expected) / std::ldexp(1.0, exponent - 24));
    }
    return worst;
}

std::vector<uint32_t> floats_between(float low, float high, size_t count = 100000) {
    std::mt19937 random(7);
    std::uniform_int_distribution<uint32_t> bits(std::bit_cast<uint32_t>(low), std::bit_cast<uint32_t>(high));
    std::vector<uint32_t> out(count);
    for (auto& v : out) v = bits(random);
    out[0] = std::bit_cast<uint32_t>(low);
    out[1] = std::bit_cast<uint32_t>(high);
    return out;
}

double as_double(uint32_t bits) {
    return std::bit_cast<float>(bits);
}

TEST(Portable, LogIsAccurate) {
    const auto all = floats_between(1.2e-38f, 3e38f);
    EXPECT_LT(worst_ulp(0, all, [](uint32_t b) { return std::log(as_double(b)); }), 2);
    const auto near_one = floats_between(0.9f, 1.1f);
    EXPECT_LT(worst_ulp(0, near_one, [](uint32_t b) { return std::log(as_double(b)); }), 2);
}

TEST(Portable, LogOfAFractionIsThatOfItsUpperBits) {
    std::mt19937 random(3);
    std::vector<uint32_t> in(100000);
    for (auto& v : in) v = random() >> (random() % 32) | 1;
    const auto exact = [](uint32_t n) {
        const int drop = std::max(0, static_cast<int>(std::bit_width(n)) - 24);
        return std::log(std::ldexp(static_cast<double>(n >> drop << drop), -32));
    };
    EXPECT_LT(worst_ulp(4, in, exact), 2);
}

TEST(Portable, ExpIsAccurateAndSaturates) {
    for (const auto& [low, high] : {std::pair{1e-6f, 88.7f}, std::pair{-1e-6f, -87.0f}}) {
        EXPECT_LT(worst_ulp(1, floats_between(low, high), [](uint32_t b) { return std::exp(as_double(b)); }),
                  3);
    }
    const float inf = std::numeric_limits<float>::infinity();
    const std::vector<float> edge{0, -0.0f, 89, inf, -105, -inf};
    std::vector<uint32_t> bits;
    for (const float v : edge) bits.push_back(std::bit_cast<uint32_t>(v));
    EXPECT_EQ(evaluate(1, bits), (std::vector<float>{1, 1, inf, inf, 0, 0}));
}

TEST(Portable, RootAndReciprocalAreAccurate) {
    EXPECT_LT(worst_ulp(2, floats_between(1e-30f, 1e30f), [](uint32_t b) { return std::sqrt(as_double(b)); }),
              3);
    EXPECT_EQ(evaluate(2, {0})[0], 0.0f);
    EXPECT_LT(worst_ulp(3, floats_between(1e-30f, 1e30f), [](uint32_t b) { return 1 / as_double(b); }), 3);
}

TEST(Portable, CircularFunctionsAreAccurateOnEveryStep) {
    std::vector<uint32_t> in;
    for (uint32_t k = 0; k < 1u << 24; k += 61) in.push_back(k);
    for (uint32_t eighth = 0; eighth < 8; ++eighth) in.push_back(eighth << 21);
    const auto angle = [](uint32_t k) { return 2 * std::numbers::pi * k / (1 << 24); };
    EXPECT_LT(worst_ulp(
                  5, in, [&](uint32_t k) { return std::cos(angle(k)); }, 0.01),
              2);
    EXPECT_LT(worst_ulp(
                  6, in, [&](uint32_t k) { return std::sin(angle(k)); }, 0.01),
              2);
}

TEST(Philox, KnownAnswers) {
    // From the authors' library Random123: counter 0, key 0.
    struct {
        uint64_t output, seed, offset;
        uint32_t count;
    } args{0, 0, 0, 1};
    const DeviceArray output(16);
    args.output = output.address();
    run("test_philox", {kPortableWorkgroup, 0}, args, {}, {output.access(true)});
    EXPECT_EQ(output.download<uint32_t>(),
              (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

}  // namespace
}  // namespace anymps::kernels
