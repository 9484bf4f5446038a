#include "ops/sparse/compressed.h"

#include <ATen/Context.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/ops/_validate_sparse_compressed_tensor_args.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

namespace anymps::ops {
namespace {

using at::Tensor;
using DtypeOption = std::optional<at::ScalarType>;
using LayoutOption = std::optional<at::Layout>;
using DeviceOption = std::optional<at::Device>;

// PyTorch's constructor knows the CPU, CUDA and meta: such a tensor begins as one of meta. Its copies are
// made here for the same reason.
class CompressedImpl final : public at::SparseCsrTensorImpl {
  public:
    CompressedImpl(at::Layout layout, caffe2::TypeMeta dtype, c10::Device device)
        : SparseCsrTensorImpl(c10::DispatchKeySet(c10::DispatchKey::SparseCsrMeta),
                              c10::Device(c10::DeviceType::Meta), layout, dtype) {
        // As TensorImpl's constructor does.
        const c10::DispatchKeySet keys =
            c10::DispatchKeySet(c10::DispatchKey::SparseCsrMPS) |
            c10::getAutocastRelatedKeySetFromBackend(c10::BackendComponent::MPSBit);
        key_set_ = c10::InferenceMode::is_enabled()
                       ? keys
                       : keys | c10::getAutogradRelatedKeySetFromBackend(c10::BackendComponent::MPSBit);
        device_opt_ = device;
    }

    c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                           bool allow_metadata_change) const override {
        return copied(version, allow_metadata_change);
    }
    c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                           bool allow_metadata_change) const override {
        return copied(std::move(version), allow_metadata_change);
    }

  private:
    template <class Version>
    c10::intrusive_ptr<TensorImpl> copied(Version&& version, bool allow_metadata_change) const {
        using c10::impl::TorchDispatchModeTLS;
        const bool python = !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python);
        // A mode or a subclass detaches in Python, where no implementation is copied.
        if (python && (TorchDispatchModeTLS::stack_len() > 0 || key_set_.has(c10::DispatchKey::Python)))
            return shallow_copy_and_detach_core(std::forward<Version>(version), allow_metadata_change);
        auto impl = c10::make_intrusive<CompressedImpl>(layout_impl(), dtype(), device());
        TensorImpl::copy_tensor_metadata(this, impl.get(), std::forward<Version>(version),
                                         allow_metadata_change);
        impl->crow_indices_ = crow_indices_;
        impl->col_indices_ = col_indices_;
        impl->values_ = values_;
        impl->refresh_numel();
        return impl;
    }
};

// PyTorch's check, which refuses mps, of copies of the indices. It reads no values.
void validate(const Tensor& compressed_indices, const Tensor& plain_indices, const Tensor& values,
              at::IntArrayRef size, at::Layout layout, std::optional<bool> /*check_pinning*/) {
    const auto same_device = [&](const std::string& a, const Tensor& x, const std::string& b,
                                 const Tensor& y) {
        TORCH_CHECK(x.device() == y.device(), "device of ", a, " (=", x.device(), ") must match device of ",
                    b, " (=", y.device(), ")");
    };
    const std::string compressed_name = at::sparse_csr::compressedIndicesName(layout);
    same_device(compressed_name, compressed_indices, "values", values);
    same_device(compressed_name, compressed_indices, at::sparse_csr::plainIndicesName(layout), plain_indices);
    const auto on_cpu = [](const Tensor& t) {
        return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kCPU));
    };
    const Tensor compressed = on_cpu(compressed_indices).copy_(compressed_indices);
    const Tensor plain = on_cpu(plain_indices).copy_(plain_indices);
    const Tensor stand_in = at::empty({1}, values.options().device(at::kCPU)).expand(values.sizes());
    at::_validate_sparse_compressed_tensor_args(compressed, plain, stand_in, size, layout);
}

template <at::Layout kLayout>
void validate_of(const Tensor& compressed_indices, const Tensor& plain_indices, const Tensor& values,
                 at::IntArrayRef size, std::optional<bool> check_pinning) {
    validate(compressed_indices, plain_indices, values, size, kLayout, check_pinning);
}

Tensor unsafe(const Tensor& compressed_indices, const Tensor& plain_indices, const Tensor& values,
              c10::SymIntArrayRef size, DtypeOption /*dtype*/, LayoutOption layout, DeviceOption /*device*/,
              std::optional<bool> /*pin_memory*/) {
    TORCH_CHECK(layout,
                "sparse_compressed_tensor_unsafe expected sparse compressed tensor layout but got none");
    if (at::globalContext().checkSparseTensorInvariants().value_or(false))
        validate(compressed_indices, plain_indices, values, C10_AS_INTARRAYREF_SLOW(size), *layout, {});
    return compressed_tensor(*layout, compressed_indices, plain_indices, values, size);
}

