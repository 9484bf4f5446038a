// What nested tensors ask of a device: jagged rows to and from a padded tensor, and whether a padding mask is
// left-aligned.
#include <anymps/ops/nested_ops.h>
#include <anymps/shaders/jagged.h>

#include <ATen/Dispatch.h>
#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/geometry.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::jagged;

const Tensor& only_offsets(TensorList offsets, const char* name) {
    TORCH_INTERNAL_ASSERT(offsets.size() == 1, name, "(): only a single jagged dim is supported for now");
    TORCH_CHECK(offsets[0].dim() == 1, name,
                "(): expected 1D offsets, but got offsets.dim() == ", offsets[0].dim());
    TORCH_CHECK(offsets[0].size(0) > 0, name, "(): expected at least one offset");
    return offsets[0];
}

// The bits of a number in a dtype; for integers infinity is their limit.
int64_t bits_of(double value, ScalarType type) {
    Scalar number = value;
    if (at::isIntegralType(type, false) && std::isinf(value)) {
        AT_DISPATCH_INTEGRAL_TYPES(type, "_jagged_to_padded_dense_forward", [&] {
            using limits = std::numeric_limits<scalar_t>;
            number = value > 0 ? limits::max() : limits::min();
        });
    }
    const Tensor element = at::scalar_tensor(number, TensorOptions(type));
    int64_t bits = 0;
    std::memcpy(&bits, element.const_data_ptr(), element.element_size());
    return bits;
}

// One of the two kernels over the elements of its result; jagged and padded are dense.
void launch(const shader::JaggedKernel& kernel, const Tensor& jagged, const Tensor& padded,
            const Tensor& offsets, bool pads, int64_t padding, const char* name) {
    const Tensor &result = pads ? padded : jagged, &source = pads ? jagged : padded;
    if (result.numel() == 0) return;
    constexpr int64_t kMax = std::numeric_limits<uint32_t>::max();
    TORCH_CHECK(result.numel() <= kMax && jagged.size(0) <= kMax && offsets.numel() <= kMax, name,
                " on MPS: more than 2^32 - 1 elements");
    const auto error = runtime::encoder().error_slot(name);
    const auto width =
        static_cast<uint32_t>(result.numel() / (pads ? padded.size(0) * padded.size(1) : jagged.size(0)));
    const shader::JaggedArgs args{.jagged = kernels::address(jagged),
                                  .padded = kernels::address(padded),
                                  .offsets = kernels::address(offsets),
                                  .padding = padding,
                                  .error = error.address,
                                  .error_code = error.code,
                                  .batch = static_cast<uint32_t>(offsets.size(0) - 1),
                                  .rows = static_cast<uint32_t>(jagged.size(0)),
                                  .count = static_cast<uint32_t>(result.numel()),
                                  .length = kernels::FastDivider(static_cast<uint32_t>(padded.size(1))),
                                  .width = kernels::FastDivider(width)};
    const ScalarType bits = kernels::integer_of_size(result.element_size());
    kernel
        .call({.workgroup = kernels::flat_workgroup(),
               .type = kernels::code(bits),
               .offset_type = kernels::code(offsets.scalar_type())})
        .read(source)
        .read(offsets)
        .write(result)
        .dispatch(args, kernels::flat_grid(args.count));
}

}  // namespace

// values [rows, ...], offsets [batch + 1] -> [batch, max_lengths[0], ...]: longer batch items are cut,
// shorter ones padded. Offsets out of range raise at the next synchronization.
Tensor ANYMPS_FUNC(_jagged_to_padded_dense_forward)(const Tensor& values, TensorList offsets,
                                                    IntArrayRef max_lengths, double padding_value) {
    constexpr const char* kName = "_jagged_to_padded_dense_forward";
    TORCH_INTERNAL_ASSERT(max_lengths.size() == 1, kName,
                          "(): only a single jagged dim is supported for now");
    const Tensor edges = only_offsets(offsets, kName).contiguous(), jagged = values.contiguous();
    auto sizes = values.sizes().vec();
    sizes[0] = max_lengths[0];
    sizes.insert(sizes.begin(), edges.size(0) - 1);
    const Tensor padded = at::empty(sizes, values.options());
    launch(shader::jagged_to_padded, jagged, padded, edges, true,
           bits_of(padding_value, values.scalar_type()), kName);
    return padded;
}

// dense [batch, length, ...], offsets [batch + 1] -> [total_L, ...]. Batch items that are longer than
// `length` and offsets that do not end at total_L raise at the next synchronization; without total_L the last
// offset is read here.
Tensor ANYMPS_FUNC(_padded_dense_to_jagged_forward)(const Tensor& dense, TensorList offsets,
                                                    std::optional<int64_t> total_L) {
    constexpr const char* kName = "_padded_dense_to_jagged_forward";
    const Tensor edges = only_offsets(offsets, kName).contiguous(), padded = dense.contiguous();
    TORCH_CHECK(dense.dim() >= 2, kName, "(): expected padded dim >= 2, but padded.dim() == ", dense.dim());
    auto sizes = dense.sizes().slice(1).vec();
    sizes[0] = total_L.has_value() ? *total_L : edges.select(0, edges.size(0) - 1).item<int64_t>();
    const Tensor jagged = at::empty(sizes, dense.options());
    launch(shader::padded_to_jagged, jagged, padded, edges, false, 0, kName);
    return jagged;
}

// Whether no true element of mask [batch, length] follows a false one.
bool ANYMPS_FUNC(_nested_tensor_from_mask_left_aligned)(const Tensor& t, const Tensor& mask) {
    TORCH_CHECK(mask.scalar_type() == at::kBool, "Expected mask to be of ScalarType Bool, but got ",
                mask.scalar_type(), " instead.");
    TORCH_CHECK(mask.dim() == 2, "Padding mask should be 2D");
    TORCH_CHECK(t.dim() == 3, "Input should be a 3D tensor, N * L * D");
    TORCH_CHECK(t.size(0) == mask.size(0) && t.size(1) == mask.size(1), "Mask size should match input size");
    if (mask.size(1) < 2) return true;
    const Tensor before = mask.slice(1, 0, -1), after = mask.slice(1, 1);
    return !after.gt(before).any().item<bool>();
}

}  // namespace anymps::ops
