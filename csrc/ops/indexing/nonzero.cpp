// Positions of the elements that are not zero: count, scan, one synchronization for the size, write.
#include <anymps/ops/indexing/nonzero_ops.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>

#include "kernels/flat_grid.h"
#include "kernels/kernel_call.h"

namespace anymps::ops {
namespace {

constexpr uint64_t kSpan = 64;
constexpr uint32_t kScanThreads = 256;

struct CountArgs {
    uint64_t input, counts, count, spans;
};

struct ScanArgs {
    uint64_t counts, spans;
};

struct WriteArgs {
    uint64_t input, offsets, out, count, spans;
    uint32_t ndim, pad;
    int64_t sizes[64];
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
    const auto count = static_cast<uint64_t>(input.numel());
    const uint64_t spans = (count + kSpan - 1) / kSpan;
    const Tensor counts = at::empty({static_cast<int64_t>(spans) + 1}, self.options().dtype(at::kLong));
    const uint32_t workgroup = kernels::flat_workgroup();
    const uint32_t type = kernels::code(self.scalar_type());
    const auto grid = kernels::flat_grid(spans);
    kernels::KernelCall("nonzero_count", {workgroup, 0, type, kSpan})
        .read(input)
        .write(counts)
        .dispatch(CountArgs{kernels::address(input), kernels::address(counts), count, spans}, grid);
    kernels::KernelCall("nonzero_scan", {kScanThreads, 0})
        .write(counts)
        .dispatch(ScanArgs{kernels::address(counts), spans}, {1, 1, 1});
    const auto found = counts.select(0, static_cast<int64_t>(spans)).item<int64_t>();

    at::native::resize_output(out, {found, ndim});
    if (found == 0 || ndim == 0) return out;
    const Tensor rows = out.is_contiguous() ? out : at::empty({found, ndim}, out.options());
    WriteArgs args{kernels::address(input),
                   kernels::address(counts),
                   kernels::address(rows),
                   count,
                   spans,
                   static_cast<uint32_t>(ndim),
                   0,
                   {}};
    for (int64_t d = 0; d < ndim; ++d) args.sizes[d] = input.size(d);
    kernels::KernelCall("nonzero_write", {workgroup, 0, type, kSpan})
        .read(input)
        .read(counts)
        .write(rows)
        .dispatch_pointer(&args, offsetof(WriteArgs, sizes) + ndim * sizeof(int64_t), grid);
    if (!rows.is_same(out)) out.copy_(rows);
    return out;
}

Tensor ANYMPS_FUNC(nonzero)(const Tensor& self) {
    Tensor out = at::empty({0, self.dim()}, self.options().dtype(at::kLong));
    return nonzero_out(self, out);
}

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

}  // namespace anymps::ops
