// cumsum, cumprod, logcumsumexp, cummax, cummin.
#include "ops/reduction/scan.h"

#include <anymps/ops/reduction/scan_ops.h>
#include <anymps/shaders/reduction/scan.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"

namespace anymps::ops {
namespace {

enum class Scan : uint32_t { Sum = 0, Product, LogSumExp, Maximum, Minimum };

namespace shader = shaders::scan;
using shader::kLines;
using shader::ScanArgs;

enum Kind : size_t { kPlain, kLogSumExp, kProduct, kExtremum };
constexpr kernels::KernelFamily kKernels(shader::kernels_with<ScanArgs>, {"scan_rows", "scan_columns"},
                                         {"", "_reduce"}, {"_", "_logsumexp_", "_product_", "_extremum_"},
                                         {"f32", "i32", "i64", "c64"});  // by Compute

// Where the columns of a matrix are this many, neighbouring threads read neighbouring elements of them.
constexpr int64_t kMinColumns = 16;

// Products of longer rows have two floats a number in all steps.
constexpr uint64_t kOrdinary = 4096;

uint64_t round_up(uint64_t n, uint64_t to) {
    return kernels::ceil_div(n, to) * to;
}

// How many threads work on a row, and on how many chunks of it.
struct Plan {
    bool columns;
    uint32_t lanes;
    uint32_t only = 0;  // lines of a row that has one tile
    uint64_t chunk, chunks, groups;

    Plan(const ScanArgs& args, bool long_code) {
        const kernels::LaunchConfig& t = kernels::launch_config();
        columns = t.software || args.inner > 1 || long_code;
        lanes = t.workgroup;
        uint64_t most, unit;  // chunks a row; elements
        if (columns) {
            // Every chunk reads what those before it hold.
            const uint64_t threads = args.rows * args.inner;
            most = t.software ? 64 / threads : std::min<uint64_t>(1024, 131072 / threads);
            unit = t.software ? std::max<uint64_t>(16, static_cast<uint64_t>(std::sqrt(args.length))) : 16;
        } else {
            const bool few_rows = args.rows * t.subgroup < 65536;
            const bool whole = args.length > uint64_t{64} * t.subgroup ||
                               (few_rows && args.length > uint64_t{4} * t.subgroup);
            if (!whole) lanes = kernels::power_of_two(kernels::ceil_div(args.length, 4), t.subgroup);
            most = whole ? t.target_groups / args.rows : 1;
            unit = uint64_t{lanes} * 4 * kLines;
        }
        most = std::max<uint64_t>(most, 1);
        chunk = round_up(kernels::ceil_div(args.length, most), unit);
        chunks = kernels::ceil_div(args.length, chunk);
        if (!columns && args.length <= unit)
            only = static_cast<uint32_t>(kernels::ceil_div(args.length, uint64_t{lanes} * 4));
        const uint64_t teams = args.rows * chunks * args.inner;
        groups = kernels::ceil_div(teams * (columns ? 1 : lanes), t.workgroup);
    }
};

bool aligned(const Tensor& t) {
    return kernels::address(t) % std::min<uint64_t>(16, 4 * t.element_size()) == 0;
}

// Dense tensors [rows, length, inner].
void scan_dense(const Tensor& input, const Tensor& out, const Tensor& indices, Scan scan) {
    ScanArgs args{};
    args.input = kernels::address(input);
    args.out = kernels::address(out);
    args.indices = kernels::address_or_0(indices);
    args.rows = static_cast<uint64_t>(input.size(0));
    args.length = static_cast<uint64_t>(input.size(1));
    args.inner = static_cast<uint64_t>(input.size(2));
    TORCH_CHECK(!indices.defined() || args.length < UINT32_MAX, "cummax, cummin: rows of ", args.length,
                " elements are too long for the mps device");
    // Complex logarithms are too much code to have it for every element of a thread.
    const bool exponentials = scan == Scan::LogSumExp;
    const Plan plan(args, exponentials && out.is_complex());
    args.chunk = plan.chunk;
    args.chunks = kernels::group_count(plan.chunks);
    Tensor partials;
    if (args.chunks > 1) {
        partials =
            at::empty({input.size(0), args.chunks, input.size(2), 2}, input.options().dtype(at::kLong));
        args.partials = kernels::address(partials);
    }
    // Integers are added in int64 and cut when they are stored.
    const bool integral = at::isIntegralType(out.scalar_type(), /*includeBool=*/true);
    const auto compute = integral ? kernels::Compute::I64 : kernels::compute_of(out.scalar_type());
    const bool vectors =
        args.length % 4 == 0 && aligned(input) && aligned(out) && (!indices.defined() || aligned(indices));
    const bool product = scan == Scan::Product && !integral && !plan.columns && args.length > kOrdinary;
    const Kind kind = indices.defined() ? kExtremum : exponentials ? kLogSumExp : product ? kProduct : kPlain;
    const bool narrow = indices.defined() && integral && out.element_size() <= 4;
    const auto type = static_cast<size_t>(narrow ? kernels::Compute::I32 : compute);
    const auto run = [&](bool reduce) {
        kKernels(plan.columns, reduce, kind, type)
            .call({.workgroup = kernels::launch_config().workgroup,
                   .subgroup = kernels::launch_config().subgroup,
                   .in_type = kernels::code(input.scalar_type()),
                   .out_type = kernels::code(out.scalar_type()),
                   .operation = static_cast<uint32_t>(scan),
                   .lanes = plan.lanes,
                   .aligned = vectors,
                   .only = plan.only})
            .read(input)
            .write(partials)
            .write(out)
            .write(indices)
            .dispatch(args, kernels::Grid::linear(plan.groups));
    };
    if (args.chunks > 1) run(true);
    run(false);
}

// What the sums of out's type are made of: values are converted first where that changes them, as on the
// CPU. Whole numbers may be cut after they are added.
bool reads_as(const Tensor& self, const Tensor& out) {
    return at::isFloatingType(out.scalar_type()) ||
           (at::isIntegralType(self.scalar_type(), true) && at::isIntegralType(out.scalar_type(), false));
}

// out (and indices) along dim; out's dtype is the one to accumulate in (16-bit floating types: in float).
void scan(const Tensor& self, int64_t dim, const Tensor& out, const Tensor& indices, Scan operation) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    if (self.numel() == 0) return;
    at::assert_no_internal_overlap(out);
    at::assert_no_partial_overlap(out, self);
    const auto sizes = self.sizes();
    const int64_t length = self.dim() == 0 ? 1 : self.size(dim);
    const int64_t inner = self.dim() == 0 ? 1 : c10::multiply_integers(sizes.begin() + dim + 1, sizes.end());
    const bool software = kernels::launch_config().software;
    // Few columns become rows.
    const bool turned = inner > 1 && inner < kMinColumns && !software;
    const auto dense = [&](const Tensor& t) {
        const Tensor whole = t.contiguous().view({-1, length, inner});
        return turned ? whole.transpose(1, 2).contiguous().view({-1, length, 1}) : whole;
    };
    const Tensor input = dense(reads_as(self, out) ? self : self.to(out.scalar_type()));
    const auto target = [&](const Tensor& t) {
        if (t.defined() && t.is_contiguous() && !turned) return t.view(input.sizes());
        return t.defined() ? at::empty(input.sizes(), t.options()) : t;
    };
    const Tensor to = target(out), to_indices = target(indices);
    // Extrema are read again where they are.
    const bool in_place = indices.defined() && to.is_alias_of(input);
    scan_dense(in_place ? input.clone() : input, to, to_indices, operation);
    const auto give = [&](const Tensor& t, const Tensor& computed) {
        if (!t.defined() || t.data_ptr() == computed.data_ptr()) return;
        const Tensor whole = turned ? computed.view({-1, inner, length}).transpose(1, 2) : computed;
        t.copy_(whole.reshape(sizes));
    };
    give(out, to);
    give(indices, to_indices);
}

}  // namespace

