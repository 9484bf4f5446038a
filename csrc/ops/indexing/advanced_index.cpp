// at::native::AdvancedIndex is declared in ATen's headers but its constructor is not exported by
// libtorch_cpu: this is the definition that at::native::make_info links to. The semantics are NumPy's
// advanced indexing.
#include <ATen/core/Tensor.h>
#include <ATen/native/IndexingUtils.h>

#include <algorithm>

namespace at::native {

AdvancedIndex::AdvancedIndex(const Tensor& self, TensorList list) : dims_before(0), dims_after(0) {
    int64_t dims_indexed = 0;
    IntArrayRef replacement;
    for (size_t d = 0; d < list.size(); ++d) {
        if (!list[d].defined()) {
            ++(dims_indexed == 0 ? dims_before : dims_after);
            continue;
        }
        ++dims_indexed;
        replacement = list[d].sizes();
        indexed_sizes.push_back(self.size(d));
        indexed_strides.push_back(self.stride(d) * static_cast<int64_t>(self.element_size()));
    }
    const auto has_zero = [](IntArrayRef sizes) {
        return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
    };
    TORCH_CHECK_INDEX(!has_zero(indexed_sizes) || has_zero(replacement),
                      "index is out of bounds for dimension with size 0");

    // The indexed dimensions, which are adjacent, become those of the indices and stand still.
    DimVector shape(self.sizes()), strides(self.strides());
    const auto replace = [&](DimVector& v, IntArrayRef by) {
        v.erase(v.begin() + dims_before, v.begin() + dims_before + dims_indexed);
        v.insert(v.begin() + dims_before, by.begin(), by.end());
    };
    replace(shape, replacement);
    replace(strides, DimVector(replacement.size(), 0));
    src = self.as_strided(shape, strides);
    for (const Tensor& index : list) {
        if (!index.defined()) continue;
        DimVector sizes(dims_before, 1);
        sizes.append(index.sizes().begin(), index.sizes().end());
        sizes.append(dims_after, 1);
        indices.push_back(index.reshape(sizes));
    }
}

}  // namespace at::native
