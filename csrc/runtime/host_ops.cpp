// Operators whose heavy core is a call of LAPACK: they run as ATen's CPU operators over the device's memory,
// as part of the backend. No warning, no environment variable, not counted as fallbacks.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/fallback.h"

namespace anymps::runtime {
namespace {

// An operator a row: its overloads by their names in native_functions.yaml, and the dtypes of the results: as
// the first argument (A), its complex (C) or real (R) one, or int32 (I). An optional row is left out where
// PyTorch is older than its operator. What LAPACK does with numbers that are not finite may end the process:
// rows that ask for finite ones raise.
struct HostOp {
    const char* functional;
    const char* out;
    std::string_view dtypes;
    bool optional = false;
    bool finite = false;
};
constexpr HostOp kHostOps[] = {
    {"_linalg_eigh", "_linalg_eigh.eigenvalues", "RA"},
    {"_linalg_eigvals", "linalg_eigvals.out", "C", false, /*finite=*/true},
    {"_linalg_svd", "_linalg_svd.U", "ARA"},
    {"geqrf", "geqrf.a", "AA"},
    {"linalg_eig", "linalg_eig.out", "CC"},
    {"linalg_householder_product", "linalg_householder_product.out", "A"},
    {"linalg_ldl_factor_ex", "linalg_ldl_factor_ex.out", "AII"},
    {"linalg_ldl_solve", "linalg_ldl_solve.out", "A"},
    {nullptr, "linalg_lstsq.out", ""},  // the functional form allocates and calls it
    {"linalg_matrix_sqrth", "linalg_matrix_sqrth.out", "A", true},
    {"linalg_polar", "linalg_polar.out", "AA", true},
    {"linalg_qr", "linalg_qr.out", "AA"},
    {"ormqr", "ormqr.out", "A"},
};

c10::ScalarType dtype_of(char letter, c10::ScalarType argument) {
    // The operator itself refuses integers.
    if (!c10::isFloatingType(argument) && !c10::isComplexType(argument) && letter != 'I') return argument;
    switch (letter) {
        case 'C':
            return c10::toComplexType(argument);
        case 'R':
            return c10::toRealValueType(argument);
        case 'I':
            return c10::kInt;
        default:
            return argument;
    }
}

// aten's operator of a name with an overload behind a dot, if PyTorch has it.
std::optional<c10::OperatorHandle> find(std::string_view name) {
    const size_t dot = std::min(name.find('.'), name.size());
    const std::string_view overload = name.substr(std::min(dot + 1, name.size()));
    return c10::Dispatcher::singleton().findSchema(
        {"aten::" + std::string(name.substr(0, dot)), std::string(overload)});
}

bool present(const HostOp& row) {
    return !row.optional || find(row.out);
}

// A functional form, as the out= form of the same operator: on unified memory LAPACK then writes where the
// result stays.
void run_functional(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const std::string_view name = std::string_view(op.operator_name().name).substr(sizeof("aten::") - 1);
    const auto* row = std::ranges::find_if(
        kHostOps, [&](const HostOp& r) { return r.functional != nullptr && name == r.functional; });
    const at::Tensor argument = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
    for (const char letter : row->dtypes) {
        const auto dtype = dtype_of(letter, argument.scalar_type());
        stack->emplace_back(at::empty({0}, argument.options().dtype(dtype)));
    }
    run_on_cpu(*find(row->out), stack);
}

using Boxed = void(const c10::OperatorHandle&, torch::jit::Stack*);

// A kernel behind the question that ATen's linalg_eig asks, in its words.
template <Boxed* run>
void run_finite(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const at::Tensor argument = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
    TORCH_CHECK(argument.isfinite().all().item<bool>(),
                "torch.linalg.eig: input tensor should not contain infs or NaNs.");
    run(op, stack);
}

template <Boxed* run>
torch::CppFunction kernel_of(const HostOp& row) {
    return row.finite ? torch::CppFunction::makeFromBoxedFunction<&run_finite<run>>()
                      : torch::CppFunction::makeFromBoxedFunction<run>();
}

TORCH_LIBRARY_IMPL(aten, MPS, m) {
    for (const auto& row : kHostOps) {
        if (!present(row)) continue;
        m.impl(row.out, kernel_of<&run_on_cpu>(row));
        if (row.functional != nullptr) m.impl(row.functional, kernel_of<&run_functional>(row));
    }
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("host_ops() -> str[]", [] {
        std::vector<std::string> names;
        for (const auto& row : kHostOps) {
            if (!present(row)) continue;
            for (const char* name : {row.functional, row.out}) {
                if (name != nullptr) names.push_back(std::string("aten::") + name);
            }
        }
        return names;
    });
}

}  // namespace
}  // namespace anymps::runtime
