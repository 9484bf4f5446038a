// How a subgroup holds a fragment of matrix units is left to the driver: it is measured, once a process.
#include <ATen/ops/empty.h>
#include <anymps/shaders/attention/fragment_layout.h>

#include <optional>

#include "gemm/fragment_layout.h"
#include "gemm/tiles.h"
#include "runtime/command_graph.h"
#include "runtime/device.h"

namespace anymps::gemm {
namespace {

// Twin of element_row and element_column in shaders/attention/attention_dropout.slang.
int position(int lane, int e) {
    return (lane / 4 + e / 2 % 2 * 8) * 16 + lane % 4 * 2 + e % 2 + e / 4 * 8;
}

int swapped(int e) {
    return (e & 1) | (e & 2) << 1 | (e & 4) >> 1;
}

// Whether all lanes have their elements there, in this order or with rows and columns swapped.
std::optional<bool> order(const int32_t* layout) {
    bool straight = true, other = true;
    for (int lane = 0; lane < 32; ++lane) {
        for (int e = 0; e < 8; ++e) {
            straight = straight && layout[lane * 24 + e] == position(lane, e);
            other = other && layout[lane * 24 + swapped(e)] == position(lane, e);
        }
    }
    if (!straight && !other) return std::nullopt;
    return other;
}

at::Tensor launch(const shaders::fragment_layout::FragmentLayoutKernel& kernel) {
    const at::Tensor layout = at::empty({32, 24}, at::TensorOptions(at::kMPS).dtype(at::kInt));
    kernel.call({.workgroup = 32, .subgroup = 32})
        .write(layout)
        .dispatch({.layout = kernels::address(layout)}, kernels::Grid::linear(1));
    return layout;
}

FragmentLayout read(const at::Tensor& layout) {
    if (!layout.defined()) return {};
    const at::Tensor found = layout.cpu();
    const auto* numbers = found.const_data_ptr<int32_t>();
    const auto sums = order(numbers), left = order(numbers + 8);
    const auto right = order(numbers + 16);
    if (!sums || !left) return {};
    return {true, *sums, *left, right.has_value(), right.value_or(false)};
}

struct AllLayouts {
    FragmentLayout half, bfloat;
};

// Both at once: whoever reads them waits for all pipelines that are still being compiled.
AllLayouts measured() {
    const runtime::OutsideCapture outside;
    const auto& info = runtime::device().info();
    at::Tensor half, bfloat;
    if (info.cooperative_matrix) half = launch(shaders::fragment_layout::fragment_layout_f16);
    if (info.cooperative_matrix_bfloat16) bfloat = launch(shaders::fragment_layout::fragment_layout_bf16);
    return {read(half), read(bfloat)};
}

}  // namespace

FragmentLayout fragment_layout(at::ScalarType type) {
    static const AllLayouts kLayouts = measured();
    return type == at::kHalf ? kLayouts.half : kLayouts.bfloat;
}

bool lanes_hold_operands(at::ScalarType type) {
    const auto& info = runtime::device().info();
    if (info.is_software || matrix_subgroup(info) != 32) return false;
    const FragmentLayout layout = fragment_layout(type);
    return layout.known && layout.b_known;
}

}  // namespace anymps::gemm
