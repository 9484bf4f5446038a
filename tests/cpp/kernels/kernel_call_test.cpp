#include "kernels/kernel_call.h"

#include <ATen/core/Tensor.h>
#include <ATen/mps/EmptyTensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace anymps::kernels {
namespace {

at::TensorBase empty(at::IntArrayRef sizes) {
    return at::detail::empty_mps(sizes, at::TensorOptions().dtype(at::kFloat).device(at::kMPS));
}

TEST(KernelCall, ATensorWithoutElementsHasAnAddressThatReadsAsZeros) {
    const at::TensorBase nothing = empty({0, 3});
    ASSERT_EQ(nothing.const_data_ptr(), nullptr);
    ASSERT_NE(address(nothing), 0u);
    EXPECT_EQ(address(nothing) % 16, 0u);
    EXPECT_EQ(address(nothing), address(empty({2, 0})));
    std::vector<uint8_t> bytes(64 << 10, 1);
    runtime::encoder().download(bytes.data(), address(nothing), bytes.size());
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; }));
}

TEST(KernelCall, AKernelMayReadATensorWithoutElements) {
    const at::TensorBase nothing = empty({0}), out = empty({4});
    // Four elements copied from it, as a kernel does whose host side forgets that there are none.
    runtime::encoder().copy(address(out), address(nothing), 16);
    float values[4] = {1, 1, 1, 1};
    runtime::encoder().download(values, address(out), sizeof values);
    for (const float value : values) EXPECT_EQ(value, 0.0f);
}

TEST(KernelCall, NoTensorHasNoAddress) {
    EXPECT_EQ(address_or_0(at::TensorBase()), 0u);
    EXPECT_EQ(address_or_0(empty({0})), 0u);
    EXPECT_NE(address_or_0(empty({1})), 0u);
}

}  // namespace
}  // namespace anymps::kernels
