// How a subgroup holds a fragment of matrix units is left to the driver: it is measured, once a process.
#include <ATen/ops/empty.h>
#include <anymps/shaders/flash_places.h>

#include <optional>

#include "ops/attention/attention.h"
#include "ops/matmul/tiles.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

// Twin of element_row and element_column in shaders/lib/attention_dropout.slang.
int place(int lane, int e) {
    return (lane / 4 + e / 2 % 2 * 8) * 16 + lane % 4 * 2 + e % 2 + e / 4 * 8;
}

int swapped(int e) {
    return (e & 1) | (e & 2) << 1 | (e & 4) >> 1;
}

// Whether all lanes have their elements there, in this order or with rows and columns swapped.
std::optional<bool> order(const int32_t* places) {
    bool straight = true, other = true;
    for (int lane = 0; lane < 32; ++lane) {
        for (int e = 0; e < 8; ++e) {
            straight = straight && places[lane * 24 + e] == place(lane, e);
            other = other && places[lane * 24 + swapped(e)] == place(lane, e);
        }
    }
    if (!straight && !other) return std::nullopt;
    return other;
}

at::Tensor launch(const shaders::flash_places::FlashPlacesKernel& kernel) {
    const at::Tensor places = at::empty({32, 24}, at::TensorOptions(at::kMPS).dtype(at::kInt));
    kernel.call({.workgroup = 32, .subgroup = 32})
        .write(places)
        .dispatch({.places = kernels::address(places)}, kernels::Grid::linear(1));
    return places;
}

FragmentPlaces read(const at::Tensor& places) {
    if (!places.defined()) return {};
    const at::Tensor found = places.cpu();
    const auto* numbers = found.const_data_ptr<int32_t>();
    const auto sums = order(numbers), left = order(numbers + 8);
    const auto right = order(numbers + 16);
    if (!sums || !left) return {};
    return {true, *sums, *left, right.has_value(), right.value_or(false)};
}

struct AllPlaces {
    FragmentPlaces half, bfloat;
};

// Both at once: whoever reads them waits for all pipelines that are still being compiled.
AllPlaces measured() {
    const auto& info = runtime::device().info();
    at::Tensor half, bfloat;
    if (info.cooperative_matrix) half = launch(shaders::flash_places::flash_places_f16);
    if (info.cooperative_matrix_bfloat16) bfloat = launch(shaders::flash_places::flash_places_bf16);
    return {read(half), read(bfloat)};
}

}  // namespace

FragmentPlaces fragment_places(at::ScalarType type) {
    static const AllPlaces kPlaces = measured();
    return type == at::kHalf ? kPlaces.half : kPlaces.bfloat;
}

bool lanes_hold_factors(at::ScalarType type) {
    const auto& info = runtime::device().info();
    if (info.is_software || matrix_subgroup(info) != 32) return false;
    const FragmentPlaces places = fragment_places(type);
    return places.known && places.right_known;
}

}  // namespace anymps::ops
