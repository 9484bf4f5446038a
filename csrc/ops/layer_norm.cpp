// Layer norm and RMS norm with their gradients.
#include <ATen/mps/EmptyTensor.h>
#include <ATen/native/layer_norm.h>
#include <anymps/ops/layer_norm_ops.h>
#include <anymps/ops/reduction_rows.h>
#include <anymps/shaders/layer_norm.h>
#include <anymps/shaders/layer_norm_gradients.h>
#include <anymps/shaders/layer_norm_rows.h>

#include <algorithm>
#include <limits>

#include "kernels/launch_config.h"
#include "kernels/row_launcher.h"
#include "ops/check_real.h"
#include "runtime/device.h"
#include "vulkan/instance.h"

namespace anymps::ops {

namespace {

constexpr auto kWrite = kernels::RowTensor::kWrite;
using Shape = c10::SmallVector<int64_t, 6>;

Tensor empty_as(const Tensor& like, IntArrayRef shape, ScalarType dtype) {
    return Tensor(at::detail::empty_mps(shape, like.options().dtype(dtype)));
}

Tensor optional(const std::optional<Tensor>& tensor) {
    return tensor ? *tensor : Tensor();
}

// The normalised dimensions as one, behind the others; a copy only where strides do not allow it.
class Rows {
  public:
    Rows(const Tensor& input, IntArrayRef normalized_shape) : axis_(input.dim() - normalized_shape.size()) {
        const auto sizes = input.sizes();
        shape_.assign(sizes.begin(), sizes.begin() + axis_);
        stat_shape_ = shape_;
        stat_shape_.resize(static_cast<size_t>(input.dim()), 1);
        shape_.push_back(c10::multiply_integers(normalized_shape));
    }

    int64_t axis() const { return axis_; }
    int64_t size() const { return shape_.back(); }
    IntArrayRef stat_shape() const { return stat_shape_; }

    Tensor rows(const Tensor& tensor) const {
        return tensor.dim() == axis_ + 1 ? tensor : tensor.reshape(shape_);
    }
    // One element a row.
    Tensor statistic(const Tensor& tensor) const {
        Shape one(shape_);
        one.back() = 1;
        return tensor.reshape(one).expand(shape_);
    }
    // Elements of a row, the same for all; undefined stays.
    Tensor parameter(const Tensor& tensor) const {
        return tensor.defined() ? tensor.reshape({shape_.back()}).expand(shape_) : tensor;
    }
    // Sums over all rows.
    kernels::DimMask all_rows() const { return kernels::DimMask((uint64_t{1} << axis_) - 1); }

