// _weight_int8pack_mm, _weight_int4pack_mm, _convert_weight_to_int4pack: products of floating activations
// with weights of 8 and 4 bits.
#include <anymps/ops/matmul/weight_only_mm_ops.h>
#include <anymps/shaders/matmul/weight_only_mm.h>

#include <ATen/ops/empty.h>

#include <limits>

#include "gemm/gemm.h"
#include "kernels/flat_grid.h"
#include "runtime/dispatch_time.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::weight_only_mm;
using shader::WeightArgs;

// For more rows than this the weights are written out once as plain numbers.
constexpr int64_t kFewRows = 16;
constexpr int64_t kRowsAtOnce = 4;

// Columns of a packed tile, and k of one of its innermost tiles.
constexpr int64_t kTileN = 8, kTileK = 16;

uint32_t u32(int64_t number) {
    TORCH_CHECK(number >= 0 && number < (int64_t{1} << 31), "a size or stride of ", number,
                " is too large for a product with packed weights on the mps device");
    return static_cast<uint32_t>(number);
}

constexpr kernels::KernelFamily kKernels(shader::kernels_with<WeightArgs>,
                                         {"weight_only_int8", "weight_only_int4"},
                                         {"_dot1", "_dot4", "_plain"});

struct PackedWeight {
    enum Kind : size_t { kInt8, kInt4 } kind;
    const Tensor& data;
    const Tensor& scales;
    WeightArgs args;  // n, k, group and strides of the scales
};

// Few results: each is a team's, which reads the packed weights.
void multiply_rows(const PackedWeight& w, const Tensor& a, const Tensor& out) {
    WeightArgs args = w.args;
    args.out = kernels::address(out);
    args.a = kernels::address(a);
    args.a_row = u32(a.stride(0));
    args.m = u32(a.size(0));
    const bool wide = args.k % 4 == 0 && args.a_row % 4 == 0 && args.a % (4 * a.element_size()) == 0;
    const int64_t rows = args.m == 1 ? 1 : kRowsAtOnce;
    const auto& launch_config = kernels::launch_config();
    const uint32_t workgroup = std::max(launch_config.subgroup, std::min(32u, launch_config.workgroup));
    runtime::note_dispatch({.operations = 2.0 * args.m * args.n * args.k});
    kKernels(w.kind, rows == 1 ? 0 : 1)
        .call({.workgroup = workgroup,
               .subgroup = launch_config.subgroup,
               .type = kernels::code(a.scalar_type()),
               .wide = wide,
               .scale_type = kernels::code(w.scales.scalar_type())})
        .read(a)
        .read(w.data)
        .read(w.scales)
        .write(out)
        .dispatch(args, kernels::Grid::linear(kernels::ceil_div(args.m, rows) * args.n));
}

// [n, k] in a floating dtype.
Tensor plain(const PackedWeight& w, ScalarType type) {
    const Tensor out = at::empty({w.args.n, w.args.k}, w.data.options().dtype(type));
    WeightArgs args = w.args;
    args.out = kernels::address(out);
    const uint32_t workgroup = kernels::flat_workgroup();
    const uint64_t quads = kernels::ceil_div(args.k, 4) * args.n;
    kKernels(w.kind, 2)
        .call({.workgroup = workgroup,
               .subgroup = 1,
               .type = kernels::code(type),
               .scale_type = kernels::code(w.scales.scalar_type()),
               .wide_index = quads > std::numeric_limits<int32_t>::max()})
        .read(w.data)
        .read(w.scales)
        .write(out)
        .dispatch(args, kernels::flat_grid(quads, workgroup));
    return out;
}

// a [m, k], of stride 1 along k -> [m, n].
Tensor multiply(const char* name, PackedWeight w, const Tensor& a) {
    const int64_t m = a.size(0), n = w.args.n;
    const Tensor out = at::empty({m, n}, a.options());
    if (out.numel() == 0) return out;
    if (w.args.k == 0) return out.zero_();
    w.args.weight = kernels::address(w.data);
    w.args.scales = kernels::address(w.scales);
    if (m <= kFewRows) {
        multiply_rows(w, a, out);
        return out;
    }
    const Tensor weight = plain(w, a.scalar_type());
    gemm::Gemm{name,
               1,
               m,
               n,
               w.args.k,
               gemm::matrices(a),
               gemm::matrices(weight).transposed(),
               gemm::matrices(out),
               gemm::kNoMatrices}
        .run();
    return out;
}

bool is_activation(ScalarType type) {
    return type == at::kBFloat16 || type == at::kHalf || type == at::kFloat;
}

}  // namespace

