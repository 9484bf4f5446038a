// Indices drawn at random: multinomial and randperm.
#include <anymps/ops/random/sampling_ops.h>
#include <anymps/shaders/random/sampling.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include "kernels/flat_grid.h"
#include "runtime/generator.h"

namespace anymps::ops {
namespace {

using kernels::Grid;
namespace shader = shaders::sampling;

// Part of the numerical contract: the order of additions, and so the samples of a seed, depend on it.
constexpr uint32_t kCumulativeWorkgroup = 64;
constexpr uint32_t kSampleWorkgroup = 64;
constexpr int64_t kMaxCategories = int64_t{1} << 24;  // what a float counts

// The sums of each row's first weights, f32. Raises RuntimeError for weights that are no distribution.
Tensor cumulative_weights(const Tensor& weights, int64_t rows, int64_t columns) {
    Tensor cumulative = at::empty({rows, columns}, weights.options().dtype(at::kFloat));
    Tensor status = at::zeros({}, weights.options().dtype(at::kInt));
    shader::cumulative_weights
        .call({.workgroup = kCumulativeWorkgroup, .type = kernels::code(weights.scalar_type())})
        .read(weights)
        .write(cumulative)
        .write(status)
        .dispatch({.cumulative = kernels::address(cumulative),
                   .weights = kernels::address(weights),
                   .status = kernels::address(status),
                   .rows = static_cast<uint32_t>(rows),
                   .columns = static_cast<uint32_t>(columns)},
                  Grid::linear(rows));
    const auto problems = static_cast<uint32_t>(status.item<int>());
    TORCH_CHECK(!(problems & shader::kInvalidWeight),
                "probability tensor contains either `inf`, `nan` or element < 0");
    TORCH_CHECK(!(problems & shader::kEmptyRow),
                "invalid multinomial distribution (sum of probabilities <= 0)");
    return cumulative;
}

void sample_with_replacement(const Tensor& out, const Tensor& weights, const Tensor& cumulative,
                             int64_t per_row, const std::optional<Generator>& generator) {
    const auto samples = static_cast<uint64_t>(out.numel());
    shader::sample_with_replacement
        .call({.workgroup = kSampleWorkgroup, .type = kernels::code(weights.scalar_type())})
        .read(cumulative)
        .read(weights)
        .write(out)
        .dispatch({.out = kernels::address(out),
                   .cumulative = kernels::address(cumulative),
                   .weights = kernels::address(weights),
                   .random = runtime::reserve_philox(generator, samples),
                   .samples = samples,
                   .per_row = static_cast<uint32_t>(per_row),
                   .columns = static_cast<uint32_t>(cumulative.size(1))},
                  kernels::flat_grid(samples, kSampleWorkgroup));
}

}  // namespace

// Indices of the last dimension of weights `self` [n] or [m, n], int64 [num_samples] or [m, num_samples].
// Waits for the device once: weights that are no distribution raise here, as on the CPU.
Tensor& ANYMPS_FUNC(multinomial_out)(const Tensor& self, int64_t num_samples, bool replacement,
                                     std::optional<Generator> generator, Tensor& out) {
    TORCH_CHECK(out.device() == self.device(), "multinomial arguments must have the same device");
    runtime::check_drawn_device(self);
    TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
    TORCH_CHECK(at::isFloatingType(self.scalar_type()),
                "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
    TORCH_CHECK(out.scalar_type() == at::kLong,
                "multinomial expects Long tensor out, got: ", out.scalar_type());
    TORCH_CHECK(num_samples > 0, "cannot sample n_sample <= 0 samples");
    const int64_t columns = self.size(-1);
    TORCH_CHECK(replacement || num_samples <= columns,
                "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
    TORCH_CHECK(columns <= kMaxCategories, "number of categories cannot exceed 2^24");
    const int64_t rows = self.dim() == 1 ? 1 : self.size(0);
    self.dim() == 1 ? out.resize_({num_samples}) : out.resize_({rows, num_samples});
    if (out.numel() == 0) return out;
    TORCH_CHECK(columns > 0, "invalid multinomial distribution (sum of probabilities <= 0)");

    const Tensor weights = self.contiguous();
    const Tensor cumulative = cumulative_weights(weights, rows, columns);
    if (!replacement && num_samples > 1) {
        // The largest of weight / exponential number is drawn by weight; the largest k are k draws without
        // replacement.
        const Tensor race =
            at::empty_like(weights, weights.options().dtype(at::kFloat)).exponential_(1, generator);
        out.copy_(std::get<1>(at::topk(at::div(weights, race), num_samples, -1)));
        return out;
    }
    const Tensor dense = out.is_contiguous() ? out : at::empty_like(out, at::MemoryFormat::Contiguous);
    sample_with_replacement(dense, weights, cumulative, num_samples, generator);
    if (!dense.is_same(out)) out.copy_(dense);
    return out;
}

ANYMPS_ROW(multinomial, multinomial_out(self, num_samples, replacement, std::move(generator),
                                        NewTensor(self.options().dtype(at::kLong))))

// A permutation of 0..n-1: the order of n random 63-bit keys.
Tensor& ANYMPS_FUNC(randperm_generator_out)(int64_t n, std::optional<Generator> generator, Tensor& out) {
    TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
    at::native::check_supported_max_int_with_precision(n, out);
    out.resize_({n});
    at::assert_no_internal_overlap(out);
    if (n == 0) return out;
    const Tensor keys = at::empty({n}, out.options().dtype(at::kLong)).random_(generator);
    out.copy_(std::get<1>(at::sort(keys)));
    return out;
}

}  // namespace anymps::ops
