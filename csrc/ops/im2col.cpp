// im2col (torch.nn.functional.unfold) and col2im (fold), each other's gradients.
#include <anymps/ops/im2col_ops.h>
#include <anymps/shaders/im2col.h>

#include <ATen/native/Resize.h>
#include <ATen/native/im2col_shape_check.h>

#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "kernels/geometry.h"
#include "kernels/launch_config.h"
#include "ops/same_dtype.h"
#include "runtime/dispatch_time.h"

namespace anymps::ops {
namespace {

using kernels::FastDivider;

namespace shader = shaders::im2col;

struct Windows {
    IntArrayRef kernel, dilation, padding, stride;

    void check_lengths() const {
        TORCH_CHECK(kernel.size() == 2, "It is expected kernel_size equals to 2, but got size ",
                    kernel.size());
        TORCH_CHECK(dilation.size() == 2, "It is expected dilation equals to 2, but got size ",
                    dilation.size());
        TORCH_CHECK(padding.size() == 2, "It is expected padding equals to 2, but got size ", padding.size());
        TORCH_CHECK(stride.size() == 2, "It is expected stride equals to 2, but got size ", stride.size());
    }
    int64_t count(int axis, int64_t size) const {
        return (size + 2 * padding[axis] - (dilation[axis] * (kernel[axis] - 1) + 1)) / stride[axis] + 1;
    }
};

void check_type(const Tensor& tensor, const char* label) {
    const ScalarType type = tensor.scalar_type();
    kernels::check_implemented(!at::isIntegralType(type, /*includeBool=*/false), type, label);
}

// image [batch, channels, height, width], columns [batch, channels * kernel, windows].
void launch(const shader::Im2colKernel& kernel, const Tensor& image, const Tensor& columns,
            const Windows& windows, bool to_columns) {
    to_columns ? check_same_dtype_as(image, columns) : check_same_dtype_as(columns, image);
    const Tensor& result = to_columns ? columns : image;
    if (result.numel() == 0) return;
    const auto narrow = [](int64_t value) {
        TORCH_CHECK(value <= std::numeric_limits<int32_t>::max(), "fold and unfold: ", value,
                    " elements are too many for the mps device");
        return static_cast<uint32_t>(value);
    };
    shader::Im2colArgs args{.image = kernels::address(image),
                            .columns = kernels::address(columns),
                            .count = narrow(result.numel())};
    args.channels = FastDivider(narrow(image.size(1)));
    for (int axis = 0; axis < 2; ++axis) {
        const int64_t size = image.size(2 + axis);
        args.kernel[axis] = FastDivider(narrow(windows.kernel[axis]));
        args.size[axis] = FastDivider(narrow(size));
        args.windows[axis] = FastDivider(narrow(windows.count(axis, size)));
        args.stride[axis] = narrow(windows.stride[axis]);
        args.padding[axis] = narrow(windows.padding[axis]);
        args.dilation[axis] = narrow(windows.dilation[axis]);
    }
    for (int d = 0; d < 4; ++d) args.image_strides[d] = image.stride(d);
    for (int d = 0; d < 3; ++d) args.column_strides[d] = columns.stride(d);
    // Where a quarter of the threads fills a GPU, each takes the same place of four channels.
    constexpr uint32_t kPlanes = 4, kMin = 1 << 18;
    uint32_t planes = 1;
    if (to_columns && !kernels::launch_config().software && image.size(1) % kPlanes == 0 &&
        args.count >= kPlanes * kMin) {
        planes = kPlanes;
        args.count /= planes;
        args.channels = FastDivider(args.channels.divisor / planes);
        const int64_t part = int64_t{args.channels.divisor} * result.element_size();
        args.image_step = part * image.stride(1);
        args.column_step = part * windows.kernel[0] * windows.kernel[1] * columns.stride(1);
    }
    const uint32_t workgroup = kernels::flat_workgroup();
    constexpr double kOperationsOfIndices = 50;
    runtime::note_dispatch({.operations = kOperationsOfIndices * static_cast<double>(columns.numel())});
    kernel.call({.workgroup = workgroup, .type = kernels::code(result.scalar_type()), .planes = planes})
        .read(to_columns ? image : columns)
        .write(result)
        .dispatch(args, kernels::flat_grid(args.count));
}

Tensor batched(const Tensor& tensor, int64_t dims) {
    return tensor.dim() == dims ? tensor : tensor.unsqueeze(0);
}

}  // namespace

Tensor& ANYMPS_FUNC(im2col_out)(const Tensor& self, IntArrayRef kernel_size, IntArrayRef dilation,
                                IntArrayRef padding, IntArrayRef stride, Tensor& out) {
    const Windows windows{kernel_size, dilation, padding, stride};
    windows.check_lengths();
    at::native::im2col_shape_check(self, Tensor(), kernel_size[0], kernel_size[1], dilation[0], dilation[1],
                                   padding[0], padding[1], stride[0], stride[1]);
    const Tensor image = batched(self, 4);
    const int64_t rows = image.size(1) * kernel_size[0] * kernel_size[1],
                  count = windows.count(0, image.size(2)) * windows.count(1, image.size(3));
    check_type(self, "im2col_out_cpu");
    if (self.dim() == 3)
        at::native::resize_output(out, {rows, count});
    else
        at::native::resize_output(out, {image.size(0), rows, count});
    launch(shader::im2col, image, batched(out, 3), windows, true);
    return out;
}

ANYMPS_ROW(im2col, im2col_out(self, kernel_size, dilation, padding, stride, NewTensor(self.options())))

Tensor& ANYMPS_FUNC(col2im_out)(const Tensor& self, IntArrayRef output_size, IntArrayRef kernel_size,
                                IntArrayRef dilation, IntArrayRef padding, IntArrayRef stride, Tensor& out) {
    const Windows windows{kernel_size, dilation, padding, stride};
    TORCH_CHECK(output_size.size() == 2, "It is expected output_size equals to 2, but got size ",
                output_size.size());
    windows.check_lengths();
    at::native::col2im_shape_check(self, Tensor(), output_size[0], output_size[1], kernel_size[0],
                                   kernel_size[1], dilation[0], dilation[1], padding[0], padding[1],
                                   stride[0], stride[1]);
    const Tensor columns = batched(self, 3);
    const int64_t channels = columns.size(1) / (kernel_size[0] * kernel_size[1]);
    check_type(self, "col2im_out_cpu");
    if (self.dim() == 2)
        at::native::resize_output(out, {channels, output_size[0], output_size[1]});
    else
        at::native::resize_output(out, {columns.size(0), channels, output_size[0], output_size[1]});
    launch(shader::col2im, batched(out, 4), columns, windows, false);
    return out;
}

ANYMPS_ROW(col2im,
           col2im_out(self, output_size, kernel_size, dilation, padding, stride, NewTensor(self.options())))

}  // namespace anymps::ops
