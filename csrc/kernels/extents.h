// Dimensions of tensors that are walked together, as kernels see them.
#pragma once

#include <ATen/core/TensorBase.h>
#include <anymps/shaders/lib/extents.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>

#include "kernels/geometry.h"

namespace anymps::kernels {

constexpr size_t kMaxSlots = shaders::extents::kMaxSlots;  // tensors
constexpr size_t kMaxDims = 64;                            // as ATen

struct Extent {
    int64_t size;
    std::array<int64_t, kMaxSlots> stride{};  // bytes

    // True when this dimension and the next inner one are one longer dimension in every tensor.
    bool continues(const Extent& inner) const;
};
using Extents = c10::SmallVector<Extent, 8>;

// Orders dimensions by the strides of the first tensor, innermost first and expanded ones last (unless
// keep_order, when they must come innermost first), and merges neighbours where all strides allow.
void collapse(Extents& extents, bool keep_order = false);

// What kernels read.
using shaders::extents::Dim;

// Writes the dimensions behind one another at `out`; returns the end.
char* write_dims(const Extents& extents, char* out);

inline int64_t item_bytes(const at::TensorBase& tensor) {
    return static_cast<int64_t>(tensor.element_size());
}

// True when slot k is dense along `along` and groups of four elements are aligned wherever they start.
bool vector_aligned(uint64_t address, int64_t item, size_t k, const Extents& along, const Extents& others);

}  // namespace anymps::kernels
