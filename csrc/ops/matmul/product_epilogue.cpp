// anymps::addmm_epilogue and addmm_epilogue_and_first: what graphs of torch.compile call where element-wise
// operators follow a product.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "gemm/epilogue.h"
#include "gemm/gemm.h"
#include "ops/same_device.h"

namespace anymps::ops {
namespace {

using at::Tensor;

Tensor empty_product(const Tensor& mat1, const Tensor& mat2, std::optional<at::ScalarType> dtype) {
    return at::empty_symint({mat1.sym_size(0), mat2.sym_size(1)},
                            mat1.options().dtype(dtype.value_or(mat1.scalar_type())));
}

void check(const Tensor& mat1, const Tensor& mat2, const Tensor& self, const Tensor& operand,
           at::ScalarType dtype) {
    check_same_device("addmm_epilogue",
                      {{"self", self}, {"mat1", mat1}, {"mat2", mat2}, {"operand", operand}});
    TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2 && mat1.size(1) == mat2.size(0),
                "mat1 and mat2 shapes cannot be multiplied (", mat1.sizes(), " and ", mat2.sizes(), ")");
    TORCH_CHECK(at::isFloatingType(mat1.scalar_type()) && at::isFloatingType(dtype),
                "expected floating point matrices, but got ", mat1.dtype());
    TORCH_CHECK(mat1.dtype() == mat2.dtype() && (!self.defined() || self.scalar_type() == dtype),
                "expected tensors of one dtype, but got ", mat1.dtype(), " and ", mat2.dtype());
}

// first: becomes what the steps begin with; nullptr: nobody wants it.
Tensor run(const std::optional<Tensor>& self, const Tensor& mat1, const Tensor& mat2, std::string_view steps,
           const std::optional<Tensor>& operand_opt, std::optional<at::ScalarType> dtype, Tensor* first) {
    const Tensor summand = self.value_or(Tensor()), operand = operand_opt.value_or(Tensor());
    check(mat1, mat2, summand, operand, dtype.value_or(mat1.scalar_type()));
    const Tensor out = empty_product(mat1, mat2, dtype);
    gemm::GemmEpilogue epilogue{gemm::epilogue_steps(steps)};
    TORCH_CHECK(epilogue.steps, "expected steps of an epilogue");
    const Tensor placed = gemm::epilogue_operand(epilogue.steps, operand, out);
    if (placed.defined()) epilogue.operand = &placed;
    if (first) *first = empty_product(mat1, mat2, dtype);
    epilogue.first = first;
    Tensor expanded;
    if (summand.defined()) expanded = summand.expand(out.sizes());
    gemm::Gemm gemm{"addmm",
                    1,
                    out.size(0),
                    out.size(1),
                    mat1.size(1),
                    gemm::matrices(mat1),
                    gemm::matrices(mat2),
                    gemm::matrices(out),
                    gemm::kNoMatrices};
    if (summand.defined()) gemm.self = gemm::matrices(expanded);
    gemm.epilogue = epilogue;
    gemm.run();
    return out;
}

// The steps of self + mat1 @ mat2; self broadcasts to the product. operand: of the steps that have one, of
// the product's sizes. All but the factors are of `dtype`, or of theirs.
Tensor addmm_epilogue(const std::optional<Tensor>& self, const Tensor& mat1, const Tensor& mat2,
                      std::string_view steps, const std::optional<Tensor>& operand,
                      std::optional<at::ScalarType> dtype) {
    return run(self, mat1, mat2, steps, operand, dtype, nullptr);
}

// The same, and what the steps begin with.
std::tuple<Tensor, Tensor> addmm_epilogue_and_first(const std::optional<Tensor>& self, const Tensor& mat1,
                                                    const Tensor& mat2, std::string_view steps,
                                                    const std::optional<Tensor>& operand) {
    Tensor first;
    const Tensor result = run(self, mat1, mat2, steps, operand, {}, &first);
    return {result, first};
}

Tensor addmm_epilogue_meta(const std::optional<Tensor>&, const Tensor& mat1, const Tensor& mat2,
                           std::string_view, const std::optional<Tensor>&,
                           std::optional<at::ScalarType> dtype) {
    return empty_product(mat1, mat2, dtype);
}

std::tuple<Tensor, Tensor> addmm_epilogue_and_first_meta(const std::optional<Tensor>&, const Tensor& mat1,
                                                         const Tensor& mat2, std::string_view,
                                                         const std::optional<Tensor>&) {
    return {empty_product(mat1, mat2, {}), empty_product(mat1, mat2, {})};
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def(
        "addmm_epilogue(Tensor? self, Tensor mat1, Tensor mat2, str steps, Tensor? operand=None, "
        "ScalarType? dtype=None) -> Tensor");
    m.def(
        "addmm_epilogue_and_first(Tensor? self, Tensor mat1, Tensor mat2, str steps, Tensor? operand=None) "
        "-> "
        "(Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(anymps, MPS, m) {
    m.impl("addmm_epilogue", TORCH_FN(addmm_epilogue));
    m.impl("addmm_epilogue_and_first", TORCH_FN(addmm_epilogue_and_first));
}
TORCH_LIBRARY_IMPL(anymps, Meta, m) {
    m.impl("addmm_epilogue", TORCH_FN(addmm_epilogue_meta));
    m.impl("addmm_epilogue_and_first", TORCH_FN(addmm_epilogue_and_first_meta));
}

}  // namespace
}  // namespace anymps::ops
