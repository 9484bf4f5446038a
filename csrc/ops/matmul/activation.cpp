// anymps::addmm_activation and its gradient: what graphs of torch.compile call where an activation follows a
// product, or the gradient of one does.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "gemm/activation.h"
#include "gemm/gemm.h"
#include "ops/same_device.h"

namespace anymps::ops {

using at::Tensor;

namespace {

// Raises ValueError for words other than these.
gemm::Activation activation_of(std::string_view name) {
    constexpr std::array<std::pair<std::string_view, gemm::Activation>, 3> kNames{
        {{"relu", gemm::Activation::Relu},
         {"gelu", gemm::Activation::Gelu},
         {"gelu_tanh", gemm::Activation::GeluTanh}}};
    for (const auto& [known, activation] : kNames)
        if (name == known) return activation;
    TORCH_CHECK_VALUE(false, "expected an activation out of relu, gelu and gelu_tanh, but got ", name);
}

void check(const char* op, const Tensor& mat1, const Tensor& mat2, const Tensor& self) {
    check_same_device(op, {{"self", self}, {"mat1", mat1}, {"mat2", mat2}});
    TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2 && mat1.size(1) == mat2.size(0),
                "mat1 and mat2 shapes cannot be multiplied (", mat1.sizes(), " and ", mat2.sizes(), ")");
    TORCH_CHECK(at::isFloatingType(mat1.scalar_type()), "expected floating point matrices, but got ",
                mat1.dtype());
    TORCH_CHECK(mat1.dtype() == mat2.dtype() && (!self.defined() || self.dtype() == mat1.dtype()),
                "expected tensors of one dtype, but got ", mat1.dtype(), " and ", mat2.dtype());
}

Tensor empty_product(const Tensor& mat1, const Tensor& mat2) {
    return at::empty_symint({mat1.sym_size(0), mat2.sym_size(1)}, mat1.options());
}

void run(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Tensor& out,
         const gemm::GemmActivation& activation) {
    Tensor expanded;
    if (self.defined()) expanded = self.expand(out.sizes());
    gemm::Gemm gemm{"addmm",
                    1,
                    out.size(0),
                    out.size(1),
                    mat1.size(1),
                    gemm::matrices(mat1),
                    gemm::matrices(mat2),
                    gemm::matrices(out),
                    gemm::kNoMatrices};
    if (self.defined()) gemm.self = gemm::matrices(expanded);
    gemm.activation = activation;
    gemm.run();
}

Tensor checked_product(const Tensor& self, const Tensor& mat1, const Tensor& mat2) {
    check("addmm_activation", mat1, mat2, self);
    return empty_product(mat1, mat2);
}

// activation(self + mat1 @ mat2). self broadcasts to the product.
Tensor addmm_activation(const std::optional<Tensor>& self, const Tensor& mat1, const Tensor& mat2,
                        std::string_view activation) {
    const Tensor summand = self.value_or(Tensor());
    const Tensor result = checked_product(summand, mat1, mat2);
    run(summand, mat1, mat2, result, {activation_of(activation), false, nullptr});
    return result;
}

// The same, and what it is computed from.
std::tuple<Tensor, Tensor> addmm_activation_and_input(const std::optional<Tensor>& self, const Tensor& mat1,
                                                      const Tensor& mat2, std::string_view activation) {
    const Tensor summand = self.value_or(Tensor());
    const Tensor result = checked_product(summand, mat1, mat2), input = empty_product(mat1, mat2);
    run(summand, mat1, mat2, result, {activation_of(activation), false, &input});
    return {result, input};
}

// mat1 @ mat2 as the gradient of activation(input): the gradient of the input, which is shaped as the
// product.
Tensor mm_activation_backward(const Tensor& mat1, const Tensor& mat2, const Tensor& input,
                              std::string_view activation) {
    check("mm_activation_backward", mat1, mat2, input);
    const Tensor out = empty_product(mat1, mat2);
    run(input, mat1, mat2, out, {activation_of(activation), true, nullptr});
    return out;
}

Tensor addmm_activation_meta(const std::optional<Tensor>&, const Tensor& mat1, const Tensor& mat2,
                             std::string_view) {
    return empty_product(mat1, mat2);
}

std::tuple<Tensor, Tensor> addmm_activation_and_input_meta(const std::optional<Tensor>&, const Tensor& mat1,
                                                           const Tensor& mat2, std::string_view) {
    return {empty_product(mat1, mat2), empty_product(mat1, mat2)};
}

Tensor mm_activation_backward_meta(const Tensor& mat1, const Tensor& mat2, const Tensor&, std::string_view) {
    return empty_product(mat1, mat2);
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("addmm_activation(Tensor? self, Tensor mat1, Tensor mat2, str activation) -> Tensor");
    m.def(
        "addmm_activation_and_input(Tensor? self, Tensor mat1, Tensor mat2, str activation) -> "
        "(Tensor, Tensor)");
    m.def("mm_activation_backward(Tensor mat1, Tensor mat2, Tensor input, str activation) -> Tensor");
}
TORCH_LIBRARY_IMPL(anymps, MPS, m) {
    m.impl("addmm_activation", TORCH_FN(addmm_activation));
    m.impl("addmm_activation_and_input", TORCH_FN(addmm_activation_and_input));
    m.impl("mm_activation_backward", TORCH_FN(mm_activation_backward));
}
TORCH_LIBRARY_IMPL(anymps, Meta, m) {
    m.impl("addmm_activation", TORCH_FN(addmm_activation_meta));
    m.impl("addmm_activation_and_input", TORCH_FN(addmm_activation_and_input_meta));
    m.impl("mm_activation_backward", TORCH_FN(mm_activation_backward_meta));
}

}  // namespace
}  // namespace anymps::ops
