#include "ops/resample/interpolation.h"

#include <vector>

#include "kernels/check_dtype.h"

namespace anymps::ops {
namespace {

bool nearest(ResampleMode mode) {
    return mode == ResampleMode::Nearest || mode == ResampleMode::NearestExact;
}

// Inputs an output, rounded as the CPU rounds it (ATen/native/UpSample.h, area_pixel_compute_scale).
float scale_of(int64_t input, int64_t output, std::optional<double> factor, ResampleMode mode,
               bool align_corners) {
    if (align_corners)
        return output > 1 ? static_cast<float>(input - 1) / static_cast<float>(output - 1) : 0.0f;
    // Where one of these ratios holds, the CPU takes it whatever the factor.
    const bool linear = mode == ResampleMode::Linear || mode == ResampleMode::Nearest;
    if (linear && output == input) return 1.0f;
    if (mode == ResampleMode::Nearest && output == 2 * input) return 0.5f;
    if (factor.has_value() && *factor > 0) return static_cast<float>(1.0 / *factor);
    return static_cast<float>(input) / static_cast<float>(output);
}

std::vector<ResampleAxis> axes_of(const at::Tensor& inputs, const at::Tensor& outputs, ResampleMode mode,
                                  ScaleFactors scales, bool align_corners) {
    std::vector<ResampleAxis> axes;
    int64_t d = inputs.dim() - static_cast<int64_t>(scales.size());
    for (const auto& factor : scales) {
        const int64_t input = inputs.size(d), output = outputs.size(d);
        axes.push_back({.input = input,
                        .output = output,
                        .scale = scale_of(input, output, factor, mode, align_corners)});
        ++d;
    }
    return axes;
}

void check_dtype(const at::Tensor& tensor, const char* op) {
    kernels::check_implemented(tensor.is_floating_point() || tensor.scalar_type() == at::kByte,
                               tensor.scalar_type(), op);
}

}  // namespace

void interpolate(const at::Tensor& out, const at::Tensor& self, ResampleMode mode, ScaleFactors scales,
                 const char* op, bool align_corners) {
    check_dtype(self, op);
    resample(out, self, mode, axes_of(self, out, mode, scales, align_corners),
             align_corners && !nearest(mode));
}

void interpolate_backward(const at::Tensor& grad_input, const at::Tensor& grad_output, ResampleMode mode,
                          ScaleFactors scales, const char* op, bool align_corners) {
    check_dtype(grad_output, op);
    resample(grad_input, grad_output, mode, axes_of(grad_input, grad_output, mode, scales, align_corners),
             align_corners && !nearest(mode), true);
}

}  // namespace anymps::ops
