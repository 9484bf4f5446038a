// Construction from coordinates. ATen's check for repeated places asks a stub without an entry for mps.
#include <ATen/Context.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/sparse_coo_tensor_compositeimplicitautograd_dispatch.h>
#include <torch/library.h>

#include "ops/sparse/coordinates.h"

namespace anymps::ops {
namespace {

using at::Tensor;

void validate(const Tensor& indices, const Tensor& values, at::IntArrayRef size,
              std::optional<bool> is_coalesced, std::optional<bool> check_pinning) {
    at::compositeimplicitautograd::_validate_sparse_coo_tensor_args(indices, values, size, std::nullopt,
                                                                    check_pinning);
    if (!is_coalesced.value_or(false) || indices.numel() == 0) return;
    TORCH_CHECK(flat_keys(indices, size.slice(0, indices.size(0))).diff().gt(0).all().item<bool>(),
                "cannot set is_coalesced to true if indices correspond to uncoalesced COO tensor");
}

Tensor sparse_coo_tensor(const Tensor& indices, const Tensor& values, at::IntArrayRef size,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory,
                         std::optional<bool> is_coalesced) {
    if (!is_coalesced.value_or(false) || !at::globalContext().checkSparseTensorInvariants().value_or(false)) {
        return at::compositeimplicitautograd::sparse_coo_tensor(indices, values, size, dtype, layout, device,
                                                                pin_memory, is_coalesced);
    }
    TORCH_CHECK(layout.value_or(at::kSparse) == at::kSparse, "expected sparse layout, but got layout ",
                *layout);
    validate(indices, values, size, is_coalesced, std::nullopt);
    return at::_sparse_coo_tensor_unsafe(indices, values, size, dtype, layout, device, pin_memory,
                                         is_coalesced);
}

void impl(torch::Library& m) {
    m.impl("sparse_coo_tensor.indices_size", TORCH_FN(sparse_coo_tensor));
    m.impl("_validate_sparse_coo_tensor_args", TORCH_FN(validate));
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) {
    impl(m);
}
// Below autograd, where the layout that is asked for counts more than the arguments'.
TORCH_LIBRARY_IMPL(aten, SparseMPS, m) {
    impl(m);
}

}  // namespace
}  // namespace anymps::ops
