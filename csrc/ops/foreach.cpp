// Operators over lists of tensors that are no rows of pointwise.yaml.
#include <anymps/kernels/pointwise_kernels.h>
#include <anymps/ops/foreach_ops.h>
#include <anymps/shaders/foreach_norm.h>

#include <ATen/ops/_foreach_copy_native.h>
#include <ATen/ops/_foreach_norm_native.h>
#include <ATen/ops/_foreach_zero_native.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "kernels/flat_grid.h"
#include "kernels/foreach_launcher.h"
#include "kernels/multi_tensor_launcher.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using at::TensorList;
using kernels::MultiTensorLauncher;

namespace shader = shaders::foreach_norm;
using shader::NormEntry;

// Of the norm, as the shader numbers them.
std::optional<uint32_t> known_order(const Scalar& ord) {
    if (ord.isComplex()) return std::nullopt;
    const double p = ord.toDouble();
    if (p == 1) return shader::kOne;
    if (p == 2) return shader::kTwo;
    if (p == std::numeric_limits<double>::infinity()) return shader::kInfinityOrder;
    return std::nullopt;
}

bool can_add_up(const Tensor& t) {
    return t.is_mps() && t.layout() == at::kStrided && at::isFloatingType(t.scalar_type()) &&
           t.is_non_overlapping_and_dense() && t.numel() > 0 && t.numel() <= (int64_t{1} << 30);
}

// One partial result a workgroup, then one result a tensor.
std::vector<Tensor> norms(TensorList self, uint32_t order) {
    const uint64_t step = MultiTensorLauncher::group_elements();
    std::vector<NormEntry> entries;
    std::vector<Tensor> results;
    uint64_t groups = 0;
    for (const Tensor& t : self) {
        const auto count = static_cast<uint32_t>((static_cast<uint64_t>(t.numel()) + step - 1) / step);
        results.push_back(at::empty({}, t.options()));
        entries.push_back({.partials = groups * 4,
                           .result = kernels::address(results.back()),
                           .count = count,
                           .dtype = kernels::code(t.scalar_type())});
        groups += count;
    }
    const Tensor partials = at::empty({static_cast<int64_t>(groups)}, self[0].options().dtype(at::kFloat));
    std::vector<uint64_t> places;
    for (NormEntry& entry : entries) places.push_back(entry.partials += kernels::address(partials));
    const auto constants = [&](size_t i) {
        return shader::Constants{.in_type = kernels::code(self[i].scalar_type()), .order = order};
    };
    kernels::MultiTensorCall(shader::foreach_norm, {{self, false}, {{}, false, false, places}}, constants)
        .write(partials)
        .dispatch({});
    constexpr size_t kMaxEntries = 4096;  // of one dispatch, in the argument ring
    const uint32_t workgroup = kernels::flat_workgroup();
    const uint32_t subgroup = runtime::device().info().subgroup_size;
    for (size_t begin = 0; begin < entries.size(); begin += kMaxEntries) {
        const size_t count = std::min(kMaxEntries, entries.size() - begin);
        auto call =
            shader::foreach_norm_finish.call({.workgroup = workgroup, .subgroup = subgroup, .order = order});
        call.read(partials);
        for (size_t i = 0; i < count; ++i) call.write(results[begin + i]);
        call.dispatch_prefix(entries[begin], count * sizeof(NormEntry), kernels::Grid::linear(count));
    }
    return results;
}

}  // namespace

std::vector<Tensor> ANYMPS_FUNC(_foreach_norm_Scalar)(TensorList self, const Scalar& ord,
                                                      std::optional<ScalarType> dtype) {
    const auto order = known_order(ord);
    if (self.empty() || !order || dtype || !std::all_of(self.begin(), self.end(), can_add_up))
        return at::native::foreach_tensor_norm_slow(self, ord, dtype);
    return norms(self, *order);
}

void ANYMPS_FUNC(_foreach_zero_)(TensorList self) {
    if (!kernels::foreach_into(kernels::rows::copy, self, {Scalar(0)}))
        at::native::foreach_tensor_zero_slow_(self);
}

void ANYMPS_FUNC(_foreach_copy_)(TensorList self, TensorList src, bool non_blocking) {
    if (!kernels::foreach_copy(self, src))
        at::native::foreach_tensor_copy_list_kernel_slow_(self, src, non_blocking);
}

}  // namespace anymps::ops
