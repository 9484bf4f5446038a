#include "runtime/sparse_members.h"

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>

namespace anymps::runtime {

void take_members(const at::Tensor& tensor, const at::Tensor& other) {
    if (tensor.layout() == c10::kSparse) {
        auto* impl = static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
        const at::Tensor indices = other._indices(), values = other._values().to(tensor.scalar_type());
        const bool coalesced = other.is_coalesced();
        impl->raw_resize_(other.sparse_dim(), other.dense_dim(), other.sizes());
        impl->set_indices_and_values_unsafe(indices, values);
        impl->set_coalesced(coalesced);
    } else {
        auto* impl = at::sparse_csr::get_sparse_csr_impl(tensor);
        const auto [compressed_indices, plain_indices] = at::sparse_csr::getCompressedPlainIndices(other);
        impl->set_layout(other.layout());
        impl->set_member_tensors(compressed_indices, plain_indices, other.values().to(tensor.scalar_type()),
                                 other.sizes());
    }
}

}  // namespace anymps::runtime
