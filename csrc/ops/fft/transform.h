// One-dimensional Fourier transforms of all lines of a tensor along a dimension.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace anymps::ops {

// What a line of the input holds; codes of shaders/fft/fft.slang.
enum class FftSource : uint32_t { Complex = 0, Real, Hermitian, RealPairs, HermitianPairs };

struct LineTransform {
    const at::Tensor& input;   // float32 where Real, else complex64; any strides
    const at::Tensor& output;  // complex64, or float32 (the real parts); may be the input itself
    int64_t dim;               // both tensors agree in the other dimensions
    int64_t length;            // of the transform; the output has that many elements or the first of them,
                               // the input length / 2 + 1 where Hermitian
    FftSource source;
    bool inverse;
    double scale;

    // Powers of two run in one workgroup a line (GPUs, up to 4096 points or 8192 real numbers). Lengths whose
    // prime factors are at most 61 run as steps of a mixed radix, others as convolutions (Bluestein 1970).
    // Raises RuntimeError for lengths of 2^28 and more.
    void run() const;
};

}  // namespace anymps::ops
