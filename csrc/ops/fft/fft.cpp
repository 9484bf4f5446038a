// _fft_c2c, _fft_r2c, _fft_c2r: what torch.fft, stft and istft are made of.
#include <anymps/ops/fft/fft_ops.h>

#include <ATen/Context.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/SpectralOpsUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <ranges>
#include <vector>

#include "ops/fft/transform.h"

namespace anymps::ops {
namespace {

void check_input(const Tensor& self, ScalarType type) {
    TORCH_CHECK(self.scalar_type() == type, "Unsupported dtype ", self.scalar_type());
}

// The factor of a transform over `dim` of a tensor of these sizes.
double scale_of(int64_t normalization, IntArrayRef sizes, IntArrayRef dim) {
    double count = 1;
    for (const int64_t d : dim) count *= static_cast<double>(sizes[at::maybe_wrap_dim(d, sizes.size())]);
    switch (static_cast<at::native::fft_norm_mode>(normalization)) {
        case at::native::fft_norm_mode::none:
            return 1;
        case at::native::fft_norm_mode::by_root_n:
            return 1 / std::sqrt(count);
        default:
            return 1 / count;
    }
}

// Complex transforms over `dim`, the last one first; input may be output. The first to run has the scale.
void transform(Tensor input, const Tensor& output, IntArrayRef dim, bool inverse, double scale) {
    for (auto d = dim.rbegin(); d != dim.rend(); ++d) {
        const int64_t along = at::maybe_wrap_dim(*d, output.dim());
        LineTransform{input, output, along, output.size(along), FftSource::Complex, inverse, scale}.run();
        scale = 1;
        input = output;
    }
}

Tensor& copy_to(const Tensor& result, Tensor& out) {
    at::native::resize_output(out, result.sizes());
    return out.copy_(result);
}

// An empty result laid out as PyTorch's meta functions promise it to torch.compile, and as MKL's are: the
// dimensions that are not transformed come first, by the strides of the input, then those of `dim`, in order.
Tensor empty_result(const Tensor& input, IntArrayRef sizes, IntArrayRef dim, at::ScalarType dtype) {
    const auto options = input.options().dtype(dtype);
    std::vector<int64_t> order, strides(sizes.size());
    for (int64_t d = 0; d < input.dim(); ++d)
        if (std::ranges::find(dim, d) == dim.end()) order.push_back(d);
    std::ranges::stable_sort(order, std::greater{}, [&](int64_t d) { return input.stride(d); });
    order.insert(order.end(), dim.begin(), dim.end());
    int64_t stride = 1;
    for (const int64_t d : std::views::reverse(order)) {
        strides[d] = stride;
        stride *= std::max<int64_t>(sizes[d], 1);
    }
    return at::empty_strided(sizes, strides, options);
}

// Of transforms from or to real numbers, which without MKL the meta functions promise to be contiguous.
Tensor empty_real_result(const Tensor& input, IntArrayRef sizes, IntArrayRef dim, at::ScalarType dtype) {
    if (!at::hasMKL()) return at::empty(sizes, input.options().dtype(dtype));
    return empty_result(input, sizes, dim, dtype);
}

// `dim` wrapped, its first `count` by the strides of the input.
std::vector<int64_t> sorted_dims(const Tensor& input, IntArrayRef dim, size_t count) {
    std::vector<int64_t> sorted;
    for (const int64_t d : dim) sorted.push_back(at::maybe_wrap_dim(d, input.dim()));
    std::stable_sort(sorted.begin(), sorted.begin() + static_cast<int64_t>(count),
                     [&](int64_t a, int64_t b) { return input.stride(a) > input.stride(b); });
    return sorted;
}

}  // namespace

// self: complex64. normalization: 0 none, 1 by the square root of the number of elements, 2 by that number.
Tensor ANYMPS_FUNC(_fft_c2c)(const Tensor& self, IntArrayRef dim, int64_t normalization, bool forward) {
    check_input(self, at::kComplexFloat);
    if (dim.empty()) return self.clone();
    const Tensor out =
        empty_result(self, self.sizes(), sorted_dims(self, dim, dim.size()), at::kComplexFloat);
    if (out.numel() > 0) transform(self, out, dim, !forward, scale_of(normalization, self.sizes(), dim));
    return out;
}

// self: float32. onesided keeps the first half of the last transformed dimension.
Tensor ANYMPS_FUNC(_fft_r2c)(const Tensor& self, IntArrayRef dim, int64_t normalization, bool onesided) {
    check_input(self, at::kFloat);
    const int64_t last = at::maybe_wrap_dim(dim.back(), self.dim());
    const int64_t length = self.size(last);
    auto sizes = self.sizes().vec();
    if (onesided) sizes[last] = length / 2 + 1;
    const Tensor out =
        empty_real_result(self, sizes, sorted_dims(self, dim, dim.size() - 1), at::kComplexFloat);
    if (self.numel() == 0) return out;
    const double scale = scale_of(normalization, self.sizes(), dim);
    LineTransform{self, out, last, length, FftSource::Real, false, scale}.run();
    transform(out, out, dim.slice(0, dim.size() - 1), false, 1);
    return out;
}

// self: complex64, last_dim_size / 2 + 1 elements along the last of `dim`; what a real signal could not have
// (an imaginary part of the first, say) is ignored.
Tensor ANYMPS_FUNC(_fft_c2r)(const Tensor& self, IntArrayRef dim, int64_t normalization,
                             int64_t last_dim_size) {
    check_input(self, at::kComplexFloat);
    const int64_t last = at::maybe_wrap_dim(dim.back(), self.dim());
    TORCH_CHECK(last_dim_size >= 1 && self.size(last) > last_dim_size / 2, "Invalid number of data points (",
                last_dim_size, ") specified");
    auto sizes = self.sizes().vec();
    sizes[last] = last_dim_size;
    const auto others = dim.slice(0, dim.size() - 1);
    const Tensor input = others.empty() ? self : _fft_c2c(self, others, 0, false);
    const Tensor out = empty_real_result(input, sizes, {last}, at::kFloat);
    if (out.numel() == 0) return out;
    LineTransform{
        input, out, last, last_dim_size, FftSource::Hermitian, true, scale_of(normalization, sizes, dim)}
        .run();
    return out;
}

ANYMPS_ROW(_fft_c2c_out, copy_to(_fft_c2c(self, dim, normalization, forward), out))
ANYMPS_ROW(_fft_r2c_out, copy_to(_fft_r2c(self, dim, normalization, onesided), out))
ANYMPS_ROW(_fft_c2r_out, copy_to(_fft_c2r(self, dim, normalization, last_dim_size), out))

}  // namespace anymps::ops
