// The windows of a pooling op and its launcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>

namespace anymps::ops {

// Windows over the last two or three dimensions, as the ops are given them: lists of one or of `spatial`
// numbers, an empty stride is the kernel's size.
struct Windows {
    std::array<int64_t, 3> kernel{1, 1, 1}, stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};
    int64_t spatial;
    bool adaptive =
        false;  // window o of O covers floor(o * size / O) to ceil((o + 1) * size / O); the rest is ignored
    bool count_padding = true;
    int32_t divisor = 0;  // of averages; 0: the number of elements

    static Windows fixed(int64_t spatial, c10::IntArrayRef kernel, c10::IntArrayRef stride,
                         c10::IntArrayRef padding, c10::IntArrayRef dilation);
    static Windows adapting(int64_t spatial);
};

// The memory of what max_pool2d or max_pool3d makes of the input, in its format: one volume without a batch
// dimension keeps its own, too.
at::Tensor empty_pooled(const at::Tensor& input, int64_t spatial, c10::IntArrayRef sizes,
                        at::ScalarType dtype);

// Kernels of shaders/pool/pool.slang. Tensors are [channels, ...] or [batch, channels, ...], of any strides.
// indices are positions in the plane of the input (i64), offsets in the window (u8, row by row, of windows of
// at most 256 elements without dilation), or undefined: none are written. Gradients have the shapes of the
// input and the output; grad_input is written whole, and max_pool_backward refuses indices other than i64.
// Raise NotImplementedError naming `op` for types without arithmetic there: bool, complex, and for averages
// and gradients integers other than int64 (averages alone).
void max_pool(const char* op, const Windows& windows, const at::Tensor& input, const at::Tensor& output,
              const at::Tensor& indices);
void max_pool_backward(const char* op, const Windows& windows, const at::Tensor& grad_output,
                       const at::Tensor& indices, const at::Tensor& grad_input);
void max_pool_offsets_backward(const Windows& windows, const at::Tensor& grad_output,
                               const at::Tensor& offsets, const at::Tensor& grad_input);
void avg_pool(const char* op, const Windows& windows, const at::Tensor& input, const at::Tensor& output);
void avg_pool_backward(const char* op, const Windows& windows, const at::Tensor& grad_output,
                       const at::Tensor& grad_input);

}  // namespace anymps::ops