// self [m, k] floating, mat2 [n, k] int8, scales [n] -> self @ (mat2 * scales[:, None]).t(). Errors in the
// words of the CPU.
Tensor ANYMPS_FUNC(_weight_int8pack_mm)(const Tensor& self, const Tensor& mat2, const Tensor& scales) {
    constexpr const char* kName = "_weight_int8pack_mm_cpu";
    TORCH_CHECK(is_activation(self.scalar_type()), kName,
                " : expect A to be either 32-bit or 16-bit float tensor.");
    TORCH_CHECK(self.dim() == 2, kName, " : expect A to be 2D tensor.");
    TORCH_CHECK(self.stride(1) == 1, kName, " : A must be contiguous on the last dimension.");
    TORCH_CHECK(mat2.scalar_type() == at::kChar, kName, " : expect B to be int8 tensor.");
    TORCH_CHECK(mat2.is_contiguous(), kName, " : expect B to be contiguous.");
    TORCH_CHECK(mat2.dim() == 2 && mat2.size(1) == self.size(1), kName,
                " : expect B.size(1) == ", self.size(1));
    TORCH_CHECK(scales.dim() == 1 && scales.size(0) == mat2.size(0), kName,
                " : expect scales to be 1d tensor with size ", mat2.size(0));
    PackedWeight weight{PackedWeight::kInt8, mat2, scales, {}};
    weight.args.n = u32(mat2.size(0));
    weight.args.k = u32(mat2.size(1));
    weight.args.scale_n = u32(scales.stride(0));
    return multiply("_weight_int8pack_mm", weight, self);
}

// self [n, k / 2] uint8, two numbers of 4 bits a byte, the first one high -> int32 [n / 8, k / (16
// inner_k_tiles), 32, inner_k_tiles / 2]: CUDA's shape, in which ours lie row by row, the first one low, as
// on Apple's device.
Tensor ANYMPS_FUNC(_convert_weight_to_int4pack)(const Tensor& self, int64_t inner_k_tiles) {
    constexpr const char* kName = "_convert_weight_to_int4pack_mps";
    TORCH_CHECK(self.dim() == 2, kName, " : expect weight to be 2D tensor.");
    TORCH_CHECK(self.scalar_type() == at::kByte, kName, " : expect weight to be kByte.");
    TORCH_CHECK(inner_k_tiles == 2 || inner_k_tiles == 4 || inner_k_tiles == 8, kName,
                " : innerKTiles need to be 2, 4, or 8, got ", inner_k_tiles);
    const int64_t n = self.size(0), k = 2 * self.size(1), along = kTileK * inner_k_tiles;
    TORCH_CHECK(n % kTileN == 0, kName, " : expect N to be divisible by ", kTileN);
    TORCH_CHECK(k % along == 0, kName, " : expect K to be divisible by ", along);
    const Tensor bytes = self.contiguous();
    const Tensor swapped = bytes.bitwise_left_shift(4).bitwise_or_(bytes.bitwise_right_shift(4));
    return swapped.view(at::kInt).view({n / kTileN, k / along, 32, inner_k_tiles / 2});
}

// self [m, k] floating, mat2 as _convert_weight_to_int4pack gives it, scales and zeros [k / group, n, 2].
// Each weight is (q - 8) * scale + zero.
Tensor ANYMPS_FUNC(_weight_int4pack_mm)(const Tensor& self, const Tensor& mat2, int64_t group,
                                        const Tensor& scales) {
    constexpr const char* kName = "_weight_int4pack_mm_mps";
    TORCH_CHECK(is_activation(self.scalar_type()), kName,
                " : expect A to be either 32-bit or 16-bit float tensor.");
    TORCH_CHECK(self.dim() == 2, kName, " : expect A to be 2D tensor.");
    TORCH_CHECK(self.is_contiguous(), kName, " : expect A to be contiguous.");
    TORCH_CHECK(mat2.scalar_type() == at::kInt, kName, " : expect B to be int32 tensor.");
    TORCH_CHECK(mat2.is_contiguous(), kName, " : expect B to be contiguous.");
    TORCH_CHECK(mat2.dim() == 4, kName, " : expect B to 4d tensor.");
    const int64_t n = mat2.size(0) * kTileN, k = self.size(1);
    TORCH_CHECK(mat2.numel() * 8 == n * k, kName, " : expect B to hold ", k, " numbers a row, got ",
                n == 0 ? 0 : mat2.numel() * 8 / n);
    TORCH_CHECK(group == 32 || group == 64 || group == 128 || group == 256, kName,
                ": expect qGroupSize to be 32, 64, 128 or 256, got ", group);
    TORCH_CHECK(scales.dim() == 3 && scales.size(1) == n && scales.size(2) == 2, kName,
                ": expect qScaleAndZeros to be 3d tensor with sizes [:, ", n, ", 2]");
    TORCH_CHECK(scales.size(0) * group >= k, kName, ": expect qScaleAndZeros to hold ",
                kernels::ceil_div(k, group), " groups, got ", scales.size(0));
    PackedWeight weight{PackedWeight::kInt4, mat2, scales, {}};
    weight.args.n = u32(n);
    weight.args.k = u32(k);
    weight.args.group = u32(group);
    weight.args.scale_group = u32(scales.stride(0));
    weight.args.scale_n = u32(scales.stride(1));
    weight.args.scale_zero = u32(scales.stride(2));
    return multiply("_weight_int4pack_mm", weight, self);
}

}  // namespace anymps::ops
