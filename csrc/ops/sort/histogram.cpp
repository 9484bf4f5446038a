// bincount and histc.
#include "ops/sort/histogram.h"

#include <anymps/ops/sort/histogram_ops.h>
#include <anymps/shaders/sort/histogram.h>

#include <ATen/native/Resize.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"

namespace anymps::ops {
namespace {

namespace shader = shaders::histogram;
using shader::kSharedBins;

constexpr uint32_t kMaxRanges = 4;   // readings of the elements; more bins are counted in memory
constexpr uint32_t kMaxCopies = 32;  // of bins in shared memory

// int32 or int64 [bins]: how many elements of `values`, dense, are in each bin. The first bin of whole
// numbers is `origin`, the range of others is [low, high].
Tensor count_bins(const Tensor& values, int64_t bins, int64_t origin, double low, double high) {
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    TORCH_CHECK(bins <= kMax, "histogram: ", bins, " bins are more than the mps device can count");
    if (values.numel() > kMax) {
        const Tensor flat = values.view(-1);
        const int64_t half = flat.numel() / 2;
        return count_bins(flat.narrow(0, 0, half), bins, origin, low, high)
            .to(at::kLong)
            .add_(count_bins(flat.narrow(0, half, flat.numel() - half), bins, origin, low, high));
    }
    const Tensor counts = at::zeros({bins}, values.options().dtype(at::kInt));
    if (values.numel() == 0) return counts;
    const auto& launch_config = kernels::launch_config();
    const uint32_t workgroup = kernels::flat_workgroup();
    shader::HistogramArgs args{};
    args.input = kernels::address(values);
    args.counts = kernels::address(counts);
    args.count = static_cast<uint64_t>(values.numel());
    args.bins = static_cast<uint32_t>(bins);
    args.origin = origin;
    args.low = static_cast<float>(low);
    args.high = static_cast<float>(high);
    uint32_t ranges = static_cast<uint32_t>(kernels::ceil_div(args.bins, kSharedBins)), copies = 0;
    if (ranges > kMaxRanges) {
        ranges = 1;
    } else {
        copies = std::clamp(kSharedBins / args.bins, 1u, std::min(kMaxCopies, workgroup));
    }
    // A workgroup has as many elements as bins, at least.
    const uint64_t unit = uint64_t{workgroup} * 4 * shader::kPrefetch;
    const uint64_t least = std::max<uint64_t>(unit, copies == 0 ? 0 : std::min(args.bins, kSharedBins));
    const uint64_t wanted = std::max(least, kernels::ceil_div(args.count, launch_config.target_groups));
    args.part = kernels::ceil_div(wanted, unit) * unit;
    args.parts = kernels::group_count(kernels::ceil_div(args.count, args.part));
    const bool aligned = args.input % std::min<uint64_t>(16, 4 * values.element_size()) == 0;
    shader::histogram_count
        .call({.workgroup = workgroup,
               .type = kernels::code(values.scalar_type()),
               .aligned = aligned,
               .copies = copies})
        .read(values)
        .write(counts)
        .dispatch(args, kernels::Grid::linear(uint64_t{args.parts} * ranges));
    return counts;
}

}  // namespace

Tensor count_integers(const Tensor& values, int64_t least, int64_t bins) {
    return count_bins(values, bins, least, 0, 0);
}

Tensor extremes(const Tensor& values) {
    const auto [least, most] = at::aminmax(values);
    return at::stack({least, most}).cpu();
}

// The size of the result is data: waits for the device.
Tensor ANYMPS_FUNC(bincount)(const Tensor& self, const std::optional<Tensor>& weights, int64_t minlength) {
    kernels::check_implemented(c10::isIntegralType(self.scalar_type(), /*includeBool=*/true),
                               self.scalar_type(), "bincount_cpu");
    TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
    if (self.dim() == 1 && self.numel() == 0) return at::zeros({minlength}, self.options().dtype(at::kLong));
    TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
    const Tensor range = extremes(self.scalar_type() == at::kBool ? self.to(at::kByte) : self).to(at::kLong);
    const int64_t* const values = range.const_data_ptr<int64_t>();
    TORCH_CHECK(values[0] >= 0, "bincount only supports 1-d non-negative integral inputs.");
    const bool weighted = weights.has_value() && weights->defined();
    TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->numel() == self.numel()),
                "weights should be 1-d and have the same length as input");
    const int64_t bins = std::max(values[1] + 1, minlength);
    if (!weighted) return count_integers(self.contiguous(), 0, bins).to(at::kLong);
    // The CPU adds up all but floats as float64.
    const Tensor each = weights->to(at::kFloat);
    return at::zeros({bins}, each.options()).scatter_add_(0, self.to(at::kLong), each);
}

// Elements outside of [min, max] are left out; min == max takes the data's own range, and waits for the
// device.
Tensor& ANYMPS_FUNC(histc_out)(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max,
                               Tensor& out) {
    TORCH_CHECK(bins > 0, "torch.histogram(): bins must be > 0, but got ", bins, " for dimension 0");
    TORCH_CHECK(self.scalar_type() == out.scalar_type(),
                "torch.histogram: input tensor and hist tensor should",
                " have the same dtype, but got input ", self.scalar_type(), " and hist ", out.scalar_type());
    double low = min.to<double>(), high = max.to<double>();
    const auto check_finite = [&] {
        const bool is_finite = std::isfinite(low) && std::isfinite(high);
        TORCH_CHECK(is_finite, "torch.histc: range of [", low, ", ", high, "] is not finite");
    };
    check_finite();
    TORCH_CHECK(low <= high, "torch.histc: max must be larger than min");
    kernels::check_floating(self.scalar_type(), "histogram_cpu");
    if (low == high && self.numel() > 0) {
        const Tensor range = extremes(self).to(at::kDouble);
        low = range.const_data_ptr<double>()[0];
        high = range.const_data_ptr<double>()[1];
        check_finite();
    }
    if (low == high) {
        low -= 1;
        high += 1;
    }
    at::native::resize_output(out, {bins});
    return out.copy_(count_bins(self.contiguous(), bins, 0, low, high));
}

ANYMPS_ROW(histc, histc_out(self, bins, min, max, NewTensor(self.options())))

}  // namespace anymps::ops
