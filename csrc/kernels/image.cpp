#include "kernels/image.h"

#include <limits>

namespace anymps::kernels {
namespace {

uint32_t narrow(int64_t value) {
    TORCH_CHECK(value >= 0 && value <= std::numeric_limits<int32_t>::max(), "a size or stride of ", value,
                " elements is too large for this operator on the mps device");
    return static_cast<uint32_t>(value);
}

}  // namespace

Image::Image(const at::TensorBase& tensor, int64_t spatial) : tensor_(tensor) {
    if (!tensor.defined()) return;
    const int64_t dims = tensor.dim();
    const auto set = [&](int i, int64_t dim) {
        sizes_[i] = narrow(tensor.size(dim));
        strides_.values[i] = tensor.size(dim) > 1 ? narrow(tensor.stride(dim)) : 0;
    };
    for (int64_t i = 0; i < spatial; ++i) set(static_cast<int>(5 - spatial + i), dims - spatial + i);
    set(1, dims - spatial - 1);
    if (dims > spatial + 1) set(0, 0);
}

bool Image::channels_fast() const {
    return sizes_[1] > 1 && strides_.values[1] == 1 && !tensor_.is_contiguous();
}

ImageIndex Image::index() const {
    ImageIndex index;
    const int channels_first[4] = {4, 3, 2, 1}, channels_last[4] = {1, 4, 3, 2};
    const auto& order = channels_fast() ? channels_last : channels_first;
    for (int i = 0; i < 4; ++i) index.sizes[i] = FastDivider(sizes_[order[i]]);
    return index;
}

}  // namespace anymps::kernels
