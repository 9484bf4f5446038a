// Adaptive average and maximum pooling and their gradients; the 1-d forms are made of the 2-d ones.
#include <anymps/ops/pool/adaptive_pool_ops.h>

#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>

#include "kernels/check_dtype.h"
#include "ops/pool/windows.h"

namespace anymps::ops {
namespace {

const char* kAverage[] = {"adaptive_avg_pool2d", "adaptive_avg_pool3d"};
const char* kAverageBackward[] = {"adaptive_avg_pool2d_backward", "adaptive_avg_pool3d_backward"};

MemoryFormat format_of(const Tensor& tensor, int64_t spatial) {
    // CPU's: averages of volumes are always contiguous.
    return spatial == 2 && tensor.dim() == 4 ? tensor.suggest_memory_format() : MemoryFormat::Contiguous;
}

std::vector<int64_t> average_sizes(const Tensor& input, IntArrayRef output_size, int64_t spatial) {
    const char* name = kAverage[spatial - 2];
    TORCH_CHECK(static_cast<int64_t>(output_size.size()) == spatial, name, ": output_size must be ", spatial);
    TORCH_CHECK(input.dim() == spatial + 1 || input.dim() == spatial + 2, name, "(): Expected ", spatial + 1,
                "D or ", spatial + 2, "D tensor, but got ", input.sizes());
    for (int64_t dim = -spatial; dim < 0; ++dim) {
        TORCH_CHECK(input.size(dim) > 0, name,
                    "(): Expected input to have non-zero size for non-batch dimensions, "
                    "but input has sizes ",
                    input.sizes(), " with dimension ", dim + input.dim(), " being empty");
    }
    std::vector<int64_t> sizes(input.sizes().begin(), input.sizes().end() - spatial);
    sizes.insert(sizes.end(), output_size.begin(), output_size.end());
    return sizes;
}

Tensor& average_out(const Tensor& self, IntArrayRef output_size, int64_t spatial, Tensor& out) {
    const auto sizes = average_sizes(self, output_size, spatial);
    TORCH_CHECK(self.dtype() == out.dtype(), "expected dtype ", self.dtype(), " for `output` but got dtype ",
                out.dtype());
    at::native::resize_output(out, sizes);
    avg_pool(kAverage[spatial - 2], Windows::adapting(spatial), self, out);
    return out;
}

Tensor average(const Tensor& self, IntArrayRef output_size, int64_t spatial) {
    const auto sizes = average_sizes(self, output_size, spatial);
    const Tensor out = at::empty(sizes, self.options().memory_format(format_of(self, spatial)));
    avg_pool(kAverage[spatial - 2], Windows::adapting(spatial), self, out);
    return out;
}

void average_backward(const Tensor& grad_output, const Tensor& self, int64_t spatial,
                      const Tensor& grad_input) {
    const char* name = kAverageBackward[spatial - 2];
    TORCH_CHECK(grad_output.dim() == spatial + 1 || grad_output.dim() == spatial + 2, name, "(): Expected ",
                spatial + 1, "D or ", spatial + 2, "D tensor, but got ", grad_output.sizes());
    for (int64_t dim = 1; dim < grad_output.dim(); ++dim) {
        TORCH_CHECK(grad_output.size(dim) > 0, name,
                    "(): Expected grad_output to have non-zero size for non-batch "
                    "dimensions, but grad_output has sizes ",
                    grad_output.sizes(), " with dimension ", dim, " being empty");
    }
    TORCH_CHECK(self.dtype() == grad_output.dtype(), name, "(): Expected dtype ", self.dtype(),
                " for `grad_output` but got dtype ", grad_output.dtype());
    avg_pool_backward(name, Windows::adapting(spatial), grad_output, grad_input);
}

Tensor average_backward(const Tensor& grad_output, const Tensor& self, int64_t spatial) {
    const Tensor grad_input = at::empty(self.sizes(), self.options().memory_format(format_of(self, spatial)));
    average_backward(grad_output, self, spatial, grad_input);
    return grad_input;
}

}  // namespace

Tensor ANYMPS_FUNC(_adaptive_avg_pool2d)(const Tensor& self, IntArrayRef output_size) {
    kernels::check_floating(self.scalar_type(), "adaptive_avg_pool2d");
    return average(self, output_size, 2);
}

ANYMPS_ROW(adaptive_avg_pool2d_out, average_out(self, output_size, 2, out))
ANYMPS_ROW(_adaptive_avg_pool2d_backward, average_backward(grad_output, self, 2))

Tensor ANYMPS_FUNC(_adaptive_avg_pool3d)(const Tensor& self, IntArrayRef output_size) {
    kernels::check_floating(self.scalar_type(), "adaptive_avg_pool3d_cpu");
    return average(self, output_size, 3);
}

ANYMPS_ROW(adaptive_avg_pool3d_out, average_out(self, output_size, 3, out))
ANYMPS_ROW(_adaptive_avg_pool3d_backward, average_backward(grad_output, self, 3))

Tensor& ANYMPS_FUNC(adaptive_avg_pool3d_backward_grad_input)(const Tensor& grad_output, const Tensor& self,
                                                             Tensor& grad_input) {
    at::native::resize_output(grad_input, self.sizes());
    average_backward(grad_output, self, 3, grad_input);
    return grad_input;
}

TORCH_IMPL_FUNC(adaptive_max_pool2d_out)
(const Tensor& self, IntArrayRef output_size, const Tensor& out, const Tensor& indices) {
    kernels::check_floating(self.scalar_type(), "adaptive_max_pool2d");
    max_pool("adaptive_max_pool2d", Windows::adapting(2), self, out, indices);
}

ANYMPS_ROW(adaptive_max_pool2d_backward_grad_input,
           max_pool_backward("adaptive_max_pool2d_backward", Windows::adapting(2), grad_output, indices,
                             grad_input))

TORCH_IMPL_FUNC(adaptive_max_pool3d_out)
(const Tensor& self, IntArrayRef output_size, const Tensor& out, const Tensor& indices) {
    kernels::check_floating(self.scalar_type(), "adaptive_max_pool3d");
    max_pool("adaptive_max_pool3d", Windows::adapting(3), self, out, indices);
}

ANYMPS_ROW(adaptive_max_pool3d_backward_grad_input,
           max_pool_backward("adaptive_max_pool3d_backward", Windows::adapting(3), grad_output, indices,
                             grad_input))

}  // namespace anymps::ops
