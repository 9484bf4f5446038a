// max_unpool2d and max_unpool3d: every element goes to the place that its index names, the rest is 0. Their
// gradients are gathers of PyTorch's own.
#include <anymps/ops/pool/max_unpool_ops.h>

#include <ATen/Context.h>
#include <ATen/native/Resize.h>

#include "kernels/check_dtype.h"
#include "ops/indexing/indexed_copy.h"
#include "ops/memory_format.h"
#include "ops/same_dtype.h"

namespace anymps::ops {
namespace {

constexpr const char* kNames[] = {"max_unpool2d", "max_unpool3d"};
constexpr const char* kAlertNames[] = {"max_unpooling2d_forward_out", "max_unpooling3d_forward_out"};
constexpr const char* kCheckNames[] = {"max_unpooling2d_forward_out_cpu()",
                                       "max_unpooling3d_forward_out_cpu()"};

void check_nonempty(const Tensor& self, int64_t spatial) {
    for (int64_t dim = 1; dim < self.dim(); ++dim) {
        TORCH_CHECK(self.size(dim) > 0, kCheckNames[spatial - 2],
                    ": Expected input to have non-zero size for non-batch dimensions, but got ", self.sizes(),
                    " with dimension ", dim, " being empty.");
    }
}

// Several elements for one place leave any of them, which deterministic algorithms refuse as on every device.
// An index out of range raises at the next synchronization.
void unpool(const Tensor& self, const Tensor& indices, IntArrayRef output_size, const Tensor& out) {
    const auto spatial = static_cast<int64_t>(output_size.size());
    at::globalContext().alertNotDeterministic(kAlertNames[spatial - 2]);
    kernels::check_floating(self.scalar_type(), kNames[spatial - 2]);
    std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end() - spatial);
    sizes.insert(sizes.end(), output_size.begin(), output_size.end());
    at::native::resize_output(out, sizes);
    if (spatial == 2) take_memory_format(out, self);
    out.zero_();
    check_same_dtype_as(self, out);
    if (self.numel() == 0 || out.numel() == 0) return;
    const Tensor to = out.is_contiguous(out.suggest_memory_format()) ? out : out.contiguous();
    indexed_copy_dim(to.flatten(-spatial), self.flatten(-spatial), indices.flatten(-spatial),
                     self.dim() - spatial, {.op = kNames[spatial - 2], .indexed_destination = true});
    if (!to.is_same(out)) out.copy_(to);
}

void check_shape(const Tensor& self, const Tensor& indices) {
    TORCH_CHECK(self.sizes() == indices.sizes(),
                "Expected shape of indices to be same as that of the input tensor (", self.sizes(),
                ") but got indices tensor with shape: ", indices.sizes());
}

}  // namespace

// self and indices (int64, in the output's plane): [C, H, W] or [N, C, H, W].
Tensor& ANYMPS_FUNC(max_unpool2d_out)(const Tensor& self, const Tensor& indices, IntArrayRef output_size,
                                      Tensor& out) {
    TORCH_CHECK(indices.scalar_type() == at::kLong,
                "elements in indices should be type int64 but got: ", indices.scalar_type());
    TORCH_CHECK(output_size.size() == 2,
                "There should be exactly two elements (height, width) in output_size, but got ",
                output_size.size(), " elements.");
    TORCH_CHECK(self.dim() == 3 || self.dim() == 4,
                "Input to max_unpooling2d should be a 3d or 4d Tensor, but got a tensor with ", self.dim(),
                " dimensions.");
    check_shape(self, indices);
    check_nonempty(self, 2);
    unpool(self, indices, output_size, out);
    return out;
}

ANYMPS_ROW(max_unpool2d, max_unpool2d_out(self, indices, output_size, NewTensor(self.options())))

Tensor& ANYMPS_FUNC(max_unpool3d_out)(const Tensor& self, const Tensor& indices, IntArrayRef output_size,
                                      IntArrayRef stride, IntArrayRef padding, Tensor& out) {
    TORCH_CHECK(indices.scalar_type() == at::kLong,
                "elements in indices should be type int64 but got: ", indices.scalar_type());
    TORCH_CHECK(self.dim() == 4 || self.dim() == 5,
                "Input to max_unpooling3d should be a 4d or 5d Tensor, but got a tensor with ", self.dim(),
                " dimensions.");
    TORCH_CHECK(output_size.size() == 3,
                "There should be exactly three elements (depth, height, width) in output_size, but got ",
                output_size.size(), " elements.");
    TORCH_CHECK(stride.size() == 3,
                "There should be exactly three elements (depth, height, width) in stride, but got: ",
                stride.size(), " elements.");
    TORCH_CHECK(padding.size() == 3,
                "There should be exactly three elements (depth, height, width) in padding, but got: ",
                padding.size(), " elements.");
    check_shape(self, indices);
    check_nonempty(self, 3);
    TORCH_CHECK(stride[0] > 0 && stride[1] > 0 && stride[2] > 0,
                "strides should be greater than zero, but got stride: ", stride);
    unpool(self, indices, output_size, out);
    return out;
}

ANYMPS_ROW(max_unpool3d,
           max_unpool3d_out(self, indices, output_size, stride, padding, NewTensor(self.options())))

}  // namespace anymps::ops
