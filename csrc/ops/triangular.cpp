// tril and triu: one triangle of every matrix of a batch.
#include <anymps/ops/triangular_ops.h>
#include <anymps/shaders/triangular.h>

#include <algorithm>
#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"

namespace anymps::ops {
namespace {

// True where four neighbours of a row are one load, wherever they are.
bool vectorized(const Tensor& t) {
    const auto alignment = std::min<uint64_t>(16, 4 * t.element_size());
    return t.stride(2) == 1 && t.size(2) % 4 == 0 && t.stride(1) % 4 == 0 && t.stride(0) % 4 == 0 &&
           kernels::address(t) % alignment == 0;
}

// self, out: [..., rows, columns], any strides; they may be the same tensor.
void triangle(const Tensor& self, int64_t diagonal, bool upper, const Tensor& out) {
    if (out.numel() == 0) return;
    const int64_t rows = out.size(-2), columns = out.size(-1);
    const Tensor from = self.reshape({-1, rows, columns});
    const Tensor to = out.reshape({-1, rows, columns});  // a copy where the batch has no single stride
    const uint32_t vector = vectorized(from) && vectorized(to) ? 4 : 1;
    shaders::triangular::TriangleArgs args{
        .out = kernels::address(to),
        .self = kernels::address(from),
        .count = static_cast<uint64_t>(to.numel()) / vector,
        .across = kernels::FastDivider(static_cast<uint32_t>(columns) / vector),
        .rows = kernels::FastDivider(static_cast<uint32_t>(rows)),
        .diagonal = diagonal,
        .upper = upper};
    std::copy_n(to.strides().begin(), 3, args.out_strides.begin());
    std::copy_n(from.strides().begin(), 3, args.self_strides.begin());
    constexpr uint32_t kWorkgroup = 256;
    const ScalarType bits = kernels::integer_of_size(out.element_size());
    const bool wide = args.count > std::numeric_limits<uint32_t>::max();
    shaders::triangular::triangle
        .call({.workgroup = kWorkgroup, .type = kernels::code(bits), .vector = vector, .wide = wide})
        .read(from)
        .write(to)
        .dispatch(args, kernels::flat_grid(args.count, kWorkgroup));
    if (!to.is_alias_of(out)) out.copy_(to.view(out.sizes()));
}

}  // namespace

ANYMPS_ROW(tril_out, triangle(self, diagonal, false, out))
ANYMPS_ROW(triu_out, triangle(self, diagonal, true, out))

}  // namespace anymps::ops
