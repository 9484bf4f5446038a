// Host side of the reduction kernels (shaders/lib/reduction.slang): collapses dimensions, chooses a variant,
// splits long reductions into two passes.
#pragma once

#include <ATen/core/TensorBase.h>
#include <anymps/shaders/lib/reduction_load.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/OptionalArrayRef.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <bitset>
#include <initializer_list>
#include <optional>
#include <string>

#include "kernels/dtype.h"
#include "kernels/extents.h"
#include "kernels/route_device.h"

namespace anymps::kernels {

// Names of a row's kernels for one arithmetic type; null where it has none.
struct ReductionKernels {
    const char* rows = nullptr;
    const char* columns = nullptr;
    const char* partials = nullptr;
};

// A row of csrc/ops/reduction.yaml; the generated header anymps/ops/reduction_rows.h has all of them.
struct ReductionRow {
    const char* name;
    uint32_t inputs;
    bool indexed;                 // positions matter: reduced dimensions keep their order
    bool by_output;               // the output's dtype decides the arithmetic type, else the input's
    bool ordered;                 // compares values: uint64 has no kernel
    bool sums;                    // plain sums: those of floats have kernels of their own for some shapes
    bool mean;                    // plain means, likewise
    const ReductionRow* to_bool;  // the row that takes over when the result is bool, or null
    std::array<ReductionKernels, 4> kernels;  // by Compute
};

constexpr size_t kResultSlot =
    shaders::reduction_load::kOutSlot;  // of Extent::stride: of the first result, behind those of inputs

// What the choice of kernels for a reduction depends on.
struct ReductionProblem {
    bool sums = false, means = false;               // plain ones, of floats
    c10::ScalarType type = c10::ScalarType::Float;  // of the first input
    uint64_t address = 0;                           //
    int64_t result_item = 4;                        // bytes
    uint64_t rows = 1, count = 1;                   // results, and elements of each
    Extents kept, reduced;                          // collapsed
};

std::string to_text(const ReductionProblem& problem);
// The kernels that a device would run.
const char* reduction_route(const ReductionProblem& problem, const RouteDevice& device);

using DimMask = std::bitset<kMaxDims>;

// The dimensions to reduce, as ATen gives them: negative ones count from the end, none means all, an empty
// list means all or nothing. Raises ATen's errors for dimensions out of range or named twice.
DimMask dim_mask(const at::TensorBase& self, at::OptionalIntArrayRef dims, bool empty_is_all = true);
DimMask dim_mask(const at::TensorBase& self, int64_t dim);
DimMask dim_mask(const at::TensorBase& self, std::optional<int64_t> dim);
inline DimMask dim_mask(const at::TensorBase& self, std::nullopt_t) {
    return dim_mask(self, at::OptionalIntArrayRef(std::nullopt));
}

// Shape of the result.
c10::SmallVector<int64_t, 6> reduced_shape(const at::TensorBase& self, const DimMask& dims, bool keepdim);

// Reduces the inputs (all of the first one's shape; as many as the row wants) over dims into one or two
// outputs (undefined: not wanted), which have their final shapes, with or without the reduced dimensions. Any
// strides and dtypes. params go to the row's functor.
using Tensors = std::initializer_list<at::TensorBase>;
void reduce(const ReductionRow& row, Tensors ins, const DimMask& dims, Tensors outs,
            std::array<float, 4> params = {});
inline void reduce(const ReductionRow& row, const at::TensorBase& in, const DimMask& dims, Tensors outs,
                   std::array<float, 4> params = {}) {
    reduce(row, {in}, dims, outs, params);
}

}  // namespace anymps::kernels
