// shaders/lib/dtype.slang against PyTorch's own conversions.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/TypeCast.h>
#include <c10/util/complex.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "kernel_runner.h"
#include "kernels/dtype.h"

namespace anymps::kernels {
namespace {

constexpr uint32_t kWorkgroup = 64;

template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;  // std::vector<bool> has no bytes

// `in`, whose length is a multiple of 4, through load and store of a storage type each, computed in
// `compute`.
template <class To, class From>
std::vector<Stored<To>> convert(const std::string& compute, bool vectors, const std::vector<From>& in) {
    const DeviceArray input(in);
    const DeviceArray output(in.size() * sizeof(To));
    struct {
        uint64_t output, input;
        uint32_t count;
    } args{output.address(), input.address(), static_cast<uint32_t>(in.size())};
    const uint64_t threads = vectors ? in.size() / 4 : in.size();
    run(((vectors ? "test_convert4_" : "test_convert_") + compute).c_str(),
        {kWorkgroup, 0, code(c10::CppTypeToScalarType<From>::value),
         code(c10::CppTypeToScalarType<To>::value)},
        args, {static_cast<uint32_t>((threads + kWorkgroup - 1) / kWorkgroup)},
        {input.access(false), output.access(true)});
    return output.download<Stored<To>>();
}

template <class T>
std::vector<T> all_values() {
    std::vector<T> values;
    for (uint32_t bits = 0; bits < 65536; ++bits)
        values.push_back(std::bit_cast<T>(static_cast<uint16_t>(bits)));
    return values;
}

bool same(float a, float b) {
    return std::isnan(a) ? std::isnan(b) : std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Counts differences and shows the first one, so that a broken conversion does not print 65,536 lines.
template <class To, class From>
void expect_same(const std::vector<From>& in, const std::vector<To>& actual,
                 const std::vector<To>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    size_t wrong = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
        const bool equal = c10::isIntegralType(c10::CppTypeToScalarType<To>::value, true)
                               ? actual[i] == expected[i]
                               : same(static_cast<float>(actual[i]), static_cast<float>(expected[i]));
        if (!equal && wrong++ == 0) {
            ADD_FAILURE() << c10::CppTypeToScalarType<From>::value << " to "
                          << c10::CppTypeToScalarType<To>::value << ", " << +in[i] << ": " << +actual[i]
                          << " instead of " << +expected[i];
        }
    }
    EXPECT_EQ(wrong, 0u);
}

template <class To, class From>
void expect_like_torch(const std::string& compute, const std::vector<From>& in) {
    std::vector<Stored<To>> expected;
    for (const From value : in) expected.push_back(c10::convert<To>(value));
    for (const bool vectors : {false, true}) expect_same(in, convert<To>(compute, vectors, in), expected);
}

// Floats that decide how a 16-bit type rounds: each of its values, the middle to the next one and the floats
// beside.
template <class T>
std::vector<float> rounding_cases() {
    std::vector<float> cases;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
        const auto value = static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(bits)));
        const auto next = static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(bits + 1)));
        float middle = value / 2 + next / 2;
        if (std::isinf(next)) {  // the largest value rounds to infinity at half a step above it
            const auto previous = static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(bits - 1)));
            middle = value + (value / 2 - previous / 2);
        }
        cases.insert(cases.end(),
                     {value, middle, std::nextafter(middle, -INFINITY), std::nextafter(middle, INFINITY)});
    }
    std::mt19937 random(1);
    for (int i = 0; i < 1 << 18; ++i) cases.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    return cases;
}

TEST(Dtype, AllHalfValuesWidenExactly) {
    expect_like_torch<float>("f32", all_values<c10::Half>());
}
TEST(Dtype, AllBFloat16ValuesWidenExactly) {
    expect_like_torch<float>("f32", all_values<c10::BFloat16>());
}
TEST(Dtype, AllHalfValuesRoundTrip) {
    expect_like_torch<c10::Half>("f32", all_values<c10::Half>());
}
TEST(Dtype, AllBFloat16ValuesRoundTrip) {
    expect_like_torch<c10::BFloat16>("f32", all_values<c10::BFloat16>());
}
TEST(Dtype, FloatRoundsToHalfLikeTorch) {
    expect_like_torch<c10::Half>("f32", rounding_cases<c10::Half>());
}
TEST(Dtype, FloatRoundsToBFloat16LikeTorch) {
    expect_like_torch<c10::BFloat16>("f32", rounding_cases<c10::BFloat16>());
}

template <class From>
std::vector<From> integer_cases() {
    using Limits = std::numeric_limits<From>;
    std::vector<From> cases{0,
                            1,
                            2,
                            127,
                            static_cast<From>(128),
                            static_cast<From>(255),
                            static_cast<From>(-1),
                            Limits::min(),
                            Limits::max(),
                            static_cast<From>(Limits::max() - 1)};
    std::mt19937_64 random(2);
    while (cases.size() < 4096) cases.push_back(static_cast<From>(random() >> (random() % 64)));
    return cases;
}

