// Positions of the elements that are not zero, and elements beside them: one synchronization for the size.
#include <anymps/ops/indexing/nonzero_ops.h>
#include <anymps/shaders/indexing/nonzero.h>

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/extents.h"
#include "kernels/launch_config.h"
#include "ops/reduction/scan.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::nonzero;

constexpr uint64_t kAThread = 4 * shader::kLines;  // elements of a tile

// What is not zero in a dense tensor of at least one element.
class Nonzero {
  public:
    explicit Nonzero(const Tensor& input) : input_(input) {
        const auto& launch_config = kernels::launch_config();
        // A software driver's workgroup is small, so it takes several tiles.
        tiles_ = launch_config.software ? 16 : 1;
        args_.input = kernels::address(input);
        args_.count = static_cast<uint64_t>(input.numel());
        groups_ = kernels::ceil_div(args_.count, launch_config.workgroup * kAThread * tiles_);
        counts_ = at::empty({1, static_cast<int64_t>(groups_)}, input.options().dtype(at::kLong));
        args_.counts = kernels::address(counts_);
    }

    // Waits for the device.
    int64_t count() {
        run(shader::nonzero_count, {}, counts_, 0, {});
        sums_of_rows(counts_);
        const auto found = counts_.select(1, -1).item<int64_t>();
        args_.found = static_cast<uint64_t>(found);
        return found;
    }

    // After count(); out: dense int64 [ndim, count].
    void write_positions(const Tensor& out) {
        kernels::Extents extents;
        for (int64_t d = input_.dim() - 1; d >= 0; --d) extents.push_back({input_.size(d)});
        run(shader::nonzero_write, {}, out, 0, extents);
    }

    // The elements of a dense tensor like the input's; out: dense [count].
    void write_elements(const Tensor& items, const Tensor& out) {
        args_.items = kernels::address(items);
        run(shader::nonzero_write, items, out, static_cast<uint32_t>(items.element_size()), {});
    }

  private:
    void run(const shader::NonzeroKernel& kernel, const Tensor& items, const Tensor& out, uint32_t item_bytes,
             const kernels::Extents& extents) {
        const auto alignment = std::min<uint64_t>(16, 4 * input_.element_size());
        args_.out = kernels::address(out);
        args_.ndim = static_cast<uint32_t>(extents.size());
        std::vector<kernels::Dim> table(extents.size());
        kernels::write_dims(extents, reinterpret_cast<char*>(table.data()));
        kernel
            .call({.workgroup = kernels::launch_config().workgroup,
                   .subgroup = kernels::launch_config().subgroup,
                   .type = kernels::code(input_.scalar_type()),
                   .aligned = args_.input % alignment == 0,
                   .tiles = tiles_,
                   .item_bytes = item_bytes,
                   .wide = args_.count > std::numeric_limits<uint32_t>::max()})
            .read(input_)
            .read(items)
            .read(counts_)
            .write(out)
            .dispatch_table(args_, table, kernels::Grid::linear(groups_));
    }

    const Tensor& input_;
    Tensor counts_;
    shader::NonzeroArgs args_{};
    uint32_t tiles_;
    uint64_t groups_;
};

}  // namespace

Tensor& ANYMPS_FUNC(nonzero_out)(const Tensor& self, Tensor& out) {
    TORCH_CHECK(out.scalar_type() == at::kLong,
                "nonzero: Expected out tensor to have scalar type Long but got scalar type ",
                out.scalar_type());
    at::assert_no_internal_overlap(out);
    at::assert_no_overlap(out, self);
    const int64_t ndim = self.dim();
    if (self.numel() == 0) {
        at::native::resize_output(out, {0, ndim});
        return out;
    }
    const Tensor input = self.contiguous();
    Nonzero nonzero(input);
    const int64_t found = nonzero.count();
    // As on the CPU, each dimension's coordinates lie together.
    if (at::native::resize_output(out, {found, ndim})) out.as_strided_({found, ndim}, {1, found});
    if (found == 0 || ndim == 0) return out;
    const Tensor columns = out.t().is_contiguous() ? out.t() : at::empty({ndim, found}, out.options());
    nonzero.write_positions(columns);
    if (!out.t().is_contiguous()) out.copy_(columns.t());
    return out;
}

ANYMPS_ROW(nonzero, nonzero_out(self, NewTensor(at::empty({0, self.dim()}, self.options().dtype(at::kLong)))))

// The first `size` positions; where there are fewer, rows of fill_value follow.
Tensor& ANYMPS_FUNC(nonzero_static_out)(const Tensor& self, int64_t size, int64_t fill_value, Tensor& out) {
    TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
    TORCH_CHECK(out.scalar_type() == at::kLong,
                "nonzero_static: Expected out tensor to have scalar type Long but got scalar type ",
                out.scalar_type());
    const Tensor found = nonzero(self);
    const int64_t kept = std::min(size, found.size(0));
    at::native::resize_output(out, {size, self.dim()});
    out.narrow(0, 0, kept).copy_(found.narrow(0, 0, kept));
    out.narrow(0, kept, size - kept).fill_(fill_value);
    return out;
}

Tensor ANYMPS_FUNC(nonzero_static)(const Tensor& self, int64_t size, int64_t fill_value) {
    TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
    Tensor out = at::empty({size, self.dim()}, self.options().dtype(at::kLong));
    return nonzero_static_out(self, size, fill_value, out);
}

Tensor& ANYMPS_FUNC(masked_select_out)(const Tensor& self, const Tensor& mask, Tensor& out) {
    TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
    TORCH_CHECK(self.scalar_type() == out.scalar_type(),
                "masked_select(): self and result must have the same scalar type");
    at::assert_no_internal_overlap(out);
    at::assert_no_overlap(out, self);
    at::assert_no_overlap(out, mask);
    const auto [from, where] = at::expand_outplace(self, mask);
    const Tensor items = from->contiguous(), flags = where->contiguous();
    if (items.numel() == 0) {
        at::native::resize_output(out, {0});
        return out;
    }
    Nonzero nonzero(flags);
    const int64_t found = nonzero.count();
    at::native::resize_output(out, {found});
    const Tensor selected = out.is_contiguous() ? out : at::empty({found}, out.options());
    if (found > 0) nonzero.write_elements(items, selected);
    if (!selected.is_same(out)) out.copy_(selected);
    return out;
}

ANYMPS_ROW(masked_select, masked_select_out(self, mask, NewTensor(self.options())))

}  // namespace anymps::ops
