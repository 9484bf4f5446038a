// Operators whose heavy core is a call of LAPACK: they run as ATen's CPU operators over the device's memory,
// as part of the backend. No warning, no environment variable, not counted as fallbacks.
#include <torch/library.h>

#include <string>
#include <vector>

#include "runtime/fallback.h"

namespace anymps::runtime {
namespace {

// Overloads by their names in native_functions.yaml, an operator a row.
constexpr const char* kHostOps[][2] = {
    {"_linalg_eigh", "_linalg_eigh.eigenvalues"},
    {"_linalg_eigvals", nullptr},
    {"_linalg_svd", "_linalg_svd.U"},
    {"geqrf", "geqrf.a"},
    {"linalg_eig", "linalg_eig.out"},
    {nullptr, "linalg_eigvals.out"},  // the functional form is made of _linalg_eigvals
    {"linalg_householder_product", "linalg_householder_product.out"},
    {"linalg_ldl_factor_ex", "linalg_ldl_factor_ex.out"},
    {"linalg_ldl_solve", "linalg_ldl_solve.out"},
    {nullptr, "linalg_lstsq.out"},  // the functional form allocates and calls it
    {"linalg_matrix_exp", nullptr},
    {"linalg_qr", "linalg_qr.out"},
    {"ormqr", "ormqr.out"},
};

TORCH_LIBRARY_IMPL(aten, MPS, m) {
    for (const auto& overloads : kHostOps) {
        for (const char* name : overloads) {
            if (name != nullptr) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
        }
    }
}

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("host_ops() -> str[]", [] {
        std::vector<std::string> names;
        for (const auto& overloads : kHostOps) {
            for (const char* name : overloads) {
                if (name != nullptr) names.push_back(std::string("aten::") + name);
            }
        }
        return names;
    });
}

}  // namespace
}  // namespace anymps::runtime