  private:
    int64_t axis_;
    Shape shape_;       // rows..., elements
    Shape stat_shape_;  // rows..., 1...
};

// Dtypes of parameters: those of the input, or float32 for all of them.
void check_mixed(const Tensor& input, const Tensor& weight, const Tensor& bias) {
    for (const Tensor& parameter : {weight, bias}) {
        TORCH_CHECK(!parameter.defined() || parameter.scalar_type() == input.scalar_type() ||
                        parameter.scalar_type() == at::kFloat,
                    "mixed dtype (CPU): expect parameter to have scalar type of Float");
    }
}

// Rows of words of 16 bytes that lanes of a subgroup keep in registers; false elsewhere.
bool forward_vectorized(const Tensor& input, int64_t size, const Tensor& weight, const Tensor& bias,
                        double eps, const Tensor& out, const Tensor& mean, const Tensor& rstd) {
    constexpr uint32_t kThreads = 128, kMaxWords = 8;
    const auto& t = kernels::launch_config();
    const auto type = input.scalar_type();
    const int64_t word = kernels::floats_of_word(type);  // elements
    if (t.software || input.numel() == 0 || word == 0) return false;
    if (size % word != 0 || size > kMaxWords * word * t.subgroup || input.numel() / size > UINT32_MAX)
        return false;
    for (const Tensor* tensor : {&input, &out, &weight, &bias}) {
        if (tensor->defined() && (!tensor->is_contiguous() || tensor->scalar_type() != type ||
                                  kernels::address(*tensor) % 16 != 0))
            return false;
    }
    for (const Tensor* tensor : {&mean, &rstd}) {
        if (tensor->defined() && (!tensor->is_contiguous() || tensor->scalar_type() != at::kFloat))
            return false;
    }
    const shaders::layer_norm_rows::NormRows args{.x = kernels::address(input),
                                                  .y = kernels::address(out),
                                                  .weight = kernels::address_or_0(weight),
                                                  .bias = kernels::address_or_0(bias),
                                                  .mean = kernels::address_or_0(mean),
                                                  .rstd = kernels::address(rstd),
                                                  .rows = static_cast<uint32_t>(input.numel() / size),
                                                  .size = static_cast<uint32_t>(size),
                                                  .eps = static_cast<float>(eps)};
    const uint32_t threads = std::max(kThreads, t.subgroup);
    const auto words = static_cast<uint32_t>(kernels::ceil_div(size / word, t.subgroup));
    const uint32_t affine = (weight.defined() ? 1u : 0u) | (bias.defined() ? 2u : 0u);
    (type == at::kFloat ? shaders::layer_norm_rows::layer_norm_rows_f32
                        : shaders::layer_norm_rows::layer_norm_rows_16)
        .call({.workgroup = threads,
               .subgroup = t.subgroup,
               .type0 = kernels::code(type),
               .lanes = t.subgroup,
               .cached = words,
               .rms = !mean.defined(),
               .affine = affine})
        .read(input)
        .read(weight)
        .read(bias)
        .write(out)
        .write(mean)
        .write(rstd)
        .dispatch(args, kernels::Grid::linear(kernels::ceil_div(args.rows, threads / t.subgroup)));
    return true;
}

void forward(const Tensor& input, const Rows& rows, const Tensor& weight, const Tensor& bias, double eps,
             const Tensor& out, const Tensor& mean, const Tensor& rstd) {
    if (forward_vectorized(input, rows.size(), weight, bias, eps, out, mean, rstd)) return;
    const bool rms = !mean.defined();
    const uint32_t affine = (weight.defined() ? 1u : 0u) | (bias.defined() ? 2u : 0u);
    const Tensor x = rows.rows(input), y = rows.rows(out), w = rows.parameter(weight),
                 b = rows.parameter(bias);
    const Tensor m = rms ? mean : rows.statistic(mean), r = rows.statistic(rstd);
    kernels::launch_rows(shaders::layer_norm::layer_norm_forward, rows.axis(),
                         {{x}, {y, kWrite}, {w}, {b}, {m, kWrite, true}, {r, kWrite, true}},
                         {static_cast<float>(eps)}, {.rms = rms, .affine = affine});
}

void backward_input(const Tensor& grad, const Tensor& input, const Rows& rows, const Tensor& mean,
                    const Tensor& rstd, const Tensor& weight, const Tensor& grad_input) {
    const bool rms = !mean.defined();
    const Tensor g = rows.rows(grad), x = rows.rows(input), dx = rows.rows(grad_input),
                 w = rows.parameter(weight);
    const Tensor m = rms ? mean : rows.statistic(mean), r = rows.statistic(rstd);
    kernels::launch_rows(shaders::layer_norm::layer_norm_backward, rows.axis(),
                         {{g}, {x}, {dx, kWrite}, {w}, {m, {}, true}, {r, {}, true}}, {},
                         {.rms = rms, .affine = weight.defined()});
}

// All gradients in one reading, where rows are contiguous words that a team of lanes can keep; false
// elsewhere.
bool backward_at_once(const Tensor& grad, const Tensor& input, int64_t size, const Tensor& mean,
                      const Tensor& rstd, const Tensor& weight, const Tensor& grad_input,
                      const Tensor& grad_weight, const Tensor& grad_bias) {
    // Few registers a thread, so that four workgroups of 128 threads run a core: 64 lanes a row.
    constexpr uint32_t kMaxElements = 1024, kLanes = 64, kThreads = 128, kGroupsPerComputeUnit = 4, kSide = 4;
    constexpr int64_t kMinRows = 1024;
    const auto& t = kernels::launch_config();
    const int64_t rows = size == 0 ? 0 : input.numel() / size;
    if (t.software || !grad_input.defined() || rows < kMinRows || rows > UINT32_MAX / 2 || size % 4 != 0 ||
        size > kMaxElements)
        return false;
    for (const Tensor* tensor : {&grad, &input, &grad_input, &weight, &mean, &rstd}) {
        if (!tensor->defined()) continue;
        const auto word = static_cast<uint64_t>(4 * tensor->element_size());
        if (!tensor->is_contiguous() || kernels::address(*tensor) % word != 0) return false;
    }
    const auto type = input.scalar_type();
    const Tensor& parameter = grad_weight.defined() ? grad_weight : grad_bias;
    for (const Tensor* tensor : {&weight, &grad_weight, &grad_bias})
        if (tensor->defined() && tensor->scalar_type() != parameter.scalar_type()) return false;
    for (const Tensor* tensor : {&mean, &rstd})
        if (tensor->defined() && tensor->scalar_type() != at::kFloat) return false;
    if (grad.scalar_type() != type || grad_input.scalar_type() != type) return false;
    const bool rms = !mean.defined();
    const int64_t columns = rms ? size : 2 * size;
    const uint32_t threads = std::max(kThreads, t.subgroup);
    // Subgroups of a row; of one where each of its lanes has a word at most.
    const uint32_t share = size <= 4 * t.subgroup ? 1 : std::max(1u, kLanes / t.subgroup);
    const uint32_t lanes = share * t.subgroup;
    const auto groups = static_cast<uint32_t>(
        std::min<uint64_t>(kGroupsPerComputeUnit * runtime::device_info().compute_units(),
                           kernels::ceil_div(rows, threads / lanes)));
    const Tensor partials = empty_as(input, {groups, columns}, at::kFloat);
    const auto words = static_cast<uint32_t>(kernels::ceil_div(size, 4 * lanes));
    const uint32_t parameter_type = kernels::code(parameter.scalar_type());
    namespace gradients = shaders::layer_norm_gradients;
    const gradients::GradientArgs args{.grad = kernels::address(grad),
                                       .x = kernels::address(input),
                                       .out = kernels::address(grad_input),
                                       .weight = kernels::address_or_0(weight),
                                       .mean = kernels::address_or_0(mean),
                                       .rstd = kernels::address(rstd),
                                       .partials = kernels::address(partials),
                                       .rows = static_cast<uint32_t>(rows),
                                       .size = static_cast<uint32_t>(size),
                                       .groups = groups};
    gradients::layer_norm_gradients
        .call({.workgroup = threads,
               .subgroup = t.subgroup,
               .type = kernels::code(type),
               .weight_type = parameter_type,
               .weight = weight.defined(),
               .rms = rms,
               .words = words,
               .share = share})
        .read(grad)
        .read(input)
        .read(weight)
        .read(mean)
        .read(rstd)
        .write(grad_input)
        .write(partials)
        .dispatch(args, kernels::Grid::linear(groups));
    const gradients::SumArgs sum{.partials = kernels::address(partials),
                                 .weight = kernels::address_or_0(grad_weight),
                                 .bias = kernels::address_or_0(grad_bias),
                                 .groups = groups,
                                 .size = static_cast<uint32_t>(size)};
    gradients::layer_norm_gradient_sums
        .call({.workgroup = t.workgroup, .subgroup = t.subgroup, .weight_type = parameter_type, .rms = rms})
        .read(partials)
        .write(grad_weight)
        .write(grad_bias)
        .dispatch(sum, kernels::Grid::linear(kernels::ceil_div(columns, 4 * kSide)));
    return true;
}

}  // namespace

// -> (output, mean, rstd); the statistics have size 1 in the normalised dimensions and are float32 whatever
// the input.
std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(native_layer_norm)(const Tensor& input,
                                                                  IntArrayRef normalized_shape,
                                                                  const std::optional<Tensor>& weight_opt,
                                                                  const std::optional<Tensor>& bias_opt,
                                                                  double eps) {
    const Tensor weight = optional(weight_opt), bias = optional(bias_opt);
    at::native::_check_layer_norm_inputs(input, normalized_shape, weight, bias);
    check_mixed(input, weight, bias);
    check_real("LayerNormKernelImpl", input);
    const Rows rows(input, normalized_shape);
    Tensor out = empty_as(input, input.sizes(), input.scalar_type());
    Tensor mean = empty_as(input, rows.stat_shape(), at::kFloat);
    Tensor rstd = empty_as(input, rows.stat_shape(), at::kFloat);
    forward(input, rows, weight, bias, eps, out, mean, rstd);
    return {out, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(native_layer_norm_backward)(
    const Tensor& grad_out, const Tensor& input, IntArrayRef normalized_shape, const Tensor& mean,
    const Tensor& rstd, const std::optional<Tensor>& weight_opt, const std::optional<Tensor>& bias_opt,
    std::array<bool, 3> output_mask) {
    const Tensor weight = optional(weight_opt), bias = optional(bias_opt);
    const Rows rows(input, normalized_shape);
    Tensor grad_input, grad_weight, grad_bias;
    if (output_mask[0]) grad_input = empty_as(input, input.sizes(), input.scalar_type());
    if (output_mask[1])
        grad_weight = empty_as(input, normalized_shape, (weight.defined() ? weight : input).scalar_type());
    if (output_mask[2])
        grad_bias = empty_as(input, normalized_shape, (bias.defined() ? bias : input).scalar_type());
    const bool parameters = output_mask[1] || output_mask[2];
    if (parameters && backward_at_once(grad_out, input, c10::multiply_integers(normalized_shape), mean, rstd,
                                       weight, grad_input, grad_weight, grad_bias))
        return {grad_input, grad_weight, grad_bias};
    if (output_mask[0]) backward_input(grad_out, input, rows, mean, rstd, weight, grad_input);
    if (parameters) {
        const auto flat = [](const Tensor& t) { return t.defined() ? t.view({-1}) : t; };
        kernels::reduce(rows::norm_gradients,
                        {rows.rows(grad_out), rows.rows(input), rows.statistic(mean), rows.statistic(rstd)},
                        rows.all_rows(), {flat(grad_weight), flat(grad_bias)});
    }
    return {grad_input, grad_weight, grad_bias};
}

// -> (output, rstd), rstd as in native_layer_norm. Without eps: that of float32.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_fused_rms_norm)(const Tensor& input, IntArrayRef normalized_shape,
                                                        const std::optional<Tensor>& weight_opt,
                                                        std::optional<double> eps) {
    const Tensor weight = optional(weight_opt);
    at::native::_check_rms_norm_inputs_symint(input, c10::fromIntArrayRefSlow(normalized_shape), weight);
    const Rows rows(input, normalized_shape);
    Tensor out = empty_as(input, input.sizes(), input.scalar_type());
    Tensor rstd = empty_as(input, rows.stat_shape(), at::kFloat);
    forward(input, rows, weight, Tensor(), eps.value_or(std::numeric_limits<float>::epsilon()), out, Tensor(),
            rstd);
    return {out, rstd};
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(_fused_rms_norm_backward)(const Tensor& grad_out, const Tensor& input,
                                                                 IntArrayRef normalized_shape,
                                                                 const Tensor& rstd,
                                                                 const std::optional<Tensor>& weight_opt,
                                                                 std::array<bool, 2> output_mask) {
    const Tensor weight = optional(weight_opt);
    const Rows rows(input, normalized_shape);
    Tensor grad_input, grad_weight;
    const bool parameter = output_mask[1] && weight.defined();
    if (output_mask[0]) grad_input = empty_as(input, input.sizes(), input.scalar_type());
    if (parameter) grad_weight = empty_as(input, normalized_shape, weight.scalar_type());
    if (parameter && backward_at_once(grad_out, input, c10::multiply_integers(normalized_shape), Tensor(),
                                      rstd, weight, grad_input, grad_weight, Tensor()))
        return {grad_input, grad_weight};
    if (output_mask[0]) backward_input(grad_out, input, rows, Tensor(), rstd, weight, grad_input);
    if (parameter) {
        kernels::reduce(rows::rms_norm_gradient,
                        {rows.rows(grad_out), rows.rows(input), rows.statistic(rstd)}, rows.all_rows(),
                        {grad_weight.view({-1})});
    }
    return {grad_input, grad_weight};
}

}  // namespace anymps::ops
