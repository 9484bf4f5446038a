// _grouped_mm: products of groups of rows, columns or k with a matrix each. The ends of the groups stay on
// the device.
#include <anymps/ops/matmul/grouped_mm_ops.h>
#include <anymps/shaders/matmul/grouped_mm.h>

#include <ATen/native/GroupedMMUtils.h>

#include "gemm/block_layout.h"
#include "gemm/simt_lanes.h"
#include "gemm/tiles.h"
#include "kernels/flat_grid.h"
#include "runtime/device.h"
#include "runtime/dispatch_time.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::grouped_mm;

constexpr gemm::Tile kRegister{.kernel = "register", .m = 8, .n = 32, .workgroup = 8, .cost_per_k = 0};
constexpr gemm::Tile kShared{.kernel = "shared_64x64", .m = 64, .n = 64, .workgroup = 256, .cost_per_k = 0};
constexpr gemm::Tile kMatrix{
    .kernel = "matrix_64x64x64", .m = 64, .n = 64, .workgroup = 128, .cost_per_k = 0};
constexpr gemm::Tile kMatrixSoftware{.kernel = "matrix_32x32x16",
                                     .m = 32,
                                     .n = 32,
                                     .workgroup = 64,
                                     .cost_per_k = 0};  // for tests: others take it seconds to compile

uint32_t stride32(int64_t stride) {
    TORCH_CHECK(stride >= 0 && stride < (int64_t{1} << 32), "_grouped_mm: a stride of ", stride,
                " elements is too large for the mps device");
    return static_cast<uint32_t>(stride);
}

// Without alignment, as groups begin anywhere.
uint32_t layout_of(bool matrix, int64_t row_stride, int64_t k_stride) {
    const gemm::BlockLayout layout =
        k_stride == 1 ? (matrix ? gemm::BlockLayout::KMajorUnaligned : gemm::BlockLayout::KMajor)
        : matrix && row_stride == 1 ? gemm::BlockLayout::MnMajorUnaligned
                                    : gemm::BlockLayout::Strided;
    return static_cast<uint32_t>(layout);
}

// a [m, k] whose rows or k are cut at `ends`, b [groups, k, n] or [k, n]; out [m, n] or [groups, m, n].
void multiply_groups(const Tensor& a, const Tensor& b, const Tensor& ends, const Tensor& out) {
    const bool of_k = b.dim() == 2;
    const auto& info = runtime::device().info();
    const auto type = a.scalar_type();
    gemm::Arithmetic arithmetic =
        gemm::choose_arithmetic(info, type == at::kHalf, type == at::kBFloat16, false, 1);
    if (info.is_software && arithmetic == gemm::Arithmetic::BF16) arithmetic = gemm::Arithmetic::Simt;
    const bool matrix = arithmetic != gemm::Arithmetic::Simt;
    const gemm::Tile& tile = matrix                           ? (info.is_software ? kMatrixSoftware : kMatrix)
                             : gemm::uses_shared_memory(info) ? kShared
                                                              : kRegister;
    const auto u = [](int64_t size) { return static_cast<uint32_t>(size); };
    shader::GroupedArgs args{.a = kernels::address(a),
                             .b = kernels::address(b),
                             .out = kernels::address(out),
                             .ends = kernels::address(ends)};
    args.m = u(a.size(0));
    args.n = u(b.size(-1));
    args.k = u(a.size(1));
    args.groups = u(ends.size(0));
    args.a_m = stride32(a.stride(0));
    args.a_k = stride32(a.stride(1));
    args.b_n = stride32(b.stride(-1));
    args.b_k = stride32(b.stride(-2));
    args.b_z = of_k ? 0 : stride32(b.stride(0));
    args.out_m = stride32(out.stride(-2));
    args.out_n = stride32(out.stride(-1));
    args.out_z = of_k ? stride32(out.stride(0)) : 0;
    const uint64_t tiles_m = of_k ? args.groups * kernels::ceil_div(args.m, tile.m)
                                  : kernels::ceil_div(args.m, tile.m) + args.groups;
    const auto& kernel =
        !matrix ? (&tile == &kShared ? shader::grouped_mm_shared_64x64_f32 : shader::grouped_mm_register_f32)
        : info.is_software                     ? shader::grouped_mm_matrix_32x32x16_f16
        : arithmetic == gemm::Arithmetic::BF16 ? shader::grouped_mm_matrix_64x64x64_bf16
                                               : shader::grouped_mm_matrix_64x64x64_f16;
    runtime::note_dispatch({.operations = 2.0 * args.m * args.n * args.k});
    kernel
        .call({.workgroup = tile.workgroup,
               .subgroup = matrix ? gemm::matrix_subgroup(info) : gemm::simt_lanes(info),
               .type = kernels::code(type),
               .layout_a = layout_of(matrix, args.a_m, args.a_k),
               .layout_b = layout_of(matrix, args.b_n, args.b_k),
               .groups_of_k = of_k,
               .tile_m = tile.m})
        .read(a)
        .read(b)
        .read(ends)
        .write(out)
        .dispatch(args, kernels::Grid::linear(tiles_m * kernels::ceil_div(args.n, tile.n)));
}

}  // namespace

// [m, k] x [groups, k, n]: groups of rows; [groups, m, k] x [k, n]: of columns; [m, k] x [k, n]: of k, a
// result each; both 3-d: bmm. Rows and columns behind the last end are left as they are.
Tensor ANYMPS_FUNC(_grouped_mm)(const Tensor& self, const Tensor& mat2, const std::optional<Tensor>& offs,
                                const std::optional<Tensor>& bias, std::optional<ScalarType> out_dtype) {
    at::native::_grouped_mm_validate_inputs(self, mat2, offs, bias, out_dtype);
    TORCH_CHECK(self.scalar_type() == mat2.scalar_type(),
                "Expected mat_a and mat_b to have the same dtype, but got ", self.scalar_type(), " and ",
                mat2.scalar_type());
    TORCH_CHECK(self.size(-1) == mat2.size(-2), "contraction dimension of mat_a and mat_b must match");
    const auto type = at::native::_resolve_grouped_mm_out_dtype(self, mat2, out_dtype);
    Tensor out = at::native::create_grouped_gemm_output_tensor(self, mat2, offs, type);
    if (out.numel() == 0) return out;
    if (self.dim() == 3 && mat2.dim() == 3) return at::bmm_out(out, self, mat2);
    const Tensor ends = offs->contiguous();
    if (self.dim() == 2) {
        multiply_groups(self, mat2, ends, out);
    } else {
        multiply_groups(mat2.t(), self.transpose(1, 2), ends, out.t());
    }
    return out;
}

}  // namespace anymps::ops
