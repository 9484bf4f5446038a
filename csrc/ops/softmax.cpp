// softmax, log_softmax and their gradients: one kernel each way, any dimension, any strides.
#include <ATen/WrapDimUtils.h>
#include <anymps/ops/softmax_ops.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "kernels/kernel_call.h"
#include "kernels/row_launcher.h"
#include "kernels/team.h"
#include "runtime/device.h"
#include "vulkan/instance.h"

namespace anymps::ops {

namespace {

constexpr auto kWrite = kernels::RowTensor::kWrite;

void check_floating(const Tensor& self, bool log) {
    TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()), "\"", log ? "log_" : "",
                                "softmax_kernel_impl\" not implemented for '", self.scalar_type(), "'");
}

// The twin of LongRows in shaders/softmax_long.slang.
struct LongRows {
    uint64_t x, y, grad;
    uint32_t size, unused;
};

// Rows that a workgroup cannot keep in registers, of tensors whose words of 16 bytes lie alike.
bool are_long_rows(int64_t dim, std::initializer_list<at::TensorBase> tensors) {
    const at::TensorBase& first = *tensors.begin();
    if (kernels::tuning().software || first.dim() == 0 || dim != first.dim() - 1) return false;
    const int64_t size = first.size(dim);
    if (size <= 2048 || (size % 4 == 0 && size <= 8192) || size > UINT32_MAX) return false;
    return std::all_of(tensors.begin(), tensors.end(), [&](const at::TensorBase& t) {
        return t.is_contiguous() && t.scalar_type() == first.scalar_type() &&
               (kernels::address(t) - kernels::address(first)) % 16 == 0;
    });
}

kernels::KernelCall long_rows(bool backward, const Tensor& like, bool log) {
    constexpr uint32_t kThreads = 512, kMostThreads = 1024;
    constexpr int64_t kKept = 7 * 4;  // floats of a thread: words of kernels _f32_kept by four
    const auto& device = runtime::device().info();
    const auto& t = kernels::tuning();
    const bool floats = like.scalar_type() == at::kFloat;
    // Lanes of Intel's GPUs have no registers left for a part of a row.
    const bool kept = floats && device.vendor_id != vulkan::kIntel;
    // Twice as many threads keep twice as much; other compilers spill with so many.
    const bool wide = kept && device.vendor_id == vulkan::kNvidia && like.size(-1) > kThreads * kKept &&
                      device.max_workgroup_size >= kMostThreads;
    const uint32_t most = wide ? kMostThreads : kThreads;
    const uint32_t workgroup = device.max_workgroup_size >= most ? most : t.workgroup;
    const char* type_name = kept ? "_f32_kept" : floats ? "_f32" : "_16";
    const std::string name = std::string("softmax_long_") + (backward ? "backward" : "forward") + type_name;
    const uint32_t type = kernels::code(like.scalar_type());
    return {name, {workgroup, t.subgroup, type, 0, 0, 0, 0, 0, workgroup, 1, 0, 0, log}};
}

// The twin of SoftmaxRows in shaders/softmax_rows.slang.
struct SoftmaxRows {
    uint64_t x, y;
    uint32_t rows, size;
};

// Rows of 16-bit elements in words of 16 bytes, which lanes of a subgroup keep in registers; false elsewhere.
bool forward_in_words(const Tensor& self, int64_t dim, const Tensor& out, bool log) {
    constexpr int64_t kMostOfRow = 64;    // elements of a lane
    constexpr uint64_t kWordsOfLane = 2;  // where a row has few
    const auto& t = kernels::tuning();
    if (t.software || self.element_size() != 2 || self.dim() == 0 || dim != self.dim() - 1) return false;
    const int64_t size = self.size(dim);
    if (size % 8 != 0 || size == 0 || size > kMostOfRow * t.subgroup || self.numel() / size > UINT32_MAX)
        return false;
    for (const Tensor* tensor : {&self, &out}) {
        if (!tensor->is_contiguous() || tensor->scalar_type() != self.scalar_type() ||
            kernels::address(*tensor) % 16 != 0)
            return false;
    }
    const SoftmaxRows args{kernels::address(self), kernels::address(out),
                           static_cast<uint32_t>(self.numel() / size), static_cast<uint32_t>(size)};
    const uint64_t words = args.size / 8;
    const uint32_t lanes = kernels::power_of_two(kernels::ceil_div(words, kWordsOfLane), t.subgroup);
    const auto of_lane = static_cast<uint32_t>(kernels::ceil_div(words, lanes));
    kernels::KernelCall("softmax_rows", {t.workgroup, t.subgroup, kernels::code(self.scalar_type()), 0, 0, 0,
                                         0, 0, lanes, 1, 0, of_lane, log})
        .read(self)
        .write(out)
        .dispatch(args, kernels::Grid::linear(kernels::ceil_div(args.rows, t.workgroup / lanes)));
    return true;
}

void forward(const Tensor& self, int64_t dim_, const Tensor& out, bool log) {
    check_floating(self, log);
    const int64_t dim = at::maybe_wrap_dim(dim_, self.dim());
    if (self.numel() == 0 || forward_in_words(self, dim, out, log)) return;
    if (are_long_rows(dim, {self, out})) {
        const LongRows args{kernels::address(self), kernels::address(out), 0,
                            static_cast<uint32_t>(self.size(dim)), 0};
        long_rows(false, self, log)
            .read(self)
            .write(out)
            .dispatch(args, kernels::Grid::linear(self.numel() / self.size(dim)));
        return;
    }
    kernels::launch_rows("softmax_forward", dim, {{self}, {out, kWrite}}, {}, {log});
}

void backward(const Tensor& grad, const Tensor& output, int64_t dim_, const Tensor& grad_input, bool log) {
    check_floating(grad, log);
    const int64_t dim = at::maybe_wrap_dim(dim_, grad.dim());
    if (are_long_rows(dim, {grad, output, grad_input})) {
        const LongRows args{kernels::address(grad), kernels::address(output), kernels::address(grad_input),
                            static_cast<uint32_t>(grad.size(dim)), 0};
        long_rows(true, grad, log)
            .read(grad)
            .read(output)
            .write(grad_input)
            .dispatch(args, kernels::Grid::linear(grad.numel() / grad.size(dim)));
        return;
    }
    kernels::launch_rows("softmax_backward", dim, {{grad}, {output}, {grad_input, kWrite}}, {}, {log});
}

}  // namespace

// half_to_float: f16 in, f32 out; the kernel converts as it stores.
TORCH_IMPL_FUNC(_softmax_out)(const Tensor& self, int64_t dim, bool half_to_float, const Tensor& out) {
    forward(self, dim, out, false);
}

TORCH_IMPL_FUNC(_log_softmax_out)(const Tensor& self, int64_t dim, bool half_to_float, const Tensor& out) {
    forward(self, dim, out, true);
}

TORCH_IMPL_FUNC(_softmax_backward_data_out)
(const Tensor& grad_output, const Tensor& output, int64_t dim, ScalarType input_dtype,
 const Tensor& grad_input) {
    backward(grad_output, output, dim, grad_input, false);
}

TORCH_IMPL_FUNC(_log_softmax_backward_data_out)
(const Tensor& grad_output, const Tensor& output, int64_t dim, ScalarType input_dtype,
 const Tensor& grad_input) {
    backward(grad_output, output, dim, grad_input, true);
}

}  // namespace anymps::ops