// From an integer type to everything: integers through int64_t (and int where 32 bits hold both), floats
// through float.
template <class From>
void expect_integer_conversions() {
    const auto cases = integer_cases<From>();
    const auto to_integer = [&]<class To>(To) {
        expect_like_torch<To>("i64", cases);
        if (sizeof(From) <= 4 && sizeof(To) <= 4) expect_like_torch<To>("i32", cases);
    };
    to_integer(bool{}), to_integer(uint8_t{}), to_integer(int8_t{}), to_integer(int16_t{}),
        to_integer(int32_t{});
    to_integer(int64_t{}), to_integer(uint16_t{}), to_integer(uint32_t{}), to_integer(uint64_t{});
    expect_like_torch<float>("f32", cases);
    expect_like_torch<c10::Half>("f32", cases);
    expect_like_torch<c10::BFloat16>("f32", cases);
}

TEST(Dtype, IntegersConvertLikeTorch) {
    expect_integer_conversions<uint8_t>();
    expect_integer_conversions<int8_t>();
    expect_integer_conversions<int16_t>();
    expect_integer_conversions<int32_t>();
    expect_integer_conversions<int64_t>();
    expect_integer_conversions<uint16_t>();
    expect_integer_conversions<uint32_t>();
    expect_integer_conversions<uint64_t>();
}

// Values of `To`, and fractions beside them, as floats: what C++ defines.
template <class To>
void expect_float_conversion() {
    constexpr bool is_wide = sizeof(To) == 8;
    std::vector<float> cases{0.0f, -0.0f, 0.5f, 0.999f, 1.0f, 1.5f, 100.7f, 127.0f};
    std::mt19937 random(3);
    while (cases.size() < 4096) {
        const float unit = std::uniform_real_distribution<float>(0, 1)(random);
        cases.push_back(unit * static_cast<float>(is_wide ? 9.2e18 : 0.99 * std::numeric_limits<To>::max()));
        cases.push_back(std::is_signed_v<To> ? -cases.back() : unit);
    }
    expect_like_torch<To>("f32", cases);
}

TEST(Dtype, FloatsTruncateLikeTorch) {
    expect_float_conversion<uint8_t>();
    expect_float_conversion<int8_t>();
    expect_float_conversion<int16_t>();
    expect_float_conversion<int32_t>();
    expect_float_conversion<int64_t>();
    expect_float_conversion<uint16_t>();
    expect_float_conversion<uint32_t>();
    expect_float_conversion<uint64_t>();
}

TEST(Dtype, FloatsOutOfRangeGiveTheSmallestInteger) {
    const std::vector<float> cases{NAN, INFINITY, -INFINITY, 3e9f};
    const int32_t low = std::numeric_limits<int32_t>::min();
    const int64_t low64 = std::numeric_limits<int64_t>::min();
    for (const bool vectors : {false, true}) {
        expect_same(cases, convert<int32_t>("f32", vectors, cases), {low, low, low, low});
        expect_same(cases, convert<int64_t>("f32", vectors, cases), {low64, low64, low64, 3000000000});
        // PyTorch's conversion to uint8 goes through int64_t: 3e9 wraps.
        expect_same(cases, convert<uint8_t>("f32", vectors, cases),
                    {0, 0, 0, static_cast<uint8_t>(3000000000)});
    }
}

TEST(Dtype, ComplexNumbersAreTheirPairs) {
    using Complex = c10::complex<float>;
    const std::vector<Complex> cases{{0, 0}, {1.5f, -2}, {0, 3},     {-0.0f, 1e-45f},
                                     {7, 0}, {-9, 9},    {0, -0.0f}, {1e30f, 4}};
    std::vector<float> real;
    std::vector<Complex> widened;
    for (const Complex value : cases) real.push_back(value.real());
    for (const float value : real) widened.emplace_back(value, 0);
    for (const bool vectors : {false, true}) {
        EXPECT_EQ(convert<Complex>("c64", vectors, cases), cases);
        EXPECT_EQ(convert<float>("c64", vectors, cases), real);
        EXPECT_EQ(convert<float>("f32", vectors, cases), real);
        EXPECT_EQ(convert<Complex>("c64", vectors, real), widened);
        EXPECT_EQ(convert<Complex>("f32", vectors, real), widened);
        EXPECT_EQ(convert<bool>("c64", vectors, cases), (std::vector<uint8_t>{0, 1, 1, 1, 1, 1, 0, 1}));
    }
}

TEST(Dtype, EverythingNotZeroIsTrue) {
    const std::vector<float> cases{0.0f, -0.0f, 1e-45f, NAN, INFINITY, -1.0f, 0.25f, 3e38f};
    const std::vector<uint8_t> expected{0, 0, 1, 1, 1, 1, 1, 1};
    for (const bool vectors : {false, true}) {
        EXPECT_EQ(convert<bool>("f32", vectors, cases), expected);
    }
}

}  // namespace
}  // namespace anymps::kernels
