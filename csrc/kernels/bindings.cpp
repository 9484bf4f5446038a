// The kernel library as operators of the library `anymps`, for info and for the tests.
#include <torch/library.h>

#include <string>
#include <vector>

#include "kernels/kernel_library.h"

namespace anymps::kernels {
namespace {

// Builds the pipeline of a kernel with the values of its specialization constants that the shader gives.
void build_kernel(const std::string& name) { pipeline(kernel_id(name), {}); }

TORCH_LIBRARY_FRAGMENT(anymps, m) {
    m.def("kernel_names() -> str[]", kernel_names);
    m.def("build_kernel(str name) -> ()", build_kernel);
}

}  // namespace
}  // namespace anymps::kernels
