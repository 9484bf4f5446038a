// Convolutions as plain data: what is computed and how the tensors lie, without the tensors.
//
// A convolution relates a large image x and a small one y by a filter w[channel of y, channel of x in its
// group, taps]: position of x = position of y * stride + tap * dilation - padding. The forward pass (fprop)
// computes y, the gradients x (dgrad) and w (wgrad), each from the two others; a transposed convolution is a
// dgrad, and the gradient of its input an fprop.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "gemm/block_layout.h"
#include "gemm/tiles.h"
#include "kernels/storage_type.h"

namespace anymps::ops {

using kernels::DType;

using Dim3 = std::array<int64_t, 3>;  // depth, height, width

// Tensors that a call gives to a plan. The plan's own follow, from kGiven on.
enum GivenBuffer : int32_t {
    kNoBuffer = -1,
    kX,
    kW,
    kY,
    kBias,
    kImageOut,
    kFilterOut,
    kOperand,
    kScale,
    kShift,
    kGiven
};

// Where an operand lies: a tensor by its number, and what decides how it can be loaded.
struct Memory {
    int32_t buffer = kNoBuffer;
    DType type = DType::F32;
    bool huge = false;          // storage of more bytes than the kernels of matrix units can address
    uint16_t misalignment = 0;  // address modulo kAlignment

    static constexpr uint64_t kAlignment = 16;
    static constexpr uint64_t kHugeBytes = uint64_t{1} << 35;  // tiles count vec8 of halves by 31 bits

    bool defined() const { return buffer != kNoBuffer; }
    int64_t element_size() const { return kernels::element_size(type); }
    // True where the address of an element is a multiple of `bytes`, at most kAlignment.
    bool is_aligned(uint64_t bytes, int64_t offset = 0) const {
        return (misalignment + static_cast<uint64_t>(offset * element_size())) % bytes == 0;
    }
    bool operator==(const Memory&) const = default;
};

// Encoding of an image's floats in memory, and of the loads. ScaledF16 is scaled by the amax; the device
// chooses between Bf16x2 (kBf16x2 of shaders/lib/product.slang) and ScaledF16. ScaledOnLoad: floats as they
// are, converted to f16 by the tiles.
enum class Form : int32_t { Plain, Bf16x2, ScaledF16, Bf16x2OrScaledF16, ScaledOnLoad };

// An image [outer, group, channel, depth, height, width]: activations are [batch, channels, ...], filters
// [channels of y, channels of x in a group, ...]. Strides are in elements.
struct ConvTensor {
    Memory memory;
    int64_t outer = 0, channels = 0;  // channels of a group
    int64_t outer_stride = 0, group_stride = 0, channel_stride = 0;
    Dim3 sizes{1, 1, 1}, strides{0, 0, 0};
    int64_t padded = 0;        // channels of a group with their padding, which is 0
    int64_t block_stride = 0;  // NC/16HWc16: elements between blocks of 16 channels; else 0
    Form form = Form::Plain;
    int32_t amax = -1;  // number of its AmaxState; -1: none

    // Channels follow one another, positions do not.
    bool is_channels_last() const {
        return padded > 1 && channel_stride == 1 && (sizes[2] == 1 || strides[2] != 1);
    }
    int64_t positions() const { return sizes[0] * sizes[1] * sizes[2]; }
    int64_t numel(int64_t groups) const { return outer * groups * channels * positions(); }
    // Dense in the order of NCDHW.
    bool is_contiguous(int64_t groups) const;
    bool pairs() const { return form == Form::Bf16x2; }
    // The amax that loads scale by; -1: none.
    int32_t scale() const { return form == Form::ScaledF16 || form == Form::ScaledOnLoad ? amax : -1; }
    // View of an image of either encoding as one of the two; plain floats are converted by the tiles.
    ConvTensor as(Form way) const;
    bool operator==(const ConvTensor&) const = default;
};

// sizes: [batch, channels, ...] of an activation, [channels of y, channels of x in a group, ...] of a filter.
ConvTensor activation_of(const Memory& memory, std::span<const int64_t> sizes,
                         std::span<const int64_t> strides, int64_t groups);
ConvTensor filter_of(const Memory& memory, std::span<const int64_t> sizes, std::span<const int64_t> strides,
                     int64_t groups);
// Outer dimension and channels change places.
ConvTensor transposed(ConvTensor filter);

// Three axes; unused leading ones are neutral.
struct ConvParams {
    Dim3 stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};
    int64_t spatial = 0;  // dimensions of the tensors

