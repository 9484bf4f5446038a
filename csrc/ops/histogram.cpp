// bincount and histc: counts by scattered additions.
#include <anymps/ops/histogram_ops.h>

#include <ATen/native/Resize.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace anymps::ops {

// The size of the result is data: waits for the device.
Tensor ANYMPS_FUNC(bincount)(const Tensor& self, const std::optional<Tensor>& weights, int64_t minlength) {
    TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
    if (self.dim() == 1 && self.numel() == 0) return at::zeros({minlength}, self.options().dtype(at::kLong));
    TORCH_CHECK(self.dim() == 1 && c10::isIntegralType(self.scalar_type(), true),
                "bincount only supports 1-d non-negative integral inputs.");
    const Tensor values = self.to(at::kLong);
    const auto [least, most] = at::aminmax(values);
    TORCH_CHECK(least.item<int64_t>() >= 0, "bincount only supports 1-d non-negative integral inputs.");
    const bool weighted = weights.has_value() && weights->defined();
    TORCH_CHECK(!weighted || (weights->dim() == 1 && weights->numel() == self.numel()),
                "weights should be 1-d and have the same length as input");
    const int64_t bins = std::max(most.item<int64_t>() + 1, minlength);
    const Tensor each = weighted ? (weights->is_floating_point() ? *weights : weights->to(at::kFloat))
                                 : at::ones_like(values);
    return at::zeros({bins}, each.options()).scatter_add_(0, values, each);
}

// Elements outside of [min, max] are left out; min == max takes the data's own range, and waits for the
// device.
Tensor& ANYMPS_FUNC(histc_out)(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max,
                               Tensor& out) {
    TORCH_CHECK_NOT_IMPLEMENTED(self.is_floating_point(), "\"histogram_cpu\" not implemented for '",
                                c10::toString(self.scalar_type()), "'");
    TORCH_CHECK(bins > 0, "torch.histc(): bins must be > 0, but got ", bins);
    TORCH_CHECK(self.scalar_type() == out.scalar_type(),
                "torch.histogram: input tensor and hist tensor should",
                " have the same dtype, but got input ", self.scalar_type(), " and hist ", out.scalar_type());
    double low = min.to<double>(), high = max.to<double>();
    if (low == high && self.numel() > 0) {
        const auto [least, most] = at::aminmax(self);
        low = least.item<double>();
        high = most.item<double>();
    }
    TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "range of [", low, ", ", high, "] is not finite");
    TORCH_CHECK(low <= high, "max must be larger than min");
    if (low == high) {
        low -= 1;
        high += 1;
    }
    at::native::resize_output(out, {bins});
    out.zero_();
    const Tensor values = self.reshape(-1);
    const Tensor inside = values.ge(low).logical_and_(values.le(high));
    const Tensor bin =
        values.to(at::kFloat).sub(low).mul_(static_cast<double>(bins)).div_(high - low).to(at::kLong);
    out.scatter_add_(0, bin.clamp_(0, bins - 1), inside.to(out.scalar_type()));
    return out;
}

Tensor ANYMPS_FUNC(histc)(const Tensor& self, int64_t bins, const Scalar& min, const Scalar& max) {
    Tensor out = at::zeros({0}, self.options());
    return histc_out(self, bins, min, max, out);
}

}  // namespace anymps::ops