template <at::Layout kLayout>
Tensor unsafe_of(const Tensor& compressed_indices, const Tensor& plain_indices, const Tensor& values,
                 at::IntArrayRef size, DtypeOption dtype, LayoutOption layout, DeviceOption device,
                 std::optional<bool> pin_memory) {
    TORCH_CHECK(layout.value_or(kLayout) == kLayout, "sparse compressed layout must be ", kLayout,
                " but got ", *layout);
    return unsafe(compressed_indices, plain_indices, values, c10::fromIntArrayRefSlow(size), dtype, kLayout,
                  device, pin_memory);
}

// The indices and values are not initialized.
Tensor with_dims(int64_t nnz, int64_t dense_dim, at::IntArrayRef size, at::IntArrayRef blocksize,
                 at::ScalarType index_dtype, DtypeOption dtype, LayoutOption layout, DeviceOption device,
                 std::optional<bool> /*pin_memory*/) {
    TORCH_CHECK(layout,
                "sparse_compressed_tensor_with_dims: expected sparse compressed tensor layout but got none");
    const auto dims = static_cast<int64_t>(size.size()), batch_dim = dims - dense_dim - 2;
    TORCH_CHECK(batch_dim >= 0,
                "sparse_compressed_tensor_with_dims: dimensionality must be at least dense_dim(=", dense_dim,
                ") + sparse_dim(=2), but got ", dims);
    TORCH_CHECK(nnz >= 0, "sparse_compressed_tensor_with_dims: nnz must be non-negative, got ", nnz);
    const bool blocks = *layout == at::kSparseBsr || *layout == at::kSparseBsc;
    TORCH_CHECK(blocksize.size() == (blocks ? 2 : 0),
                "sparse_compressed_tensor_with_dims: blocksize needs to be ",
                blocks ? "a tuple of size 2" : "empty", " for ", *layout, " layout, but got ",
                blocksize.size(), " numbers");
    const bool rows = *layout == at::kSparseCsr || *layout == at::kSparseBsr;
    c10::DimVector compressed(size.slice(0, batch_dim)), plain(compressed);
    const int64_t along = size[batch_dim + (rows ? 0 : 1)], block = blocks ? blocksize[rows ? 0 : 1] : 1;
    compressed.push_back(along / block + 1);
    plain.push_back(nnz);
    c10::DimVector values(plain);
    values.append(blocksize.begin(), blocksize.end());
    values.append(size.begin() + batch_dim + 2, size.end());
    const auto options = at::TensorOptions().device(device);
    return compressed_tensor(*layout, at::empty(compressed, options.dtype(index_dtype)),
                             at::empty(plain, options.dtype(index_dtype)),
                             at::empty(values, options.dtype(dtype)), c10::fromIntArrayRefSlow(size));
}

void impl(torch::Library& m) {
    m.impl("_sparse_compressed_tensor_unsafe", TORCH_FN(unsafe));
    m.impl("_sparse_csr_tensor_unsafe", TORCH_FN(unsafe_of<at::kSparseCsr>));
    m.impl("_sparse_csc_tensor_unsafe", TORCH_FN(unsafe_of<at::kSparseCsc>));
    m.impl("_sparse_bsr_tensor_unsafe", TORCH_FN(unsafe_of<at::kSparseBsr>));
    m.impl("_sparse_bsc_tensor_unsafe", TORCH_FN(unsafe_of<at::kSparseBsc>));
    m.impl("_validate_sparse_compressed_tensor_args", TORCH_FN(validate));
    m.impl("_validate_sparse_csr_tensor_args", TORCH_FN(validate_of<at::kSparseCsr>));
    m.impl("_validate_sparse_csc_tensor_args", TORCH_FN(validate_of<at::kSparseCsc>));
    m.impl("_validate_sparse_bsr_tensor_args", TORCH_FN(validate_of<at::kSparseBsr>));
    m.impl("_validate_sparse_bsc_tensor_args", TORCH_FN(validate_of<at::kSparseBsc>));
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    impl(m);
}
// Below autograd, where the layout that is asked for counts more than the arguments'.
TORCH_LIBRARY_IMPL(aten, SparseCsrMPS, m) {
    impl(m);
    m.impl("_sparse_compressed_tensor_with_dims", TORCH_FN(with_dims));
}

}  // namespace

at::Tensor compressed_tensor(at::Layout layout, const at::Tensor& compressed_indices,
                             const at::Tensor& plain_indices, const at::Tensor& values,
                             c10::SymIntArrayRef size) {
    auto impl = c10::make_intrusive<CompressedImpl>(layout, values.dtype(), values.device());
    impl->set_member_tensors(compressed_indices, plain_indices, values, size);
    return Tensor(std::move(impl));
}

at::Tensor with_values(const at::Tensor& like, const at::Tensor& values) {
    const auto [compressed_indices, plain_indices] = at::sparse_csr::getCompressedPlainIndices(like);
    return compressed_tensor(like.layout(), compressed_indices.clone(), plain_indices.clone(), values,
                             c10::fromIntArrayRefSlow(like.sizes()));
}

}  // namespace anymps::ops
