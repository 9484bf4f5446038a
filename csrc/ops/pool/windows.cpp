#include "ops/pool/windows.h"

#include <anymps/shaders/pool/pool.h>
#include <anymps/shaders/pool/pool_gradient.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "kernels/image.h"
#include "kernels/launch_config.h"
#include "ops/same_dtype.h"
#include "runtime/dispatch_time.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using kernels::Compute;
using kernels::Image;

namespace shader = shaders::pool;
namespace gradient = shaders::pool_gradient;
using gradient::PoolGradientArgs;
using shader::PoolArgs;

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(), "pooling: a window of ", value,
                " elements is too large for the mps device");
    return static_cast<uint32_t>(value);
}

struct Operands {
    const Tensor& input;  // or its gradient
    const Tensor& output;
    const Tensor& indices;
    bool backward;         // the input's side is the result
    bool scatter = false;  // a thread for each output, though the input's side is the result
};

// True where no input lies in two windows.
bool disjoint(const Windows& w) {
    for (int axis = 0; axis < 3; ++axis) {
        if (w.stride[axis] <= (w.kernel[axis] - 1) * w.dilation[axis]) return false;
    }
    return !w.adaptive;
}

// The stride of positions counted through a whole plane; 0 where there is no single one.
uint32_t plane_step(const Tensor& tensor, int64_t spatial) {
    int64_t step = 1, next = 0;
    for (int64_t dim = tensor.dim() - 1; dim >= tensor.dim() - spatial; --dim) {
        if (tensor.size(dim) == 1) continue;
        if (next == 0) step = tensor.stride(dim);
        if (next != 0 && tensor.stride(dim) != next) return 0;
        next = tensor.stride(dim) * tensor.size(dim);
    }
    return narrow(step);
}

// Specialization constant of the shaders: 0 for averages, and maxima whose indices nobody asks for.
uint32_t index_bytes(const Tensor& indices) {
    return indices.defined() ? static_cast<uint32_t>(indices.element_size()) : 0;
}

// Positions of a window along each axis, or outputs that an input may lie in; zeros where they differ from
// place to place, or are so many that unrolled loops would be long.
std::array<uint32_t, 3> spans(const Windows& w, const Operands& t) {
    constexpr int64_t kMax = 32;
    std::array<uint32_t, 3> result{};
    int64_t all = 1;
    for (int axis = 0; axis < 3; ++axis) {
        const int64_t reach = (w.kernel[axis] - 1) * w.dilation[axis];
        const int64_t span = t.backward ? reach / w.stride[axis] + 1 : w.kernel[axis];
        result[axis] = static_cast<uint32_t>(span);
        all = std::min(all * span, kMax + 1);
    }
    return w.adaptive || t.scatter || all > kMax ? std::array<uint32_t, 3>{} : result;
}

// What a thread visits along an axis at most: positions of a window, or outputs that an input may lie in.
int64_t visited(const Windows& w, const Operands& t, int axis, int64_t inputs, int64_t outputs) {
    const auto share = [](int64_t n, int64_t of) { return (n + of - 1) / std::max<int64_t>(of, 1); };
    const bool gathers = t.backward && !t.scatter;
    if (w.adaptive)
        return gathers ? share(outputs, inputs) + 1 : std::max<int64_t>(share(inputs, outputs), 1);
    const int64_t reach = (w.kernel[axis] - 1) * w.dilation[axis];
    return gathers ? std::min(reach / w.stride[axis] + 1, outputs) : w.kernel[axis];
}

// The divisor of all averages, or 0 where some windows have fewer elements than others.
int32_t common_divisor(const Windows& w, const Image& in, const Image& out) {
    if (w.divisor != 0 || w.adaptive) return w.divisor;
    int64_t all = 1;
    for (int axis = 0; axis < 3; ++axis) {
        const int64_t end = (int64_t{out.size(2 + axis)} - 1) * w.stride[axis] + w.kernel[axis];
        if (end > in.size(2 + axis) + 2 * w.padding[axis] || (!w.count_padding && w.padding[axis] != 0))
            return 0;
        all *= w.kernel[axis];
    }
    return static_cast<int32_t>(std::min<int64_t>(all, std::numeric_limits<int32_t>::max()));
}

