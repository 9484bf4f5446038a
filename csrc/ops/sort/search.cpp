// Places in sorted sequences, and what they answer: searchsorted, bucketize, repeat_interleave.
#include <anymps/ops/sort/search_ops.h>
#include <anymps/shaders/sort/search.h>

#include <ATen/native/BucketizationUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/searchsorted.h>

#include <algorithm>
#include <bit>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "kernels/launch_config.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::search;

void search_rows(const Tensor& out, const Tensor& values, const Tensor& boundaries, const Tensor& sorter,
                 bool right) {
    const auto type = kernels::code(values.scalar_type());
    const int64_t length = boundaries.size(-1);
    const shader::SearchArgs args{
        .out = kernels::address(out),
        .values = kernels::address(values),
        .boundaries = kernels::address(boundaries),
        .sorter = kernels::address_or_0(sorter),
        .count = static_cast<uint64_t>(values.numel()),
        .row_values = static_cast<uint64_t>(boundaries.dim() == 1 ? values.numel() : values.size(-1)),
        .length = static_cast<uint64_t>(length)};
    shader::search_sorted
        .call({.workgroup = kernels::flat_workgroup(),
               .type = type,
               .out_type = kernels::code(out.scalar_type()),
               .right = right,
               .sorter = sorter.defined()})
        .read(values)
        .read(boundaries)
        .read(sorter)
        .write(out)
        .dispatch(args, kernels::flat_grid(kernels::ceil_div(args.count, shader::kPrefetch)));
}

constexpr int64_t kTreeBytes = 16384;  // so that a compute unit holds several workgroups

// Whether so many values are sought in one row that a tree of it pays: its levels read the row once. Shorter
// rows stay in a core's cache, and software drivers are slow with shared memory.
bool worth_a_tree(const Tensor& values, const Tensor& boundaries, const Tensor& sorter) {
    constexpr int64_t kMin = int64_t{1} << 18, kShortest = int64_t{1} << 16, kLongest = int64_t{1} << 28;
    const int64_t count = values.numel(), length = boundaries.numel();
    return !kernels::launch_config().software && boundaries.dim() == 1 && !sorter.defined() &&
           count >= kMin && length >= kShortest && length <= std::min(kLongest, 16 * count);
}

void search_tree(const Tensor& out, const Tensor& values, const Tensor& boundaries, bool right) {
    const bool floating = at::isFloatingType(values.scalar_type());
    const int64_t most = kTreeBytes / (floating ? 4 : 8);  // one more than fits
    c10::SmallVector<Tensor, shader::kMaxLevels + 1> levels{boundaries};
    shader::SearchTreeArgs args{.out = kernels::address(out),
                                .values = kernels::address(values),
                                .count = static_cast<uint64_t>(values.numel()),
                                .length = static_cast<uint64_t>(boundaries.numel())};
    args.level[0] = kernels::address(boundaries);
    // The last eighth need not be in the tree where nothing follows it.
    const auto fits = [&](size_t level, int64_t length) {
        return length < most || (level > 0 && boundaries.numel() == most << (3 * level));
    };
    while (!fits(levels.size() - 1, levels.back().numel())) {
        levels.push_back(levels.back().slice(0, 7, std::nullopt, 8).contiguous());
        args.level[levels.size() - 1] = kernels::address(levels.back());
    }
    const auto highest = static_cast<uint64_t>(std::min(levels.back().numel(), most - 1));
    const auto depth = static_cast<uint32_t>(std::bit_width(highest));
    const auto words = static_cast<uint32_t>((floating ? 1 : 2) << depth);
    const uint32_t workgroup =
        std::max(kernels::flat_workgroup(),
                 std::min(1024u, std::bit_floor(runtime::device_info().max_workgroup_size)));
    constexpr uint64_t kLeast = 8;  // values of a thread, to pay for filling its workgroup's tree
    args.groups = static_cast<uint32_t>(std::min(kernels::launch_config().target_groups * 256 / workgroup,
                                                 kernels::ceil_div(args.count, kLeast * workgroup)));
    const bool aligned =
        args.level[0] % static_cast<uint64_t>(std::min<int64_t>(16, 4 * values.element_size())) == 0;
    auto call = (floating ? shader::search_tree_f32 : shader::search_tree_i64)
                    .call({.workgroup = workgroup,
                           .type = kernels::code(values.scalar_type()),
                           .out_type = kernels::code(out.scalar_type()),
                           .right = right,
                           .levels = static_cast<uint32_t>(levels.size() - 1),
                           .depth = depth,
                           .tree_words = words,
                           .aligned = aligned});
    call.read(values).write(out);
    for (const Tensor& level : levels) call.read(level);
    call.dispatch(args, runtime::Grid::linear(args.groups));
}

