// grid_sampler_2d, grid_sampler_3d and their gradients.
#include <anymps/ops/resample/grid_sampler_ops.h>
#include <anymps/shaders/resample/grid_sampler.h>

#include <ATen/Context.h>
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "kernels/image.h"
#include "kernels/launch_config.h"
#include "ops/same_dtype.h"

namespace anymps::ops {
namespace {

using kernels::Image;

struct Options {
    int64_t spatial, interpolation, padding;
    bool align_corners;
};

namespace shader = shaders::grid_sampler;
using shader::GridSamplerArgs;

constexpr kernels::KernelFamily kKernels(shader::kernels_with<GridSamplerArgs>,
                                         {"grid_sampler", "grid_sampler_input_gradient",
                                          "grid_sampler_grid_gradient"},
                                         {"_2", "_1", "_4"});
enum Step : size_t { kForward, kInputGradient, kGridGradient };

// The operands; output stands for its gradient in the backward kernels, input for its gradient where that is
// written.
struct Operands {
    const Tensor& input;
    const Tensor& grid;
    const Tensor& output;
    Tensor grid_gradient;
};

// [N, ..., axes] as an image whose channels are the axes.
Tensor channels_of(const Tensor& grid) {
    return grid.defined() ? grid.movedim(-1, 1) : grid;
}

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value <= std::numeric_limits<uint32_t>::max(), "grid_sampler(): ", value,
                " elements are more than the 2^32 - 1 that the MPS backend samples at once");
    return static_cast<uint32_t>(value);
}

// A thread for `span` elements of a tensor of output's sizes with `channels` channels; where `planes` is
// four, for four channels in place of one.
shader::GridSamplerKernel::Call prepare(Step step, const Operands& t, const Options& options,
                                        int64_t channels, int64_t span, GridSamplerArgs& args,
                                        uint32_t planes = 1) {
    const Tensor grid_view = channels_of(t.grid), gradient_view = channels_of(t.grid_gradient);
    const Image input(t.input, options.spatial), grid(grid_view, options.spatial),
        output(t.output, options.spatial), gradient(gradient_view, options.spatial);
    args = {.input = kernels::address(t.input),
            .grid = kernels::address(t.grid),
            .output = kernels::address(t.output),
            .grid_gradient = kernels::address_or_0(t.grid_gradient)};
    args.span = narrow(span);
    args.threads = narrow(t.output.numel() / t.input.size(1) * channels / span);
    args.channels = input.size(1);
    for (int i = 0; i < 3; ++i) {
        args.size[i] = input.size(2 + i);
        args.index.sizes[i] = kernels::FastDivider(output.size(4 - i));
    }
    args.index.sizes[3] = kernels::FastDivider(narrow(channels));
    args.input_strides = input.strides();
    args.grid_strides = grid.strides();
    args.output_strides = output.strides();
    args.grid_gradient_strides = gradient.strides();
    args.input_step = input.strides().values[1] * args.index.sizes[3].divisor;
    args.output_step = output.strides().values[1] * args.index.sizes[3].divisor;
    // Interpolation 0: bilinear, two taps an axis; 1: nearest; 2: bicubic.
    return kKernels(step, options.interpolation)
        .call({.workgroup = kernels::flat_workgroup(),
               .type = kernels::code(t.grid.scalar_type()),
               .spatial = static_cast<uint32_t>(options.spatial),
               .padding = static_cast<uint32_t>(options.padding),
               .align_corners = options.align_corners,
               .deterministic = span > 1,
               .planes = planes});
}

kernels::Grid grid_of(const GridSamplerArgs& args) {
    return kernels::flat_grid(args.threads);
}

void check(const Tensor& input, const Tensor& grid, const Options& options, const char* label) {
    at::native::check_grid_sampler_common(input, grid);
    if (options.spatial == 2)
        at::native::check_grid_sampler_2d(input, grid);
    else  // cubic samples of volumes, which are PyTorch's from 2.15 on, are not refused
        at::native::check_grid_sampler_3d(input, grid, /*interpolation_mode=*/0);
    kernels::check_floating(input.scalar_type(), label);
    TORCH_CHECK(input.scalar_type() == grid.scalar_type(), "expected scalar type ", input.scalar_type(),
                " but found ", grid.scalar_type());
}