// Lets a thread take the same place of four planes: of four samples, or of four channels. Returns how many it
// takes.
uint32_t share_planes(const Image& image, const Image& in, const Image& out, const Image& indices,
                      PoolArgs& args) {
    constexpr uint32_t kPlanes = 4, kMin = 1 << 18;  // fewer threads do not fill a GPU
    if (kernels::launch_config().software || args.total < kMin * kPlanes) return 1;
    const bool samples = image.size(0) % kPlanes == 0;
    const bool channels = image.size(1) % kPlanes == 0 && !image.channels_fast();
    if (!samples && !channels) return 1;
    const int dim = samples ? 0 : 1;
    const uint32_t part = image.size(dim) / kPlanes;
    for (const Image* of : {&in, &out, &indices}) {
        if (3 * uint64_t{part} * of->strides().values[dim] > std::numeric_limits<uint32_t>::max()) return 1;
    }
    if (channels && !samples) args.index.sizes[3] = kernels::FastDivider(part);
    args.in_step = part * in.strides().values[dim];
    args.out_step = part * out.strides().values[dim];
    args.index_step = part * indices.strides().values[dim];
    args.total /= kPlanes;
    return kPlanes;
}

void launch(const shader::PoolKernel& kernel, const Windows& w, const Operands& t) {
    const Tensor& result = t.backward ? t.input : t.output;
    if (result.numel() == 0) return;
    if (t.output.numel() == 0) {
        result.zero_();
        return;
    }
    const Image in(t.input, w.spatial), out(t.output, w.spatial), indices(t.indices, w.spatial);
    const Image& image = t.backward && !t.scatter ? in : out;
    if (result.numel() > std::numeric_limits<uint32_t>::max() && image.size(0) > 1) {
        const auto half = [&](const Tensor& tensor, int64_t first, int64_t count) {
            return tensor.defined() ? tensor.narrow(0, first, count) : tensor;
        };
        const int64_t middle = image.size(0) / 2, rest = image.size(0) - middle;
        launch(kernel, w,
               {half(t.input, 0, middle), half(t.output, 0, middle), half(t.indices, 0, middle), t.backward,
                t.scatter});
        launch(kernel, w,
               {half(t.input, middle, rest), half(t.output, middle, rest), half(t.indices, middle, rest),
                t.backward, t.scatter});
        return;
    }
    PoolArgs args{};
    args.input = kernels::address(t.input);
    args.output = kernels::address(t.output);
    args.indices = kernels::address_or_0(t.indices);
    args.total = static_cast<uint32_t>(image.tensor().numel());
    args.index = image.index();
    for (int axis = 0; axis < 3; ++axis) {
        args.in_size[axis] = in.size(2 + axis);
        args.out_size[axis] = out.size(2 + axis);
        args.kernel[axis] = narrow(w.kernel[axis]);
        args.stride[axis] = kernels::FastDivider(narrow(w.stride[axis]));
        args.padding[axis] = narrow(w.padding[axis]);
        args.dilation[axis] = kernels::FastDivider(narrow(w.dilation[axis]));
    }
    args.in_strides = in.strides();
    if (t.scatter) args.in_strides.values[4] = plane_step(t.input, w.spatial);
    args.out_strides = out.strides();
    args.index_strides = indices.strides();
    args.count_padding = w.count_padding;
    args.divisor = common_divisor(w, in, out);
    const uint32_t planes = t.scatter ? 1 : share_planes(image, in, out, indices, args);
    const uint32_t workgroup = kernels::flat_workgroup();
    const auto [depth, height, width] = spans(w, t);
    auto call = kernel.call({.workgroup = workgroup,
                             .type = kernels::code(result.scalar_type()),
                             .channels_fast = image.channels_fast(),
                             .adaptive = w.adaptive,
                             .depth = depth,
                             .height = height,
                             .width = width,
                             .planes = planes,
                             .index_bytes = index_bytes(t.indices)});
    constexpr double kOperationsPerTap = 8;
    double taps = kOperationsPerTap * static_cast<double>(image.tensor().numel());
    for (int axis = 0; axis < 3; ++axis)
        taps *= static_cast<double>(visited(w, t, axis, in.size(2 + axis), out.size(2 + axis)));
    runtime::note_dispatch({.operations = taps});
    call.read(t.backward ? t.output : t.input).write(result);
    if (t.indices.defined()) t.backward ? call.read(t.indices) : call.write(t.indices);
    call.dispatch(args, kernels::flat_grid(uint64_t{args.total}));
}

// The most windows that may hold one of `count` neighbours from a multiple of `count` on.
uint32_t windows_of(int64_t count, int64_t size, int64_t outputs, const Windows& w, int axis) {
    const int64_t reach = w.kernel[axis] - 1, stride = w.stride[axis], padding = w.padding[axis];
    int64_t most = 0;
    for (int64_t i = 0; i < size; i += count) {
        const int64_t first = std::max<int64_t>(0, i + padding - reach + stride - 1) / stride;
        const int64_t last = std::min((std::min(i + count, size) - 1 + padding) / stride, outputs - 1);
        most = std::max(most, last - first + 1);
    }
    return static_cast<uint32_t>(most);
}

