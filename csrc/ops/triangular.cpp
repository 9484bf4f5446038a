// tril and triu: one triangle of every matrix of a batch.
#include <anymps/ops/triangular_ops.h>

#include <algorithm>

#include "kernels/flat_grid.h"
#include "kernels/kernel_call.h"

namespace anymps::ops {
namespace {

// As in shaders/triangular.slang.
struct TriangleArgs {
    uint64_t out, self, count;
    uint32_t rows, columns;
    int64_t diagonal;
    uint32_t upper;
    int64_t out_strides[3], self_strides[3];
};

// self, out: [..., rows, columns], any strides; they may be the same tensor.
void triangle(const Tensor& self, int64_t diagonal, bool upper, const Tensor& out) {
    if (out.numel() == 0) return;
    const int64_t rows = out.size(-2), columns = out.size(-1);
    const Tensor from = self.reshape({-1, rows, columns});
    const Tensor to = out.reshape({-1, rows, columns});  // a copy where the batch has no single stride
    TriangleArgs args{kernels::address(to),
                      kernels::address(from),
                      static_cast<uint64_t>(to.numel()),
                      static_cast<uint32_t>(rows),
                      static_cast<uint32_t>(columns),
                      diagonal,
                      upper};
    std::copy_n(to.strides().begin(), 3, args.out_strides);
    std::copy_n(from.strides().begin(), 3, args.self_strides);
    constexpr uint32_t kWorkgroup = 256;
    const ScalarType bits = kernels::integer_of_size(out.element_size());
    kernels::KernelCall("triangle", {kWorkgroup, 0, kernels::code(bits)})
        .read(from)
        .write(to)
        .dispatch(args, kernels::flat_grid(args.count, kWorkgroup));
    if (!to.is_alias_of(out)) out.copy_(to.view(out.sizes()));
}

}  // namespace

TORCH_IMPL_FUNC(tril_out)(const Tensor& self, int64_t k, const Tensor& out) {
    triangle(self, k, false, out);
}

TORCH_IMPL_FUNC(triu_out)(const Tensor& self, int64_t k, const Tensor& out) {
    triangle(self, k, true, out);
}

}  // namespace anymps::ops