// All contiguous; values and boundaries of one dtype.
void search(const Tensor& out, const Tensor& values, const Tensor& boundaries, const Tensor& sorter,
            bool right) {
    if (worth_a_tree(values, boundaries, sorter))
        search_tree(out, values, boundaries, right);
    else
        search_rows(out, values, boundaries, sorter, right);
}

// ATen's searchsorted_scalar_tensor is float64, which the device does not have.
Tensor as_value(const Scalar& value, const Tensor& boundaries) {
    return at::scalar_tensor(value, boundaries.options().dtype(at::result_type(boundaries, value)));
}

TensorOptions index_options(const Tensor& like, bool out_int32) {
    return like.options().dtype(out_int32 ? at::kInt : at::kLong);
}

}  // namespace

Tensor& ANYMPS_FUNC(searchsorted_Tensor_out)(const Tensor& sorted_sequence, const Tensor& self,
                                             bool out_int32, bool right, std::optional<c10::string_view> side,
                                             const std::optional<Tensor>& sorter, Tensor& out) {
    const Tensor order = sorter.value_or(Tensor());
    at::native::searchsorted_pre_check(sorted_sequence, self, out, out_int32, right, side, order);
    const auto common = at::result_type(sorted_sequence, self);
    kernels::check_real(common, "searchsorted_out_cpu");
    at::native::resize_output(out, self.sizes());
    if (self.numel() == 0) return out;
    const Tensor found = out.is_contiguous() ? out : at::empty_like(out, at::MemoryFormat::Contiguous);
    search(found, self.to(common).contiguous(), sorted_sequence.to(common).contiguous(),
           order.defined() ? order.contiguous() : order, right || (side && *side == "right"));
    if (!found.is_same(out)) out.copy_(found);
    return out;
}

ANYMPS_ROW(searchsorted_Tensor, searchsorted_Tensor_out(sorted_sequence, self, out_int32, right, side, sorter,
                                                        NewTensor(index_options(self, out_int32))))

Tensor& ANYMPS_FUNC(searchsorted_Scalar_out)(const Tensor& sorted_sequence, const Scalar& self,
                                             bool out_int32, bool right, std::optional<c10::string_view> side,
                                             const std::optional<Tensor>& sorter, Tensor& out) {
    const Tensor value = as_value(self, sorted_sequence);
    return searchsorted_Tensor_out(sorted_sequence, value, out_int32, right, side, sorter, out);
}

ANYMPS_ROW(searchsorted_Scalar, searchsorted_Scalar_out(sorted_sequence, self, out_int32, right, side, sorter,
                                                        NewTensor(index_options(sorted_sequence, out_int32))))

Tensor& ANYMPS_FUNC(bucketize_Tensor_out)(const Tensor& self, const Tensor& boundaries, bool out_int32,
                                          bool right, Tensor& out) {
    TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(",
                boundaries.dim(), ")");
    return searchsorted_Tensor_out(boundaries, self, out_int32, right, std::nullopt, std::nullopt, out);
}

ANYMPS_ROW(bucketize_Tensor, bucketize_Tensor_out(self, boundaries, out_int32, right,
                                                  NewTensor(index_options(self, out_int32))))
ANYMPS_ROW(bucketize_Scalar, bucketize_Tensor(as_value(self, boundaries), boundaries, out_int32, right))

// Element k of the result is the i for which sum(repeats[:i]) <= k < sum(repeats[:i + 1]).
Tensor ANYMPS_FUNC(repeat_interleave_Tensor)(const Tensor& repeats, std::optional<int64_t> output_size) {
    TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
    TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
                "repeats has to be Long or Int tensor");
    if (repeats.numel() == 0) return at::empty_like(repeats, at::MemoryFormat::Contiguous);
    const Tensor ends = repeats.cumsum(0);
    int64_t total = output_size.value_or(0);
    if (!output_size.has_value()) {
        TORCH_CHECK(repeats.ge(0).all().item<bool>(), "repeats can not be negative");
        total = ends.select(0, -1).item<int64_t>();
    }
    const bool narrow = repeats.scalar_type() == at::kInt;
    return at::searchsorted(ends, at::arange(total, ends.options()), narrow, true);
}

}  // namespace anymps::ops
