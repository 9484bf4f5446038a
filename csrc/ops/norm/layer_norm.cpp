// Layer norm and RMS norm with their gradients.
#include <ATen/mps/EmptyTensor.h>
#include <ATen/native/layer_norm.h>
#include <anymps/ops/norm/layer_norm_ops.h>
#include <anymps/ops/reduction_rows.h>
#include <anymps/shaders/norm/layer_norm.h>
#include <anymps/shaders/norm/layer_norm_gradients.h>
#include <anymps/shaders/norm/layer_norm_rows.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/launch_config.h"
#include "kernels/route.h"
#include "kernels/row_launcher.h"
#include "ops/norm/norm_dtypes.h"
#include "ops/norm/norm_routes.h"
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

// Without mean: RMS norm. Parameters that are undefined are left out.
struct NormForward {
    const Tensor& input;
    const Rows& rows;
    const Tensor &weight, &bias;
    double eps;
    const Tensor &out, &mean, &rstd;

    uint32_t affine() const { return (weight.defined() ? 1u : 0u) | (bias.defined() ? 2u : 0u); }
};

LayerNormProblem problem_of(const NormForward& c) {
    const auto type = c.input.scalar_type();
    const auto in_vectors = [&](const Tensor* t) {
        return !t->defined() ||
               (t->is_contiguous() && t->scalar_type() == type && kernels::address(*t) % 16 == 0);
    };
    const auto is_statistic = [](const Tensor* t) {
        return !t->defined() || (t->is_contiguous() && t->scalar_type() == at::kFloat);
    };
    const auto size = static_cast<uint64_t>(c.rows.size());
    return {.type = type,
            .rows = size == 0 ? 0 : static_cast<uint64_t>(c.input.numel()) / size,
            .size = size,
            .contiguous_vectors =
                std::ranges::all_of(std::array{&c.input, &c.out, &c.weight, &c.bias}, in_vectors),
            .float_statistics = std::ranges::all_of(std::array{&c.mean, &c.rstd}, is_statistic)};
}

// Rows of vectors of 16 bytes that lanes of a subgroup keep in registers.
bool fits_a_subgroup(const LayerNormProblem& p, const kernels::RouteDevice& t) {
    constexpr uint64_t kMaxVectors = shaders::layer_norm_rows::kMaxVectors;
    const uint64_t width = kernels::floats_per_vector(p.type);  // elements
    if (t.software || p.rows * p.size == 0 || width == 0) return false;
    return p.size % width == 0 && p.size <= kMaxVectors * width * t.subgroup && p.rows <= UINT32_MAX &&
           p.contiguous_vectors && p.float_statistics;
}

void launch_subgroup(const LayerNormProblem&, const NormForward& p) {
    constexpr uint32_t kThreads = 128;
    const auto& [input, rows, weight, bias, eps, out, mean, rstd] = p;
    const auto& t = kernels::launch_config();
    const auto type = input.scalar_type();
    const int64_t width = kernels::floats_per_vector(type), size = rows.size();
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
    const auto vectors = static_cast<uint32_t>(kernels::ceil_div(size / width, t.subgroup));
    (type == at::kFloat ? shaders::layer_norm_rows::layer_norm_rows_f32
                        : shaders::layer_norm_rows::layer_norm_rows_16)
        .call({.workgroup = threads,
               .subgroup = t.subgroup,
               .type0 = kernels::code(type),
               .lanes = t.subgroup,
               .cached = vectors,
               .rms = !mean.defined(),
               .affine = p.affine()})
        .read(input)
        .read(weight)
        .read(bias)
        .write(out)
        .write(mean)
        .write(rstd)
        .dispatch(args, kernels::Grid::linear(kernels::ceil_div(args.rows, threads / t.subgroup)));
}

