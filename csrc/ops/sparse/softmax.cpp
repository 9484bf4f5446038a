// Softmax over the elements that a tensor in coordinates has; the others count as minus infinity.
#include <anymps/ops/sparse/softmax_ops.h>

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "kernels/check_dtype.h"
#include "ops/sparse/coordinates.h"
#include "ops/sparse/markers.h"

namespace anymps::ops {
namespace {

// The elements that softmax over a sparse dimension adds up: those which differ in that dimension only.
class Pools {
  public:
    Pools(const Tensor& indices, at::IntArrayRef sizes, int64_t dim) {
        const int64_t sparse_dim = indices.size(0);
        const Tensor others =
            at::cat({indices.narrow(0, 0, dim), indices.narrow(0, dim + 1, sparse_dim - dim - 1)});
        auto other_sizes = sizes.slice(0, sparse_dim).vec();
        other_sizes.erase(other_sizes.begin() + dim);
        const Tensor keys = flat_keys(others, other_sizes);
        const auto [distinct, pool, counts] = at::_unique2(keys, /*sorted=*/true, /*return_inverse=*/true);
        pool_ = pool;
        count_ = distinct.numel();
    }

    // The greatest or the sum of each pool, for each element of values [nnz, ...].
    Tensor amax(const Tensor& values) const {
        auto sizes = values.sizes().vec();
        sizes[0] = count_;
        Tensor most = at::full(sizes, -std::numeric_limits<double>::infinity(), values.options());
        most.scatter_reduce_(0, per_element(pool_, values.dim()).expand(values.sizes()), values, "amax");
        return most.index_select(0, pool_);
    }
    Tensor sum(const Tensor& values) const {
        return add_by_index(values, pool_, count_).index_select(0, pool_);
    }

  private:
    Tensor pool_;  // of each element
    int64_t count_ = 0;
};

Tensor forward(const char* name, const Tensor& self, int64_t dim, bool half_to_float, bool log) {
    TORCH_CHECK(!half_to_float, name, ": with half to float conversion is not supported on ",
                self.device().str());
    const Tensor input = self.coalesce(), indices = input._indices(), values = input._values();
    dim = c10::maybe_wrap_dim(dim, input.dim());
    const int64_t sparse_dim = input.sparse_dim();
    const auto with = [&](const Tensor& result) {
        return sparse_tensor(indices.clone(), result, input.sizes(), true);
    };
    if (dim < sparse_dim) kernels::check_floating(values.scalar_type(), name);
    if (input.numel() == 0 || values.numel() == 0) return with(values.clone());
    if (dim >= sparse_dim) {
        const int64_t of_values = dim - sparse_dim + 1;
        return with(log ? at::_log_softmax(values, of_values, false)
                        : at::_softmax(values, of_values, false));
    }
    const Pools pools(indices, input.sizes(), dim);
    const Tensor shifted = values.sub(pools.amax(values)), exponential = shifted.exp();
    const Tensor sum = pools.sum(exponential);
    return with(log ? shifted.sub(sum.log()) : exponential.div(sum));
}

Tensor backward(const char* name, const Tensor& grad_output, const Tensor& result, int64_t dim, bool log) {
    TORCH_CHECK(grad_output.sizes().equals(result.sizes()),
                "Expected tensor for argument #1 'grad' to have the "
                "same size as tensor for argument #2 'output'; but ",
                grad_output.sizes(), " does not equal ", result.sizes(), " (while checking arguments for ",
                name, ")");
    dim = c10::maybe_wrap_dim(dim, grad_output.dim());
    const Tensor grad = grad_output.coalesce(), output = result.coalesce();
    TORCH_CHECK(grad.sparse_dim() == output.sparse_dim(),
                ": grad and output sparse dimensions must be equal");
    const Tensor indices = output._indices(), values = output._values();
    const auto with = [&](const Tensor& found) {
        return sparse_tensor(indices.clone(), found, output.sizes(), true);
    };
    if (values.numel() == 0 || grad._nnz() == 0) return with(at::zeros_like(values));
    // The gradient is zero where it has no element.
    const Tensor given = values_of_keys(grad._values(), flat_keys(grad._indices(), grad.sizes()),
                                        flat_keys(indices, output.sizes()));
    const int64_t sparse_dim = output.sparse_dim();
    const auto sum = [&](const Tensor& terms) {
        if (dim >= sparse_dim) return terms.sum(dim - sparse_dim + 1, true);
        return Pools(indices, output.sizes(), dim).sum(terms);
    };
    if (log) return with(given.sub(values.exp().mul(sum(given))));
    return with(values.mul(given.sub(sum(values.mul(given)))));
}

}  // namespace

ANYMPS_SPARSE_ROW(_sparse_softmax, forward("softmax", self, dim, half_to_float, false))
ANYMPS_SPARSE_ROW(_sparse_log_softmax, forward("log_softmax", self, dim, half_to_float, true))
ANYMPS_SPARSE_ROW(_sparse_softmax_backward_data,
                  backward("softmax_backward", grad_output, output, dim, false))
ANYMPS_SPARSE_ROW(_sparse_log_softmax_backward_data,
                  backward("log_softmax_backward", grad_output, output, dim, true))

}  // namespace anymps::ops