// Gathers the gradient in words, where planes are contiguous and few windows overlap. False where it cannot.
// Averages have no indices.
bool gather_words(const Windows& w, const Tensor& grad_output, const Tensor& indices,
                  const Tensor& grad_input) {
    constexpr uint32_t kMax = 6;
    const int64_t dims = grad_input.dim();
    if (kernels::launch_config().software || w.adaptive || w.spatial != 2 || w.dilation[1] != 1 ||
        w.dilation[2] != 1 || !grad_input.is_contiguous() || !grad_output.is_contiguous() ||
        (indices.defined() && !indices.is_contiguous()) ||
        grad_input.scalar_type() != grad_output.scalar_type() || grad_output.numel() == 0 ||
        grad_input.numel() >= (int64_t{1} << 32))
        return false;
    const int64_t height = grad_input.size(dims - 2), width = grad_input.size(dims - 1);
    const int64_t out_height = grad_output.size(dims - 2), out_width = grad_output.size(dims - 1);
    const auto word = static_cast<uint64_t>(4 * grad_input.element_size());
    if (width % 4 != 0 || kernels::address(grad_input) % word != 0) return false;
    const uint32_t down = windows_of(2, height, out_height, w, 1);
    const uint32_t across = windows_of(4, width, out_width, w, 2);
    if (down * across > kMax) return false;
    const bool chosen = indices.defined();
    const int32_t divisor =
        chosen ? 1 : common_divisor(w, Image(grad_input, w.spatial), Image(grad_output, w.spatial));
    if (divisor == 0) return false;
    PoolGradientArgs args{};
    args.input = kernels::address(grad_input);
    args.output = kernels::address(grad_output);
    args.indices = chosen ? kernels::address(indices) : 0;
    args.divisor = static_cast<float>(divisor);
    args.across = kernels::FastDivider(narrow(width / 4));
    args.down = kernels::FastDivider(narrow((height + 1) / 2));
    args.stride_down = kernels::FastDivider(narrow(w.stride[1]));
    args.stride_across = kernels::FastDivider(narrow(w.stride[2]));
    args.height = narrow(height);
    args.width = narrow(width);
    args.out_height = narrow(out_height);
    args.out_width = narrow(out_width);
    args.reach_down = narrow(w.kernel[1] - 1);
    args.reach_across = narrow(w.kernel[2] - 1);
    args.padding_down = narrow(w.padding[1]);
    args.padding_across = narrow(w.padding[2]);
    args.total = static_cast<uint32_t>(grad_input.numel() / (height * width) * args.across.divisor *
                                       args.down.divisor);
    const uint32_t workgroup = kernels::flat_workgroup();
    (chosen ? gradient::max_pool_gather : gradient::avg_pool_gather)
        .call({.workgroup = workgroup,
               .type = kernels::code(grad_input.scalar_type()),
               .down = down,
               .across = across,
               .index_bytes = index_bytes(indices)})
        .read(grad_output)
        .read(indices)
        .write(grad_input)
        .dispatch(args, kernels::flat_grid(uint64_t{args.total}));
    return true;
}

// Gradients of means of whole planes: each is one value. False where they do not lie in words.
bool spread_words(const Windows& w, const Tensor& grad_output, const Tensor& grad_input) {
    const int64_t planes = grad_output.numel();
    if (!w.adaptive || planes == 0 || !grad_input.is_contiguous() || !grad_output.is_contiguous())
        return false;
    for (int64_t axis = 1; axis <= w.spatial; ++axis) {
        if (grad_output.size(-axis) != 1) return false;
    }
    const int64_t size = grad_input.numel() / planes;
    const auto word = static_cast<uint64_t>(4 * grad_input.element_size());
    if (size < 4 || grad_input.numel() % 4 != 0 || grad_input.numel() >= (int64_t{1} << 32) ||
        kernels::address(grad_input) % word != 0)
        return false;
    PoolGradientArgs args{};
    args.input = kernels::address(grad_input);
    args.output = kernels::address(grad_output);
    args.across = kernels::FastDivider(narrow(size));
    args.divisor = static_cast<float>(size);
    args.total = static_cast<uint32_t>(grad_input.numel() / 4);
    const uint32_t workgroup = kernels::flat_workgroup();
    gradient::avg_pool_spread.call({.workgroup = workgroup, .type = kernels::code(grad_input.scalar_type())})
        .read(grad_output)
        .write(grad_input)
        .dispatch(args, kernels::flat_grid(uint64_t{args.total}));
    return true;
}

