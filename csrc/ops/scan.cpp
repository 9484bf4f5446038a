// cumsum, cumprod, logcumsumexp, cummax, cummin.
#include <anymps/ops/scan_ops.h>

#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/flat_grid.h"
#include "kernels/kernel_call.h"
#include "runtime/device.h"

namespace anymps::ops {
namespace {

enum class Scan : uint32_t { Sum = 0, Product, LogSumExp, Maximum, Minimum };

struct ScanArgs {
    uint64_t input, out, indices, partials, rows, length, chunk;
    uint32_t chunks, pad;
};

void scan_rows(const Tensor& input, const Tensor& out, const Tensor& indices, Scan scan) {
    const bool software = runtime::device().info().is_software;
    const uint32_t workgroup = software ? 8 : 64;
    ScanArgs args{};
    args.rows = static_cast<uint64_t>(input.size(0));
    args.length = static_cast<uint64_t>(input.size(1));
    // Enough chunks to fill the device, none shorter than the scan over them is long.
    const auto balanced = static_cast<uint64_t>(std::sqrt(static_cast<double>(args.length)));
    const uint64_t wanted = std::max<uint64_t>(1, (software ? 64 : 65536) / args.rows);
    args.chunk = std::max<uint64_t>({16, balanced / (software ? 1 : 2), args.length / wanted});
    args.chunks = static_cast<uint32_t>((args.length + args.chunk - 1) / args.chunk);
    const Tensor partials = at::empty({input.size(0), args.chunks, 2}, input.options().dtype(at::kLong));
    args.input = kernels::address(input);
    args.out = kernels::address(out);
    args.indices = indices.defined() ? kernels::address(indices) : 0;
    args.partials = kernels::address(partials);
    // Integers are added in int64 and cut when they are stored.
    const bool integral = at::isIntegralType(out.scalar_type(), /*includeBool=*/true);
    const auto compute = integral ? kernels::Compute::I64 : kernels::compute_of(out.scalar_type());
    const auto run = [&](const char* step, uint64_t threads) {
        kernels::KernelCall(
            kernels::kernel_id(std::string(step) + '_' + kernels::suffix(compute)),
            std::array<uint32_t, 5>{workgroup, 0, kernels::code(input.scalar_type()),
                                    kernels::code(out.scalar_type()), static_cast<uint32_t>(scan)})
            .read(input)
            .write(partials)
            .write(out)
            .write(indices)
            .dispatch_pointer(args, kernels::flat_grid(threads, workgroup));
    };
    run("scan_reduce", args.rows * args.chunks);
    run("scan_partials", args.rows);
    run("scan_chunks", args.rows * args.chunks);
}

// out (and indices) along dim; out's dtype is the one to accumulate in (16-bit floating types: in float).
void scan(const Tensor& self, int64_t dim, const Tensor& out, const Tensor& indices, Scan operation) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    if (self.numel() == 0) return;
    const auto rows = [&](const Tensor& t) {
        return t.dim() == 0 ? t.view({1, 1}) : t.movedim(dim, -1).contiguous().view({-1, t.size(dim)});
    };
    const bool last = self.dim() == 0 || dim == self.dim() - 1;
    // The input is converted first where that changes values, as on the CPU: int16 sums of int32 numbers,
    // say.
    const Tensor input = rows(at::isFloatingType(out.scalar_type()) ? self : self.to(out.scalar_type()));
    const auto target = [&](const Tensor& t) {
        if (!t.defined() || (last && t.is_contiguous())) return t.defined() ? t.view(input.sizes()) : t;
        return at::empty(input.sizes(), t.options());
    };
    const Tensor to = target(out), to_indices = target(indices);
    scan_rows(input, to, to_indices, operation);
    const auto give = [&](const Tensor& t, const Tensor& computed) {
        if (!t.defined() || t.data_ptr() == computed.data_ptr()) return;
        auto sizes = self.sizes().vec();
        if (!sizes.empty()) {
            sizes.erase(sizes.begin() + dim);
            sizes.push_back(self.size(dim));
        }
        t.copy_(self.dim() == 0 ? computed.squeeze() : computed.view(sizes).movedim(-1, dim));
    };
    give(out, to);
    give(indices, to_indices);
}

}  // namespace

TORCH_IMPL_FUNC(cumsum_out)
(const Tensor& self, int64_t dim, std::optional<ScalarType> dtype, const Tensor& out) {
    scan(self, dim, out, {}, Scan::Sum);
}

TORCH_IMPL_FUNC(cumprod_out)
(const Tensor& self, int64_t dim, std::optional<ScalarType> dtype, const Tensor& out) {
    scan(self, dim, out, {}, Scan::Product);
}

Tensor& ANYMPS_FUNC(_logcumsumexp_out)(const Tensor& self, int64_t dim, Tensor& out) {
    TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point() || self.is_complex(),
                                "\"logcumsumexp_out_cpu\" not implemented for '", self.scalar_type(), "'");
    at::native::resize_output(out, self.sizes());
    scan(self, dim, out, {}, Scan::LogSumExp);
    return out;
}

Tensor ANYMPS_FUNC(_logcumsumexp)(const Tensor& self, int64_t dim) {
    Tensor out = at::empty_like(self, at::MemoryFormat::Contiguous);
    return _logcumsumexp_out(self, dim, out);
}

void ANYMPS_FUNC(_cummax_helper)(const Tensor& self, Tensor& values, Tensor& indices, int64_t dim) {
    scan(self, dim, values, indices, Scan::Maximum);
}

void ANYMPS_FUNC(_cummin_helper)(const Tensor& self, Tensor& values, Tensor& indices, int64_t dim) {
    scan(self, dim, values, indices, Scan::Minimum);
}

}  // namespace anymps::ops