void launch_row_team(const LayerNormProblem&, const NormForward& p) {
    const auto& [input, rows, weight, bias, eps, out, mean, rstd] = p;
    const bool rms = !mean.defined();
    const Tensor x = rows.rows(input), y = rows.rows(out), w = rows.parameter(weight),
                 b = rows.parameter(bias);
    const Tensor m = rms ? mean : rows.statistic(mean), r = rows.statistic(rstd);
    kernels::launch_rows(shaders::layer_norm::layer_norm_forward, rows.axis(),
                         {{x}, {y, kWrite}, {w}, {b}, {m, kWrite, true}, {r, kWrite, true}},
                         {static_cast<float>(eps)}, {.rms = rms, .affine = p.affine()});
}

constexpr kernels::Route<LayerNormProblem, const NormForward> kForward[] = {
    {"persistent_subgroup", fits_a_subgroup, launch_subgroup},
    {"row_team", kernels::always, launch_row_team},
};

// Gradients that are undefined are not asked for. Without mean: RMS norm, which has no bias.
struct NormBackward {
    const Tensor &grad, &input;
    const Rows& rows;
    const Tensor &mean, &rstd, &weight;
    const Tensor &grad_input, &grad_weight, &grad_bias;

    bool parameters() const { return grad_weight.defined() || grad_bias.defined(); }
};

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

LayerNormGradients problem_of(const NormBackward& c) {
    const auto type = c.input.scalar_type();
    const Tensor& parameter = c.grad_weight.defined() ? c.grad_weight : c.grad_bias;
    const auto in_vectors = [](const Tensor* t) {
        return !t->defined() || (t->is_contiguous() && kernels::address(*t) % (4 * t->element_size()) == 0);
    };
    const auto has_type = [](const Tensor& t, ScalarType wanted) {
        return !t.defined() || t.scalar_type() == wanted;
    };
    const auto is_parameter = [&](const Tensor& t) {
        return !t.defined() || t.scalar_type() == parameter.scalar_type();
    };
    const auto size = static_cast<uint64_t>(c.rows.size());
    const std::array tensors{&c.grad, &c.input, &c.grad_input, &c.weight, &c.mean, &c.rstd};
    return {.type = type,
            .rows = size == 0 ? 0 : static_cast<uint64_t>(c.input.numel()) / size,
            .size = size,
            .input = c.grad_input.defined(),
            .parameters = c.parameters(),
            .contiguous_vectors = std::ranges::all_of(tensors, in_vectors),
            .same_types = c.parameters() && is_parameter(c.weight) && is_parameter(c.grad_weight) &&
                          is_parameter(c.grad_bias) && has_type(c.mean, at::kFloat) &&
                          has_type(c.rstd, at::kFloat) && has_type(c.grad, type) &&
                          has_type(c.grad_input, type)};
}

// All gradients in one reading, where rows are contiguous words that a team of lanes can keep.
bool fits_a_team(const LayerNormGradients& p, const kernels::RouteDevice& t) {
    constexpr uint64_t kMaxElements = 1024;
    return !t.software && p.parameters && p.input && p.rows >= t.costs().norm_gradients_min_rows &&
           p.rows <= UINT32_MAX / 2 && p.size % 4 == 0 && p.size <= kMaxElements && p.contiguous_vectors &&
           p.same_types;
}

void launch_at_once(const LayerNormGradients&, const NormBackward& p) {
    // Few registers a thread, so that four workgroups of 128 threads run a core: 64 lanes a row.
    constexpr uint32_t kLanes = 64, kThreads = 128, kGroupsPerComputeUnit = 4, kSide = 4;
    const auto& [grad, input, shape, mean, rstd, weight, grad_input, grad_weight, grad_bias] = p;
    const auto& t = kernels::launch_config();
    const int64_t size = shape.size(), rows = input.numel() / size;
    const auto type = input.scalar_type();
    const Tensor& parameter = grad_weight.defined() ? grad_weight : grad_bias;
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
}