void sums_of_rows(const Tensor& rows) {
    const Tensor dense = rows.unsqueeze(2);
    if (rows.numel() > 0) scan_dense(dense, dense, {}, Scan::Sum);
}

ANYMPS_ROW(cumsum_out, scan(self, dim, out, {}, Scan::Sum))
ANYMPS_ROW(cumprod_out, scan(self, dim, out, {}, Scan::Product))

Tensor& ANYMPS_FUNC(_logcumsumexp_out)(const Tensor& self, int64_t dim, Tensor& out) {
    kernels::check_implemented(self.is_floating_point() || self.is_complex(), self.scalar_type(),
                               "logcumsumexp_out_cpu");
    at::native::resize_output(out, self.sizes());
    scan(self, dim, out, {}, Scan::LogSumExp);
    return out;
}

ANYMPS_ROW(_logcumsumexp,
           _logcumsumexp_out(self, dim, NewTensor(at::empty_like(self, at::MemoryFormat::Contiguous))))

void ANYMPS_FUNC(_cummax_helper)(const Tensor& self, Tensor& values, Tensor& indices, int64_t dim) {
    kernels::check_real(self.scalar_type(), "cummax_cpu");
    scan(self, dim, values, indices, Scan::Maximum);
}

void ANYMPS_FUNC(_cummin_helper)(const Tensor& self, Tensor& values, Tensor& indices, int64_t dim) {
    kernels::check_real(self.scalar_type(), "cummin_cpu");
    scan(self, dim, values, indices, Scan::Minimum);
}

}  // namespace anymps::ops
