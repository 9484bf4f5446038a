// histogram and histogramdd: a binary search for the bin along each dimension, then scattered additions.
#include <anymps/ops/sort/histogramdd_ops.h>

#include <ATen/native/Resize.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "kernels/check_dtype.h"

namespace anymps::ops {
namespace {

using Range = std::optional<c10::ArrayRef<double>>;
using OptionalTensor = std::optional<Tensor>;

void check_type(const Tensor& self) {
    kernels::check_implemented(self.scalar_type() == at::kFloat, self.scalar_type(), "histogramdd");
}

void check_inputs(const Tensor& input, TensorList bins, const OptionalTensor& weight) {
    TORCH_CHECK(input.dim() >= 2,
                "torch.histogramdd: input tensor should have at least 2 dimensions, but got ", input.dim());
    const int64_t dims = input.size(-1);
    TORCH_CHECK(static_cast<int64_t>(bins.size()) == dims, "torch.histogramdd: expected ", dims,
                " sequences of bin edges for a ", dims, "-dimensional histogram but got ", bins.size());
    for (int64_t d = 0; d < dims; ++d) {
        TORCH_CHECK(input.dtype() == bins[d].dtype(),
                    "torch.histogramdd: input tensor and bins tensors should",
                    " have the same dtype, but got input with dtype ", input.dtype(),
                    " and bins for dimension ", d, " with dtype ", bins[d].dtype());
        TORCH_CHECK(bins[d].dim() == 1, "torch.histogramdd: bins tensor should have one dimension,",
                    " but got ", bins[d].dim(), " dimensions in the bins tensor for dimension ", d);
        TORCH_CHECK(bins[d].numel() > 0, "torch.histogramdd: bins tensor should have at least 1 element,",
                    " but got ", bins[d].numel(), " elements in the bins tensor for dimension ", d);
    }
    if (!weight.has_value() || !weight->defined()) return;
    TORCH_CHECK(input.dtype() == weight->dtype(), "torch.histogramdd: if weight tensor is provided,",
                " input tensor and weight tensor should have the same dtype, but got input(", input.dtype(),
                ")", ", and weight(", weight->dtype(), ")");
    const IntArrayRef points = input.sizes().slice(0, input.dim() - 1);
    const std::vector<int64_t> given = weight->dim() == 0 ? std::vector<int64_t>{1} : weight->sizes().vec();
    TORCH_CHECK(
        points == IntArrayRef(given), "torch.histogramdd: if weight tensor is provided it should have",
        " the same shape as the input tensor excluding its innermost dimension, but got input with shape ",
        input.sizes(), " and weight with shape ", weight->sizes());
}

// Checks bin counts and the dtypes of given outputs, and gives them their sizes.
void prepare_outputs(const Tensor& input, IntArrayRef counts, const Tensor& hist, TensorList edges) {
    TORCH_CHECK(input.dtype() == hist.dtype(), "torch.histogram: input tensor and hist tensor should",
                " have the same dtype, but got input ", input.dtype(), " and hist ", hist.dtype());
    for (size_t d = 0; d < counts.size(); ++d) {
        TORCH_CHECK(input.dtype() == edges[d].dtype(),
                    "torch.histogram: input tensor and bin_edges tensor should",
                    " have the same dtype, but got input ", input.dtype(), " and bin_edges ",
                    edges[d].dtype(), " for dimension ", d);
        TORCH_CHECK(counts[d] > 0, "torch.histogram(): bins must be > 0, but got ", counts[d],
                    " for dimension ", d);
        at::native::resize_output(edges[d], {counts[d] + 1});
    }
    at::native::resize_output(hist, counts);
}

// The outermost edges of each dimension: those given, or the data's own, for which this waits for the device.
std::vector<std::pair<double, double>> outer_edges(const Tensor& input, const Range& range) {
    const int64_t dims = input.size(-1);
    std::vector<std::pair<double, double>> edges(dims, {0, 1});
    if (range.has_value()) {
        TORCH_CHECK(static_cast<int64_t>(range->size()) == 2 * dims, "torch.histogramdd: for a ", dims,
                    "-dimensional histogram", " range should have ", 2 * dims, " elements, but got ",
                    range->size());
        for (int64_t d = 0; d < dims; ++d) edges[d] = {(*range)[2 * d], (*range)[2 * d + 1]};
    } else if (input.numel() > 0) {
        const Tensor points = input.reshape({-1, dims});
        const Tensor low = at::amin(points, 0).cpu(), high = at::amax(points, 0).cpu();
        for (int64_t d = 0; d < dims; ++d)
            edges[d] = {low.const_data_ptr<float>()[d], high.const_data_ptr<float>()[d]};
    }
    for (int64_t d = 0; d < dims; ++d) {
        auto& [low, high] = edges[d];
        TORCH_CHECK(std::isfinite(low) && std::isfinite(high), "torch.histogramdd: dimension ", d,
                    "'s range [", low, ", ", high, "] is not finite");
        TORCH_CHECK(low <= high, "torch.histogramdd: min should not exceed max, but got", " min ", low,
                    " max ", high, " for dimension ", d);
        if (low == high) {
            low -= 0.5;
            high += 0.5;
        }
    }
    return edges;
}

std::vector<Tensor> even_edges(const Tensor& self, IntArrayRef counts, const Range& range) {
    TORCH_CHECK(self.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions");
    check_type(self);
    const auto outer = outer_edges(self, range);
    TORCH_CHECK(outer.size() == counts.size(),
                "histogramdd: The size of bins must be equal to the innermost dimension of the input.");
    std::vector<Tensor> edges;
    for (size_t d = 0; d < counts.size(); ++d) {
        TORCH_CHECK(counts[d] > 0, "torch.histogram(): bins must be > 0, but got ", counts[d],
                    " for dimension ", d);
        edges.push_back(at::linspace(outer[d].first, outer[d].second, counts[d] + 1, self.options()));
    }
    return edges;
}

// Sums of values by bin, and the sum of these. Weights of both signs cancel, and a density divides by what is
// left: added up as integers, they do not depend on the order. Waits for the device.
std::pair<Tensor, Tensor> weighted_sums(const Tensor& bin, const Tensor& values, int64_t bins) {
    const double greatest = values.numel() > 0 ? values.abs().max().item<double>() : 0;
    if (greatest == 0 || !std::isfinite(greatest)) {
        const Tensor sums = at::zeros({bins}, values.options()).scatter_add_(0, bin, values);
        return {sums, sums.sum()};
    }
    // The greatest sum fits 62 bits: |value| < 2^exponent and fewer than 2^digits values.
    int exponent = 0, digits = 0;
    std::frexp(greatest, &exponent);
    std::frexp(static_cast<double>(values.numel()), &digits);
    const int shift = 62 - exponent - digits;
    const double first = std::ldexp(1.0, shift / 2), second = std::ldexp(1.0, shift - shift / 2);
    const Tensor fixed = values.mul(first).mul_(second).to(at::kLong);
    const Tensor sums = at::zeros({bins}, fixed.options()).scatter_add_(0, bin, fixed);
    const auto floating = [&](const Tensor& t) {
        return t.to(values.scalar_type()).mul_(1 / second).mul_(1 / first);
    };
    return {floating(sums), floating(sums.sum())};
}

// Bins hold their left edge, the last one both. Points outside of any dimension's range do not count.
void count_points(const Tensor& self, TensorList edges, const OptionalTensor& weight, bool density,
                  const Tensor& hist) {
    const int64_t dims = self.size(-1);
    if (dims == 0) {  // the CPU counts no points of no dimensions
        hist.fill_(density ? std::numeric_limits<double>::quiet_NaN() : 0.0);
        return;
    }
    const Tensor points = self.reshape({-1, dims});
    Tensor bin = at::zeros({points.size(0)}, self.options().dtype(at::kLong));
    Tensor inside = at::ones({points.size(0)}, self.options().dtype(at::kBool));
    for (int64_t d = 0; d < dims; ++d) {
        const Tensor x = points.select(1, d).contiguous(), e = edges[d].contiguous();
        const int64_t bins = e.numel() - 1;
        const Tensor found = at::searchsorted(e, x, false, true).sub_(1).clamp_max_(bins - 1).clamp_min_(0);
        inside.logical_and_(x.ge(e.select(0, 0))).logical_and_(x.le(e.select(0, bins)));
        bin.mul_(bins).add_(found);
    }
    const bool weighted = weight.has_value() && weight->defined();
    const Tensor ones = at::ones({1}, self.options()).expand({points.size(0)});
    const Tensor values = at::where(inside, weighted ? weight->reshape(-1) : ones, 0.0);
    Tensor sums, total;
    if (weighted) {
        std::tie(sums, total) = weighted_sums(bin, values, hist.numel());
    } else {
        sums = at::zeros({hist.numel()}, self.options()).scatter_add_(0, bin, values);
        total = sums.sum();
    }
    Tensor result = sums.view(hist.sizes());
    if (density) {
        result.div_(total);
        for (int64_t d = 0; d < dims; ++d) {
            std::vector<int64_t> shape(dims, 1);
            shape[d] = hist.size(d);
            result.div_(edges[d].diff().view(shape));
        }
    }
    hist.copy_(result);
}

Tensor histogram_of(const Tensor& self, TensorList bins, const OptionalTensor& weight, bool density) {
    check_inputs(self, bins, weight);
    std::vector<int64_t> counts;
    for (const Tensor& edges : bins) counts.push_back(edges.numel() - 1);
    for (size_t d = 0; d < counts.size(); ++d) {
        TORCH_CHECK(counts[d] > 0, "torch.histogram(): bins must be > 0, but got ", counts[d],
                    " for dimension ", d);
    }
    check_type(self);
    Tensor hist = at::empty(counts, self.options());
    count_points(self, bins, weight, density, hist);
    return hist;
}

OptionalTensor flat(const OptionalTensor& weight) {
    return weight.has_value() && weight->defined() ? OptionalTensor(weight->reshape({weight->numel()}))
                                                   : weight;
}

// A histogram of all elements: points of one dimension.
std::tuple<Tensor&, Tensor&> histogram_into(const Tensor& self, const Tensor& edges,
                                            const OptionalTensor& weight, bool density, Tensor& hist,
                                            Tensor& bin_edges) {
    const Tensor points = self.reshape({self.numel(), 1});
    check_inputs(points, {edges}, flat(weight));
    prepare_outputs(points, {edges.numel() - 1}, hist, {bin_edges});
    check_type(self);
    bin_edges.copy_(edges);
    count_points(points, {edges}, flat(weight), density, hist);
    return {hist, bin_edges};
}

}  // namespace

ANYMPS_ROW(_histogramdd_bin_edges, even_edges(self, bins, range))
ANYMPS_ROW(_histogramdd_from_bin_cts, histogram_of(self, even_edges(self, bins, range), weight, density))
ANYMPS_ROW(_histogramdd_from_bin_tensors, histogram_of(self, bins, weight, density))
ANYMPS_ROW(histogram_bins_tensor_out, histogram_into(self, bins, weight, density, hist, bin_edges))

std::tuple<Tensor, Tensor> ANYMPS_FUNC(histogram_bins_tensor)(const Tensor& self, const Tensor& bins,
                                                              const std::optional<Tensor>& weight,
                                                              bool density) {
    Tensor hist = at::empty({0}, self.options()), edges = at::empty({0}, bins.options());
    return histogram_bins_tensor_out(self, bins, weight, density, hist, edges);
}

std::tuple<Tensor&, Tensor&> ANYMPS_FUNC(histogram_bin_ct_out)(const Tensor& self, int64_t bins,
                                                               std::optional<c10::ArrayRef<double>> range,
                                                               const std::optional<Tensor>& weight,
                                                               bool density, Tensor& hist,
                                                               Tensor& bin_edges) {
    const Tensor edges = even_edges(self.reshape({self.numel(), 1}), {bins}, range)[0];
    return histogram_into(self, edges, weight, density, hist, bin_edges);
}

std::tuple<Tensor, Tensor> ANYMPS_FUNC(histogram_bin_ct)(const Tensor& self, int64_t bins,
                                                         std::optional<c10::ArrayRef<double>> range,
                                                         const std::optional<Tensor>& weight, bool density) {
    Tensor hist = at::empty({0}, self.options()), edges = at::empty({0}, self.options());
    return histogram_bin_ct_out(self, bins, range, weight, density, hist, edges);
}

}  // namespace anymps::ops
