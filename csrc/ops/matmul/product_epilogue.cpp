// anymps::addmm_epilogue, addmm_epilogue_and_first and addmm_norm: what graphs of torch.compile call where
// element-wise operators follow a product, or a norm comes before it.
#include <ATen/ops/empty.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/library.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "gemm/epilogue.h"
#include "gemm/gemm.h"
#include "gemm/norm_prologue.h"
#include "ops/same_device.h"

namespace anymps::ops {
namespace {

using at::Tensor;
using gemm::NormPrologue;

Tensor empty_product(const Tensor& mat1, const Tensor& mat2, std::optional<at::ScalarType> dtype) {
    return at::empty_symint({mat1.sym_size(0), mat2.sym_size(1)},
                            mat2.options().dtype(dtype.value_or(mat2.scalar_type())));
}

void check(const Tensor& mat1, const Tensor& mat2, const Tensor& self, const Tensor& operand,
           at::ScalarType dtype) {
    check_same_device("addmm_epilogue",
                      {{"self", self}, {"mat1", mat1}, {"mat2", mat2}, {"operand", operand}});
    TORCH_CHECK(mat1.dim() == 2 && mat2.dim() == 2 && mat1.size(1) == mat2.size(0),
                "mat1 and mat2 shapes cannot be multiplied (", mat1.sizes(), " and ", mat2.sizes(), ")");
    TORCH_CHECK(at::isFloatingType(mat1.scalar_type()) && at::isFloatingType(dtype),
                "expected floating point matrices, but got ", mat1.dtype());
    TORCH_CHECK(!self.defined() || self.scalar_type() == dtype, "expected a summand of ", dtype, ", but got ",
                self.dtype());
}

// norm of the rows of x, of the dtype that the other operand has.
Tensor normalized(const Tensor& x, const NormPrologue& norm, at::ScalarType dtype) {
    const auto as_float = [](const Tensor& t) { return t.defined() ? t.to(at::kFloat) : t; };
    const Tensor weight = as_float(norm.weight), bias = as_float(norm.bias);
    if (norm.centered) {
        return std::get<0>(at::native_layer_norm(x.to(at::kFloat), {x.size(1)}, weight, bias, norm.eps))
            .to(dtype);
    }
    const Tensor result = at::rms_norm(x.to(at::kFloat), {x.size(1)}, weight, norm.eps);
    return (bias.defined() ? result.add(bias) : result).to(dtype);
}

// first: becomes what the steps begin with; nullptr: nobody wants it. norm: of mat1's rows; nullptr: none.
Tensor run(const std::optional<Tensor>& self, const Tensor& mat1, const Tensor& mat2, std::string_view steps,
           const std::optional<Tensor>& operand_opt, std::optional<at::ScalarType> dtype, Tensor* first,
           const NormPrologue* norm = nullptr) {
    const Tensor summand = self.value_or(Tensor()), operand = operand_opt.value_or(Tensor());
    check(mat1, mat2, summand, operand, dtype.value_or(mat2.scalar_type()));
    TORCH_CHECK(norm || mat1.dtype() == mat2.dtype(), "expected tensors of one dtype, but got ", mat1.dtype(),
                " and ", mat2.dtype());
    const Tensor out = empty_product(mat1, mat2, dtype);
    gemm::GemmEpilogue epilogue{gemm::epilogue_steps(steps)};
    TORCH_CHECK(norm || epilogue.steps, "expected steps of an epilogue");
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
    if (norm && gemm::run_with_norm(gemm, *norm)) return out;
    Tensor a;
    if (norm) {
        a = normalized(mat1, *norm, mat2.scalar_type());
        gemm.a = gemm::matrices(a);
    }
    gemm.run();
    return out;
}

// The steps of self + mat1 @ mat2; self broadcasts to the product. operand: of the steps that have one, of
// the product's sizes. All but the operands are of `dtype`, or of theirs.
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

// The steps of self + norm(mat1) @ mat2, of few rows: layer_norm (centered) or rms_norm of mat1's rows [m, k]
// in f32, times weight and plus bias [k] where there are any. mat1, weight and bias may have other dtypes
// than mat2, of which the results are without `dtype`. No steps: the sum itself.
Tensor addmm_norm(const std::optional<Tensor>& self, const Tensor& mat1, const Tensor& mat2,
                  const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, double eps,
                  bool centered, std::string_view steps, const std::optional<Tensor>& operand,
                  std::optional<at::ScalarType> dtype) {
    const NormPrologue norm{weight.value_or(Tensor()), bias.value_or(Tensor()), eps, centered};
    check_same_device("addmm_norm", {{"mat1", mat1}, {"weight", norm.weight}, {"bias", norm.bias}});
    for (const Tensor* t : {&norm.weight, &norm.bias}) {
        TORCH_CHECK(!t->defined() || (t->dim() == 1 && mat1.dim() == 2 && t->size(0) == mat1.size(1) &&
                                      at::isFloatingType(t->scalar_type())),
                    "expected floating point numbers for each of the columns of mat1, but got ", t->sizes());
    }
    TORCH_CHECK(at::isFloatingType(mat2.scalar_type()), "expected floating point matrices, but got ",
                mat2.dtype());
    return run(self, mat1, mat2, steps, operand, dtype, nullptr, &norm);
}

Tensor addmm_norm_meta(const std::optional<Tensor>&, const Tensor& mat1, const Tensor& mat2,
                       const std::optional<Tensor>&, const std::optional<Tensor>&, double, bool,
                       std::string_view, const std::optional<Tensor>&, std::optional<at::ScalarType> dtype) {
    return empty_product(mat1, mat2, dtype);
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
    m.def(
        "addmm_norm(Tensor? self, Tensor mat1, Tensor mat2, Tensor? weight, Tensor? bias, float eps, "
        "bool centered, str steps=\"\", Tensor? operand=None, ScalarType? dtype=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(anymps, MPS, m) {
    m.impl("addmm_epilogue", TORCH_FN(addmm_epilogue));
    m.impl("addmm_epilogue_and_first", TORCH_FN(addmm_epilogue_and_first));
    m.impl("addmm_norm", TORCH_FN(addmm_norm));
}
TORCH_LIBRARY_IMPL(anymps, Meta, m) {
    m.impl("addmm_epilogue", TORCH_FN(addmm_epilogue_meta));
    m.impl("addmm_epilogue_and_first", TORCH_FN(addmm_epilogue_and_first_meta));
    m.impl("addmm_norm", TORCH_FN(addmm_norm_meta));
}

}  // namespace
}  // namespace anymps::ops