    ConvParams() = default;
    // Lists of one value stand for all axes.
    ConvParams(std::span<const int64_t> strides, std::span<const int64_t> paddings,
               std::span<const int64_t> dilations, int64_t spatial);
    bool operator==(const ConvParams&) const = default;
};

// What follows the bias in fprop as results are stored: times a scale of each channel, plus a shift, and
// steps.
struct ConvEpilogue {
    uint32_t steps = 0;  // EpilogueSteps::code
    uint32_t reserved = 0;
    Memory operand;       // of the steps: as the results lie
    Memory scale, shift;  // dense float32, of all channels of the result; or undefined both

    bool used() const { return steps != 0 || scale.defined(); }
    bool operator==(const ConvEpilogue&) const = default;
};

// One call: all that its plan depends on besides the device.
struct ConvProblem {
    ConvParams params;
    int64_t groups = 1;
    ConvTensor x, w, y;    // operands; of the one that is a result only the sizes matter
    ConvTensor image_out;  // result of fprop or dgrad: fresh
    ConvTensor filter_out;
    Memory bias;
    int64_t bias_stride = 0;
    ConvEpilogue epilogue;  // of fprop alone
    // fprop and dgrad exclude one another. tf32: f32 may lose what TF32 does.
    bool fprop = false, dgrad = false, wgrad = false, tf32 = false;
    uint32_t reserved = 0;  // no padding: bytes are compared

    bool operator==(const ConvProblem&) const = default;
    uint64_t hash() const;
};
static_assert(std::has_unique_object_representations_v<ConvProblem>);

// What matrix units multiply operands of this type as, unless they are scaled f16.
inline DType multiplied_type(DType type) {
    return type == DType::F32 ? DType::BF16 : type;
}

// What plans depend on besides the problem: that of this process (execute.h), or a made-up one.
struct ConvDevice {
    const vulkan::DeviceInfo& info;
    // Waits for the device when first asked.
    gemm::FragmentLayout (*layout)(DType);
    gemm::Plan (*choose)(const vulkan::DeviceInfo&, const gemm::GemmProblem&, bool cold);
    // The sizes that a profile shows for a dispatch of a plan (gemm/tuning.h); nullptr: as they are.
    std::string (*profile_label)(const gemm::Plan&, std::string sizes) = nullptr;
    bool tf32 = true;

    // True where subgroups of 32 hold both operands as the kernels without shared memory say. The first
    // convolution asks, when few pipelines are being compiled: what it waits for is known then.
    bool holds_fragments(DType type) const;
    // Threads of a workgroup that share nothing, as kernels/flat_grid.h has them for this process.
    uint32_t flat_workgroup() const { return info.is_software ? info.subgroup_size : 256; }
    std::string label(const gemm::Plan& plan, std::string sizes) const {
        return profile_label == nullptr ? sizes : profile_label(plan, std::move(sizes));
    }
    // bf16 terms of an f32 operand.
    uint32_t bf16_terms() const { return tf32 ? 2 : 3; }
    // True where matrix units may multiply such operands as scaled f16: f32 that may lose what TF32 does.
    bool may_use_scaled_f16(DType type) const;
    // Tiles of matrix units store to columns of their own, eight lanes a line of results.
    bool has_lines_of_lanes() const { return gemm::matrix_subgroup(info) >= 8; }
};

}  // namespace anymps::ops
