// flip, roll and channel_shuffle: elements in another order.
#include <anymps/ops/flip_ops.h>
#include <anymps/shaders/strided_copy.h>

#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/roll_native.h>

#include <limits>
#include <vector>

#include "kernels/extents.h"
#include "kernels/flat_grid.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::strided_copy;
using shader::StridedCopyArgs;

// Makes the innermost dimension one of four elements at a time, where all of them are aligned in both
// tensors.
bool take_quads(StridedCopyArgs& args, kernels::Extents& extents, int64_t item) {
    if (extents.empty() || item > 4) return false;
    kernels::Extent& inner = extents[0];
    const bool backwards = inner.stride[1] == -item;
    if (inner.size % 4 != 0 || inner.stride[0] != item || (!backwards && inner.stride[1] != item))
        return false;
    const uint64_t source = args.source - (backwards ? 3 * item : 0);
    uint64_t places = args.destination | source;
    for (size_t d = 1; d < extents.size(); ++d) {
        for (size_t k = 0; k < 2; ++k) places |= static_cast<uint64_t>(extents[d].stride[k]);
    }
    if (places % (4 * item) != 0) return false;
    args.source = source;
    args.count /= 4;
    inner.size /= 4;
    for (size_t k = 0; k < 2; ++k) inner.stride[k] *= 4;
    return true;
}

}  // namespace

// The source is read backwards: its address moves to the other end and its strides turn negative.
Tensor ANYMPS_FUNC(flip)(const Tensor& self, IntArrayRef dims) {
    const auto flipped = at::dim_list_to_bitset(dims, self.dim());
    const Tensor out = at::empty_like(self, at::MemoryFormat::Preserve);
    if (self.numel() == 0) return out;
    StridedCopyArgs args{kernels::address(out), kernels::address(self), static_cast<uint64_t>(self.numel()),
                         0, 0};
    const int64_t item = kernels::item_bytes(self);
    kernels::Extents extents;
    for (int64_t d = self.dim() - 1; d >= 0; --d) {
        kernels::Extent extent{self.size(d)};
        const int64_t step = self.stride(d) * item;
        extent.stride[0] = out.stride(d) * item;
        extent.stride[1] = flipped[d] ? -step : step;
        if (flipped[d]) args.source += static_cast<uint64_t>(step * (self.size(d) - 1));
        if (extent.size != 1) extents.push_back(extent);
    }
    kernels::collapse(extents);
    const bool backwards = !extents.empty() && extents[0].stride[1] < 0;
    const bool quads = take_quads(args, extents, item);
    args.dims = static_cast<uint32_t>(extents.size());
    std::vector<kernels::Dim> table(extents.size());
    kernels::write_dims(extents, reinterpret_cast<char*>(table.data()));
    constexpr uint32_t kWorkgroup = 128;
    const bool wide = args.count > std::numeric_limits<uint32_t>::max();
    shader::strided_copy
        .call({.workgroup = kWorkgroup,
               .item_bytes = static_cast<uint32_t>(item),
               .wide = wide,
               .quads = quads,
               .backwards = backwards})
        .read(self)
        .write(out)
        .dispatch_table(args, table,
                        kernels::flat_grid(kernels::ceil_div(args.count, shader::kPrefetch), kWorkgroup));
    return out;
}

ANYMPS_ROW(roll, at::native::roll(self, shifts, dims))

Tensor ANYMPS_FUNC(channel_shuffle)(const Tensor& self, int64_t groups) {
    TORCH_CHECK(self.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ",
                self.sizes());
    const int64_t channels = self.size(1);
    TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive.",
                " Value of groups:", groups);
    TORCH_CHECK(channels % groups == 0, "Number of channels must be divisible by groups. Got ", channels,
                " channels and ", groups, " groups.");
    if (self.numel() == 0) return self.alias();
    const Tensor shuffled = self.unflatten(1, {groups, channels / groups}).transpose(1, 2).flatten(1, 2);
    return shuffled.contiguous(self.suggest_memory_format());
}

}  // namespace anymps::ops