void launch_each(const LayerNormGradients&, const NormBackward& p) {
    const Rows& rows = p.rows;
    if (p.grad_input.defined()) backward_input(p.grad, p.input, rows, p.mean, p.rstd, p.weight, p.grad_input);
    if (!p.parameters()) return;
    const auto flat = [](const Tensor& t) { return t.defined() ? t.view({-1}) : t; };
    const Tensor grad = rows.rows(p.grad), input = rows.rows(p.input), rstd = rows.statistic(p.rstd);
    if (p.mean.defined()) {
        kernels::reduce(rows::norm_gradients, {grad, input, rows.statistic(p.mean), rstd}, rows.all_rows(),
                        {flat(p.grad_weight), flat(p.grad_bias)});
    } else {
        kernels::reduce(rows::rms_norm_gradient, {grad, input, rstd}, rows.all_rows(), {flat(p.grad_weight)});
    }
}

constexpr kernels::Route<LayerNormGradients, const NormBackward> kBackward[] = {
    {"at_once", fits_a_team, launch_at_once},
    {"row_team, reduce", kernels::always, launch_each},
};

}  // namespace

std::string to_text(const LayerNormProblem& p) {
    return c10::str(p.type, " ", p.rows, " rows of ", p.size);
}

std::string to_text(const LayerNormGradients& p) {
    return c10::str("backward ", p.type, " ", p.rows, " rows of ", p.size);
}

const char* layer_norm_route(const LayerNormProblem& problem, const kernels::RouteDevice& device) {
    return first_route(kForward, problem, device).name;
}

const char* layer_norm_backward_route(const LayerNormGradients& problem, const kernels::RouteDevice& device) {
    return first_route(kBackward, problem, device).name;
}

// -> (output, mean, rstd); the statistics have size 1 in the normalised dimensions and are float32 whatever
// the input.
std::tuple<Tensor, Tensor, Tensor> ANYMPS_FUNC(native_layer_norm)(const Tensor& input,
                                                                  IntArrayRef normalized_shape,
                                                                  const std::optional<Tensor>& weight_opt,
                                                                  const std::optional<Tensor>& bias_opt,
                                                                  double eps) {
    const Tensor weight = optional(weight_opt), bias = optional(bias_opt);
    at::native::_check_layer_norm_inputs(input, normalized_shape, weight, bias);
    check_norm_dtypes(input, {weight, bias});
    kernels::check_floating(input.scalar_type(), "LayerNormKernelImpl");
    const Rows rows(input, normalized_shape);
    Tensor out = empty_as(input, input.sizes(), input.scalar_type());
    Tensor mean = empty_as(input, rows.stat_shape(), at::kFloat);
    Tensor rstd = empty_as(input, rows.stat_shape(), at::kFloat);
    const NormForward call{input, rows, weight, bias, eps, out, mean, rstd};
    kernels::launch_first("layer_norm", kForward, problem_of(call), call);
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
    const NormBackward call{grad_out, input, rows, mean, rstd, weight, grad_input, grad_weight, grad_bias};
    kernels::launch_first("layer_norm", kBackward, problem_of(call), call);
    return {grad_input, grad_weight, grad_bias};
}

// -> (output, rstd), rstd as in native_layer_norm. Without eps: that of float32.
std::tuple<Tensor, Tensor> ANYMPS_FUNC(_fused_rms_norm)(const Tensor& input, IntArrayRef normalized_shape,
                                                        const std::optional<Tensor>& weight_opt,
                                                        std::optional<double> eps) {
    const Tensor weight = optional(weight_opt);
    at::native::_check_rms_norm_inputs_symint(input, c10::fromIntArrayRefSlow(normalized_shape), weight);
    kernels::check_floating(input.scalar_type(), "rms_norm");
    const Rows rows(input, normalized_shape);
    Tensor out = empty_as(input, input.sizes(), input.scalar_type());
    Tensor rstd = empty_as(input, rows.stat_shape(), at::kFloat);
    const Tensor none;
    const double epsilon = eps.value_or(std::numeric_limits<float>::epsilon());
    const NormForward call{input, rows, weight, none, epsilon, out, none, rstd};
    kernels::launch_first("rms_norm", kForward, problem_of(call), call);
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
    const Tensor none;
    const NormBackward call{grad_out, input, rows, none, rstd, weight, grad_input, grad_weight, none};
    kernels::launch_first("rms_norm", kBackward, problem_of(call), call);
    return {grad_input, grad_weight};
}

}  // namespace anymps::ops