void refuse(const char* op, const Tensor& tensor) {
    kernels::raise_not_implemented(tensor.scalar_type(), op);
}

}  // namespace

Windows Windows::fixed(int64_t spatial, c10::IntArrayRef kernel, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation) {
    Windows w;
    w.spatial = spatial;
    const auto at = [](c10::IntArrayRef values, int64_t i) {
        return values.size() == 1 ? values[0] : values[i];
    };
    for (int64_t i = 0; i < spatial; ++i) {
        const int64_t axis = 3 - spatial + i;
        w.kernel[axis] = at(kernel, i);
        w.stride[axis] = at(stride.empty() ? kernel : stride, i);
        w.padding[axis] = at(padding, i);
        w.dilation[axis] = at(dilation, i);
    }
    return w;
}

Windows Windows::adapting(int64_t spatial) {
    Windows w;
    w.spatial = spatial;
    w.adaptive = true;
    return w;
}

Tensor empty_pooled(const Tensor& input, int64_t spatial, c10::IntArrayRef sizes, at::ScalarType dtype) {
    using enum at::MemoryFormat;
    const auto options = input.options().dtype(dtype);
    if (spatial == 3 && input.dim() == 4 && input.unsqueeze(0).is_contiguous(ChannelsLast3d)) {
        at::DimVector batch{1};
        batch.append(sizes.begin(), sizes.end());
        return at::empty(batch, options.memory_format(ChannelsLast3d)).squeeze(0);
    }
    const bool is_batch = input.dim() == spatial + 2;
    return at::empty(sizes, options.memory_format(is_batch ? input.suggest_memory_format() : Contiguous));
}

void max_pool(const char* op, const Windows& windows, const Tensor& input, const Tensor& output,
              const Tensor& indices) {
    check_same_dtype_as(input, output);
    at::assert_no_internal_overlap(output);
    if (indices.defined()) at::assert_no_internal_overlap(indices);
    const auto type = input.scalar_type();
    const Compute compute = kernels::compute_of(type);
    if (type == at::kBool || compute == Compute::C64 || (compute == Compute::I64 && type != at::kLong))
        refuse(op, input);
    launch(compute == Compute::F32   ? shader::max_pool_f32
           : compute == Compute::I32 ? shader::max_pool_i32
                                     : shader::max_pool_i64,
           windows, {input, output, indices, false});
}

void max_pool_backward(const char* op, const Windows& windows, const Tensor& grad_output,
                       const Tensor& indices, const Tensor& grad_input) {
    check_same_dtype_as(grad_output, grad_input);
    check_dtype(at::kLong, indices);
    at::assert_no_internal_overlap(grad_input);
    if (!at::isFloatingType(grad_output.scalar_type())) refuse(op, grad_output);
    if (gather_words(windows, grad_output, indices, grad_input)) return;
    // A write for each output is less work than a search for each input, but only one output may write there.
    if (disjoint(windows) && plane_step(grad_input, windows.spatial) != 0) {
        Tensor(grad_input).zero_();
        if (grad_output.numel() == 0) return;
        launch(shader::max_pool_scatter, windows, {grad_input, grad_output, indices, true, true});
        return;
    }
    launch(shader::max_pool_backward, windows, {grad_input, grad_output, indices, true});
}

void max_pool_offsets_backward(const Windows& windows, const Tensor& grad_output, const Tensor& offsets,
                               const Tensor& grad_input) {
    if (gather_words(windows, grad_output, offsets, grad_input)) return;
    launch(shader::max_pool_backward, windows, {grad_input, grad_output, offsets, true});
}

void avg_pool(const char* op, const Windows& windows, const Tensor& input, const Tensor& output) {
    check_same_dtype_as(input, output);
    at::assert_no_internal_overlap(output);
    const Compute compute = kernels::compute_of(input.scalar_type());
    if (compute != Compute::F32 && input.scalar_type() != at::kLong) refuse(op, input);
    launch(compute == Compute::F32 ? shader::avg_pool_f32 : shader::avg_pool_i64, windows,
           {input, output, Tensor(), false});
}

void avg_pool_backward(const char* op, const Windows& windows, const Tensor& grad_output,
                       const Tensor& grad_input) {
    check_same_dtype_as(grad_output, grad_input);
    at::assert_no_internal_overlap(grad_input);
    if (!at::isFloatingType(grad_output.scalar_type())) refuse(op, grad_output);
    if (spread_words(windows, grad_output, grad_input)) return;
    if (gather_words(windows, grad_output, Tensor(), grad_input)) return;
    launch(shader::avg_pool_backward, windows, {grad_input, grad_output, Tensor(), true});
}

}  // namespace anymps::ops
