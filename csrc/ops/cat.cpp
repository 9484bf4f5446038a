// Concatenation: one dispatch for all dense inputs of the result's dtype, a strided copy for each other one.
#include <anymps/ops/cat_ops.h>
#include <anymps/shaders/cat.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/narrow.h>

#include <vector>

#include "kernels/flat_grid.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

using shaders::cat::CatEntry;

constexpr size_t kMaxEntries = 4096;  // of one dispatch, in the argument ring

// The largest power of two up to 16 that divides all of the entry's addresses and lengths (in bytes so far).
uint64_t common_unit(const std::vector<CatEntry>& entries) {
    uint64_t bits = 16;
    for (const CatEntry& e : entries) bits |= e.src | e.dst | e.row_units | e.dst_stride;
    return bits & (~bits + 1);
}

void dispatch_cat(std::vector<CatEntry> entries, const std::vector<Tensor>& inputs, const Tensor& out) {
    const bool software = runtime::device().info().is_software;
    const uint32_t workgroup = kernels::flat_workgroup();
    const uint64_t unit = common_unit(entries);
    shaders::cat::CatArgs args{.entries = static_cast<uint32_t>(entries.size()),
                               .groups = 0,
                               .group_units = workgroup * (software ? 128 : 8)};
    for (CatEntry& e : entries) {
        e.units /= unit;
        e.row_units /= unit;
        e.dst_stride /= unit;
        e.first_group = args.groups;
        args.groups += static_cast<uint32_t>((e.units + args.group_units - 1) / args.group_units);
    }
    auto call = shaders::cat::cat.call({.workgroup = workgroup, .unit_bytes = static_cast<uint32_t>(unit)});
    for (const Tensor& input : inputs) call.read(input);
    call.write(out).dispatch_table(args, entries, kernels::Grid::linear(args.groups));
}

// Elements of one step of the dimension before `dim` in the memory order of a dense tensor.
uint64_t elements_from(const Tensor& tensor, int64_t dim, at::MemoryFormat format) {
    const bool channels_last = format != at::MemoryFormat::Contiguous;
    uint64_t elements = 1;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
        // Channels, dimension 1, are the innermost there.
        const bool behind = channels_last ? (dim == 1 ? d == 1 : d >= dim || d == 1) : d >= dim;
        if (behind) elements *= tensor.size(d);
    }
    return elements;
}

bool dense_in(const Tensor& tensor, at::MemoryFormat format) {
    return tensor.is_contiguous(format) && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

TORCH_IMPL_FUNC(cat_out)
(const at::ITensorListRef& tensors, int64_t dim, int64_t valid, bool all_contiguous, bool all_same_dtype,
 bool all_same_sizes_and_stride, at::MemoryFormat memory_format, const Tensor& out) {
    if (out.numel() == 0) return;
    const auto materialized = tensors.materialize();
    const bool dense_out = dense_in(out, memory_format);
    const auto row_elements = [&](const Tensor& t) { return elements_from(t, dim, memory_format); };
    std::vector<CatEntry> entries;
    std::vector<Tensor> inputs;
    const uint64_t item = out.element_size();
    uint64_t row_offset = 0;
    int64_t position = 0;
    const auto flush = [&] {
        if (!entries.empty()) dispatch_cat(std::move(entries), inputs, out);
        entries.clear();
        inputs.clear();
    };
    for (const Tensor& t : materialized) {
        if (t.dim() == 1 && t.numel() == 0 && out.dim() != 1)
            continue;  // legacy: an empty vector fits everything
        if (t.numel() == 0) continue;
        if (dense_out && t.scalar_type() == out.scalar_type() && dense_in(t, memory_format)) {
            const uint64_t row = row_elements(t) * item;
            entries.push_back({kernels::address(t), kernels::address(out) + row_offset, 0, t.numel() * item,
                               row, row_elements(out) * item});
            inputs.push_back(t);
            if (entries.size() == kMaxEntries) flush();
        } else {
            at::narrow(out, dim, position, t.size(dim)).copy_(t);
        }
        row_offset += row_elements(t) * item;
        position += t.size(dim);
    }
    flush();
}

}  // namespace anymps::ops
