// Distances between rows: of two matrices (torch.cdist), of one matrix among themselves (torch.pdist).
#include <anymps/ops/distance_ops.h>
#include <anymps/shaders/distance.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_euclidean_dist.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>

#include <cmath>
#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "runtime/dispatch_time.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::distance;

uint32_t norm_of(double p) {
    if (p == 0) return shader::kZero;
    if (p == 1) return shader::kOne;
    if (p == 2) return shader::kTwo;
    return std::isinf(p) ? shader::kInfinite : shader::kAny;
}

// x1: [batch, rows1, columns], x2: [batch, rows2, columns], the others [batch, rows1, rows2]; contiguous
// floats.
void launch(const shader::DistanceKernel& kernel, const Tensor& out, const Tensor& x1, const Tensor& x2,
            const Tensor& grad, const Tensor& distance, double p) {
    const shader::DistanceArgs args{.out = kernels::address(out),
                                    .x1 = kernels::address(x1),
                                    .x2 = kernels::address(x2),
                                    .grad = kernels::address_or_0(grad),
                                    .distance = kernels::address_or_0(distance),
                                    .count = static_cast<uint64_t>(out.numel()),
                                    .rows1 = static_cast<uint32_t>(x1.size(1)),
                                    .rows2 = static_cast<uint32_t>(x2.size(1)),
                                    .columns = static_cast<uint32_t>(x1.size(2)),
                                    .p = static_cast<float>(p)};
    runtime::note_dispatch({.operations = 3.0 * x1.numel() * x2.size(1)});
    constexpr uint32_t kWorkgroup = 64;
    const bool wide = args.count > std::numeric_limits<uint32_t>::max();
    kernel.call({.workgroup = kWorkgroup, .norm = norm_of(p), .wide = wide})
        .read(x1)
        .read(x2)
        .read(grad)
        .read(distance)
        .write(out)
        .dispatch(args, kernels::flat_grid(args.count, kWorkgroup));
}

std::vector<int64_t> batch_of(const Tensor& x1, const Tensor& x2) {
    return at::infer_size(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
}

Tensor matrices(const Tensor& x, std::vector<int64_t> batch) {
    const int64_t count = c10::multiply_integers(batch);
    batch.insert(batch.end(), {x.size(-2), x.size(-1)});
    return x.expand(batch).reshape({count, x.size(-2), x.size(-1)}).contiguous();
}

void check_float(const char* op, const Tensor& self) {
    kernels::check_implemented(self.scalar_type() == at::kFloat, self.scalar_type(), op);
}

void check(const Tensor& x1, const Tensor& x2, double p) {
    TORCH_CHECK(x1.dim() >= 2, "cdist only supports at least 2D tensors, X1 got: ", x1.dim(), "D");
    TORCH_CHECK(x2.dim() >= 2, "cdist only supports at least 2D tensors, X2 got: ", x2.dim(), "D");
    TORCH_CHECK(x1.size(-1) == x2.size(-1),
                "X1 and X2 must have the same number of columns. X1: ", x1.size(-1), " X2: ", x2.size(-1));
    TORCH_CHECK(at::isFloatingType(x1.scalar_type()),
                "cdist only supports floating-point dtypes, X1 got: ", x1.scalar_type());
    TORCH_CHECK(at::isFloatingType(x2.scalar_type()),
                "cdist only supports floating-point dtypes, X2 got: ", x2.scalar_type());
    TORCH_CHECK(p >= 0, "cdist only supports non-negative p values");
    check_float("cdist", x1);
    check_float("cdist", x2);
}

}  // namespace

// compute_mode 1: Euclidean distances by a matrix product always; 2: never; else from 26 rows on.
Tensor ANYMPS_FUNC(_cdist_forward)(const Tensor& x1, const Tensor& x2, double p,
                                   std::optional<int64_t> compute_mode) {
    check(x1, x2, p);
    const int64_t mode = compute_mode.value_or(0);
    TORCH_CHECK(mode >= 0 && mode <= 2, "possible modes: 0, 1, 2, but was: ", mode);
    auto shape = batch_of(x1, x2);
    const Tensor a = matrices(x1, shape), b = matrices(x2, shape);
    shape.insert(shape.end(), {x1.size(-2), x2.size(-2)});
    const Tensor out = at::empty(shape, x1.options());
    if (out.numel() == 0) return out;
    if (x1.size(-1) == 0) return out.zero_();
    if (p == 2 && (mode == 1 || (mode == 0 && (x1.size(-2) > 25 || x2.size(-2) > 25)))) {
        return at::_euclidean_dist(a, b).view(shape);
    }
    launch(shader::distances, out, a, b, {}, {}, p);
    return out;
}

Tensor ANYMPS_FUNC(_cdist_backward)(const Tensor& grad, const Tensor& x1, const Tensor& x2, double p,
                                    const Tensor& cdist) {
    auto shape = batch_of(x1, x2);
    const Tensor a = matrices(x1, shape), b = matrices(x2, shape);
    shape.insert(shape.end(), {x1.size(-2), x1.size(-1)});
    const Tensor out = at::empty(shape, x1.options());
    // Of the shape of x1, as the meta kernel and the CPU have it: a batch of none has nothing to sum.
    if (out.numel() == 0 || x2.size(-2) == 0) return at::zeros_like(x1, at::MemoryFormat::Contiguous);
    const std::vector<int64_t> pairs{a.size(0), a.size(1), b.size(1)};
    const Tensor grads = grad.expand_as(cdist).reshape(pairs).contiguous();
    launch(shader::distances_backward, out, a, b, grads, cdist.reshape(pairs).contiguous(), p);
    return out;
}

// self: [rows, columns], contiguous; returns the rows * (rows - 1) / 2 distances of pairs.
Tensor ANYMPS_FUNC(_pdist_forward)(const Tensor& self, double p) {
    TORCH_CHECK(self.is_contiguous(), "_pdist_forward requires contiguous input");
    check_float("pdist", self);
    const int64_t rows = self.size(0);
    const Tensor out = at::empty({rows * (rows - 1) / 2}, self.options());
    if (out.numel() == 0) return out;
    if (self.size(1) == 0) return out.zero_();
    launch(shader::pair_distances, out, self.unsqueeze(0), self.unsqueeze(0), {}, {}, p);
    return out;
}

Tensor ANYMPS_FUNC(_pdist_backward)(const Tensor& grad, const Tensor& self, double p, const Tensor& pdist) {
    TORCH_CHECK(self.is_contiguous(), "_pdist_backward requires self to be contiguous");
    TORCH_CHECK(pdist.is_contiguous(), "_pdist_backward requires pdist to be contiguous");
    check_float("pdist_backward", self);
    const Tensor out = at::empty_like(self, at::MemoryFormat::Contiguous);
    if (out.numel() == 0 || pdist.numel() == 0) return out.zero_();
    launch(shader::pair_distances_backward, out, self.unsqueeze(0), self.unsqueeze(0), grad.contiguous(),
           pdist, p);
    return out;
}

}  // namespace anymps::ops
