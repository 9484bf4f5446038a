// anymps::convert_all: many tensors converted to one dtype by one launch, which graphs of torch.compile call
// for the parameters that autocast converts in every step.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <vector>

namespace anymps::ops {
namespace {

// Copies of `tensors`, each with the strides that empty_like gives it.
std::vector<at::Tensor> convert_all(at::TensorList tensors, at::ScalarType dtype) {
    std::vector<at::Tensor> result;
    result.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors)
        result.push_back(at::empty_like(tensor, tensor.options().dtype(dtype)));
    if (!result.empty()) at::_foreach_copy_(result, tensors);
    return result;
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("convert_all(Tensor[] tensors, ScalarType dtype) -> Tensor[]");
}
TORCH_LIBRARY_IMPL(anymps, CompositeExplicitAutograd, m) {
    m.impl("convert_all", TORCH_FN(convert_all));
}

}  // namespace
}  // namespace anymps::ops
