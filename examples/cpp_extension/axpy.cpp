// An operator with a kernel of its own on mps: torch.ops.example.axpy(a, x, y) is a * x + y. It compiles with
// PyTorch's headers and those of torch_anymps.include_paths(), and links neither torch-anymps nor Vulkan.
// build.py makes axpy_spirv.h of axpy.slang.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <anymps/torch.h>
#include <torch/library.h>

#include "axpy_spirv.h"

namespace {

// The uniform parameters of axpy.slang.
struct Args {
    const void *x, *y;
    void* out;
    float a;
    uint32_t n;
};
constexpr int64_t kThreads = 256;

at::Tensor axpy(double a, const at::Tensor& x, const at::Tensor& y) {
    TORCH_CHECK(x.sizes() == y.sizes() && x.is_contiguous() && y.is_contiguous(),
                "axpy takes two contiguous tensors of one shape");
    TORCH_CHECK(x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat, "axpy takes float32");
    static const anymps::Kernel kernel("axpy", axpy_spirv);
    at::Tensor out = at::empty_like(x);
    const Args args{x.const_data_ptr(), y.const_data_ptr(), out.mutable_data_ptr(), static_cast<float>(a),
                    static_cast<uint32_t>(x.numel())};
    const auto groups = static_cast<uint32_t>((x.numel() + kThreads - 1) / kThreads);
    kernel.dispatch({groups, 1, 1}, args, {anymps::reads(x), anymps::reads(y), anymps::writes(out)});
    return out;
}

TORCH_LIBRARY(example, m) {
    m.def("axpy(float a, Tensor x, Tensor y) -> Tensor");
}
TORCH_LIBRARY_IMPL(example, MPS, m) {
    m.impl("axpy", axpy);
}

}  // namespace