std::vector<int64_t> output_sizes(const Tensor& input, const Tensor& grid) {
    std::vector<int64_t> sizes(grid.sizes().begin(), grid.sizes().end() - 1);
    sizes.insert(sizes.begin() + 1, input.size(1));
    return sizes;
}

Tensor forward(const Tensor& input, const Tensor& grid, const Options& options, const char* label) {
    check(input, grid, options, label);
    const Tensor output = at::empty(output_sizes(input, grid), input.options());
    if (output.numel() == 0) return output;
    // The taps of a position are computed once for four channels, where a quarter of the threads fills a GPU.
    constexpr int64_t kPlanes = 4, kMin = 1 << 18;
    const bool four = !kernels::launch_config().software && input.size(1) % kPlanes == 0 &&
                      output.numel() >= kPlanes * kMin && input.numel() < (int64_t{1} << 31) &&
                      output.numel() < (int64_t{1} << 31) && input.is_contiguous();
    const int64_t planes = four ? kPlanes : 1;
    GridSamplerArgs args;
    prepare(kForward, {input, grid, output, {}}, options, input.size(1) / planes, 1, args,
            static_cast<uint32_t>(planes))
        .read(input)
        .read(grid)
        .write(output)
        .dispatch(args, grid_of(args));
    return output;
}

using Gradients = std::tuple<Tensor, Tensor>;

// Gradients of the input are added up in float: by atomics, or in the order of the output.
Gradients backward(const Tensor& grad_output, const Tensor& input, const Tensor& grid, const Options& options,
                   std::array<bool, 2> output_mask, const char* label) {
    check(input, grid, options, label);
    const auto expected = output_sizes(input, grid);
    TORCH_CHECK_VALUE(grad_output.sizes() == expected, "grid_sampler(): expected grad_output to have sizes ",
                      expected, " but got grad_output with sizes ", grad_output.sizes());
    check_same_dtype_as(input, grad_output);
    const bool empty = grad_output.numel() == 0;
    Tensor grad_input, grad_grid;
    GridSamplerArgs args;
    if (output_mask[0]) {
        const Tensor sum = at::zeros(input.sizes(), input.options().dtype(at::kFloat));
        if (!empty) {
            const bool ordered = at::globalContext().deterministicAlgorithms();
            const int64_t plane = grad_output.numel() / (grad_output.size(0) * grad_output.size(1));
            prepare(kInputGradient, {sum, grid, grad_output, {}}, options, input.size(1), ordered ? plane : 1,
                    args)
                .read(grad_output)
                .read(grid)
                .write(sum)
                .dispatch(args, grid_of(args));
        }
        grad_input = sum.to(input.scalar_type());
    }
    if (output_mask[1]) {
        grad_grid = at::empty(grid.sizes(), grid.options());
        if (empty) {
            grad_grid.zero_();
        } else {
            prepare(kGridGradient, {input, grid, grad_output, grad_grid}, options, 1, 1, args)
                .read(grad_output)
                .read(input)
                .read(grid)
                .write(grad_grid)
                .dispatch(args, grid_of(args));
        }
    }
    return {grad_input, grad_grid};
}

}  // namespace

// input [N, C, H, W], grid [N, h, w, 2] of positions (x, y) in [-1, 1] -> [N, C, h, w].
ANYMPS_ROW(grid_sampler_2d, forward(input, grid, {2, interpolation_mode, padding_mode, align_corners},
                                    "grid_sampler_2d_cpu_kernel_impl"))
ANYMPS_ROW(grid_sampler_2d_backward,
           backward(grad_output, input, grid, {2, interpolation_mode, padding_mode, align_corners},
                    output_mask, "grid_sampler_2d_backward_cpu_kernel_impl"))

// input [N, C, D, H, W], grid [N, d, h, w, 3] of positions (x, y, z) -> [N, C, d, h, w].
ANYMPS_ROW(grid_sampler_3d,
           forward(input, grid, {3, interpolation_mode, padding_mode, align_corners}, "grid_sampler3d_cpu"))
ANYMPS_ROW(grid_sampler_3d_backward,
           backward(grad_output, input, grid, {3, interpolation_mode, padding_mode, align_corners},
                    output_mask, "grid_sampler_3d_backward_cpu"))

}  // namespace anymps::ops
