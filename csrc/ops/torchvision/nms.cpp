// torchvision::nms, for when torchvision is there: its schemas are its own, only the kernels are ours.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <anymps/shaders/torchvision/nms.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "kernels/check_dtype.h"
#include "kernels/flat_grid.h"
#include "ops/same_device.h"

namespace anymps::ops {
namespace {

using at::Tensor;

namespace shader = shaders::nms;

void check(const Tensor& boxes, const Tensor& scores) {
    check_same_device("nms", {{"dets", boxes}, {"scores", scores}});
    TORCH_CHECK(boxes.dim() == 2, "boxes should be a 2d tensor, got ", boxes.dim(), "D");
    TORCH_CHECK(boxes.size(1) == 4, "boxes should have 4 elements in dimension 1, got ", boxes.size(1));
    TORCH_CHECK(scores.dim() == 1, "scores should be a 1d tensor, got ", scores.dim(), "D");
    TORCH_CHECK(boxes.size(0) == scores.size(0), "boxes and scores should have same number of elements in ",
                "dimension 0, got ", boxes.size(0), " and ", scores.size(0));
    TORCH_CHECK(boxes.scalar_type() == scores.scalar_type(), "dets should have the same type as scores");
    kernels::check_floating(boxes.scalar_type(), "nms_kernel");
}

// The overlap is a float, and torchvision compares it with a double.
float rounded_down(double threshold) {
    const auto nearest = static_cast<float>(threshold);
    return nearest > threshold ? std::nextafter(nearest, -std::numeric_limits<float>::infinity()) : nearest;
}

// boxes [n, 4], scores [n] -> the indices of the boxes that are kept, by falling score. Waits for the device
// once: the size of the result is data.
Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold) {
    check(boxes, scores);
    const int64_t count = boxes.size(0);
    if (count == 0) return at::empty({0}, boxes.options().dtype(at::kLong));
    const Tensor order = std::get<1>(at::sort(scores, true, 0, true));
    const Tensor sorted = boxes.index_select(0, order).contiguous();
    const int64_t words = static_cast<int64_t>(kernels::ceil_div(count, 32));
    const auto integers = boxes.options().dtype(at::kInt);
    const Tensor matrix = at::empty({count, words}, integers), removed = at::zeros({words}, integers);
    const Tensor keep = at::empty({count}, boxes.options().dtype(at::kBool));
    const shader::NmsArgs args{.boxes = kernels::address(sorted),
                               .matrix = kernels::address(matrix),
                               .removed = kernels::address(removed),
                               .keep = kernels::address(keep),
                               .count = static_cast<uint32_t>(count),
                               .words = static_cast<uint32_t>(words),
                               .threshold = rounded_down(iou_threshold)};
    const kernels::LaunchConfig& launch_config = kernels::launch_config();
    const uint32_t type = kernels::code(boxes.scalar_type());
    const bool wide = matrix.numel() > std::numeric_limits<uint32_t>::max();
    shader::nms_matrix.call({.workgroup = kernels::flat_workgroup(), .type = type, .wide = wide})
        .read(sorted)
        .write(matrix)
        .dispatch(args, kernels::flat_grid(matrix.numel()));
    const bool serial = launch_config.software || words > int64_t{shader::kMaxShared};
    shader::nms_select
        .call({.workgroup = serial ? 1 : launch_config.workgroup, .type = type, .serial = serial})
        .read(matrix)
        .write(removed)
        .write(keep)
        .dispatch(args, kernels::Grid::linear(1));
    return order.index_select(0, keep.nonzero().squeeze(1));
}

TORCH_LIBRARY_IMPL(torchvision, MPS, m) {
    m.impl("nms", TORCH_FN(nms));
}

}  // namespace
}  // namespace anymps::ops
