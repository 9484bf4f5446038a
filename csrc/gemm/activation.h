// Activations of products, written as the product is.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace anymps::gemm {

// Twin: shaders/gemm/gemm_activation.slang.
enum class Activation : uint32_t { None = 0, Relu = 1, Gelu = 2, GeluTanh = 3 };
constexpr uint32_t kActivationGradient = 8;  // beside one of them

// What a Gemm does to its results. Needs alpha = beta = 1.
struct GemmActivation {
    Activation function = Activation::None;
    // The results are gradients of the activation, and self is what it was computed from.
    bool gradient = false;
    // Where to store what the activation is computed from, strided as the results; nullptr: nowhere.
    const at::Tensor* input = nullptr;

    uint32_t code() const { return static_cast<uint32_t>(function) | (gradient ? kActivationGradient : 0); }
};

}  // namespace anymps::gemm
