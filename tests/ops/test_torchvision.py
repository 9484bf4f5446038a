"""The kernels for torchvision's operators, against plain Python. torchvision itself need not be there: where it is not,
its schemas are defined here."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from compare import close

SCHEMAS = [
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "SymInt batch_size, SymInt channels, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor",
    "ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    "SymInt pooled_height, SymInt pooled_width, int sampling_ratio, SymInt batch_size, SymInt channels, "
    "SymInt height, SymInt width) -> Tensor",
    "ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    "SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) "
    "-> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
    "SymInt groups, SymInt offset_groups, bool use_mask) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
]
ROIS = torch.tensor(
    [[0.0, 0.0, 0.0, 9.0, 7.0], [1.0, 2.2, 1.4, 6.3, 6.9], [0.0, 4.0, 3.0, 4.2, 3.1], [1.0, -3.0, -2.0, 12.7, 10.6]]
)


@pytest.fixture(scope="module")
def ops(mps):
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        if not hasattr(torch.ops.torchvision, schema.split("(")[0]):
            library.define(schema)
    yield torch.ops.torchvision
    library._destroy()


def near(actual, expected, tolerance=1e-4):
    close(actual, expected, tolerance)


def python_nms(boxes, scores, threshold):
    kept = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        x1, y1, x2, y2 = boxes[i].tolist()
        for k in kept:
            a1, b1, a2, b2 = boxes[k].tolist()
            inside = max(min(x2, a2) - max(x1, a1), 0) * max(min(y2, b2) - max(y1, b1), 0)
            if inside / ((x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - inside) > threshold:
                break
        else:
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


@pytest.mark.parametrize("count", [0, 1, 33, 200])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8])
def test_nms(ops, count, threshold, mps):
    corner = torch.rand(count, 2) * 10
    boxes = torch.cat([corner, corner + torch.rand(count, 2) * 5 + 0.1], 1)
    scores = torch.rand(count).mul(50).round()  # with ties
    actual = ops.nms(boxes.to(mps), scores.to(mps), threshold)
    assert torch.equal(actual.cpu(), python_nms(boxes.double(), scores, threshold))
    transposed = ops.nms(boxes.t().contiguous().t().to(mps), scores.to(mps), threshold)
    assert torch.equal(transposed, actual)


def bilinear(plane, y, x):
    """A differentiable sample of [C, H, W]."""
    height, width = plane.shape[1:]
    if y < -1 or y > height or x < -1 or x > width:
        return plane.new_zeros(plane.shape[0])
    y, x = max(y, 0.0), max(x, 0.0)
    top, left = min(int(y), height - 1), min(int(x), width - 1)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    v = 0.0 if top + 1 >= height else y - top
    u = 0.0 if left + 1 >= width else x - left
    return (
        plane[:, top, left] * (1 - v) * (1 - u)
        + plane[:, top, right] * (1 - v) * u
        + plane[:, bottom, left] * v * (1 - u)
        + plane[:, bottom, right] * v * u
    )


def python_roi_align(images, scale, bins, ratio, aligned, sensitive=False):
    results = []
    for image, *box in ROIS.double().tolist():
        offset = 0.5 if aligned or sensitive else 0.0
        x1, y1, x2, y2 = (v * scale - offset for v in box)
        sizes = [y2 - y1, x2 - x1]
        if not aligned and not sensitive:
            sizes = [max(s, 1.0) for s in sizes]
        bh, bw = sizes[0] / bins[0], sizes[1] / bins[1]
        counts = [ratio if ratio > 0 else max(math.ceil(b), 0) for b in (bh, bw)]
        rows = []
        for i in range(bins[0]):
            for j in range(bins[1]):
                plane = images[int(image)]
                if sensitive:
                    plane = plane[i * bins[1] + j :: bins[0] * bins[1]]
                values = [
                    bilinear(plane, y1 + bh * (i + (k + 0.5) / counts[0]), x1 + bw * (j + (n + 0.5) / counts[1]))
                    for k in range(counts[0])
                    for n in range(counts[1])
                ]
                rows.append(sum(values) / len(values))
        results.append(torch.stack(rows, 1).view(-1, *bins))
    return torch.stack(results)


@pytest.mark.parametrize("ratio", [-1, 2])
@pytest.mark.parametrize("kind", ["plain", "aligned", "sensitive"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_roi_align(ops, ratio, kind, deterministic, mps):
    bins, scale = (2, 3), 0.9
    sensitive = kind == "sensitive"
    images = torch.randn(2, 6, 8, 10, dtype=torch.float64, requires_grad=True)
    expected = python_roi_align(images, scale, bins, ratio, kind == "aligned", sensitive)
    cotangent = torch.randn(expected.shape, dtype=torch.float64)
    (expected_gradient,) = torch.autograd.grad(expected, images, cotangent)
    ours = images.detach().float().to(mps).to(memory_format=torch.channels_last)
    rois, grad = ROIS.to(mps), cotangent.float().to(mps)
    torch.use_deterministic_algorithms(deterministic)
    try:
        if sensitive:
            actual, mapping = ops.ps_roi_align(ours, rois, scale, *bins, ratio)
            assert torch.equal(mapping[0].flatten().cpu(), torch.arange(6, dtype=torch.int32))
            gradient = ops._ps_roi_align_backward(grad, rois, mapping, scale, *bins, ratio, 2, 6, 8, 10)
        else:
            actual = ops.roi_align(ours, rois, scale, *bins, ratio, kind == "aligned")
            gradient = ops._roi_align_backward(grad, rois, scale, *bins, 2, 6, 8, 10, ratio, kind == "aligned")
    finally:
        torch.use_deterministic_algorithms(False)
    near(actual, expected.detach().float())
    near(gradient, expected_gradient.float())


def away(x):
    return math.floor(x + 0.5) if x >= 0 else -math.floor(0.5 - x)


def pixel_ranges(box, scale, bins, limits, extra):
    x1, y1, x2, y2 = (away(v * scale) for v in box)
    for i in range(bins[0]):
        for j in range(bins[1]):
            ranges = []
            for low, high, k, n, limit in ((y1, y2, i, bins[0], limits[0]), (x1, x2, j, bins[1], limits[1])):
                size = max(high - low + extra, 1) / n
                first, end = low + math.floor(k * size), low + math.ceil((k + 1) * size)
                ranges.append((min(max(first, 0), limit), min(max(end, 0), limit)))
            yield i, j, *ranges


def test_roi_pool(ops, mps):
    bins, scale = (2, 3), 0.75
    images = torch.randn(2, 3, 8, 10, requires_grad=True)
    expected = torch.zeros(len(ROIS), 3, *bins)
    for k, (image, *box) in enumerate(ROIS.tolist()):
        for i, j, (top, bottom), (left, right) in pixel_ranges(box, scale, bins, (8, 10), 1):
            if top < bottom and left < right:
                expected[k, :, i, j] = images[int(image), :, top:bottom, left:right].amax((1, 2))
    cotangent = torch.randn(expected.shape)
    (expected_gradient,) = torch.autograd.grad(expected, images, cotangent)
    rois = ROIS.to(mps)
    actual, argmax = ops.roi_pool(images.detach().to(mps), rois, scale, *bins)
    near(actual, expected.detach())
    gradient = ops._roi_pool_backward(cotangent.to(mps), rois, argmax, scale, *bins, 2, 3, 8, 10)
    near(gradient, expected_gradient)


@pytest.mark.parametrize("deterministic", [False, True])
def test_ps_roi_pool(ops, deterministic, mps):
    bins, scale = (2, 3), 0.75
    images = torch.randn(2, 12, 8, 10, requires_grad=True)
    expected = torch.zeros(len(ROIS), 2, *bins)
    expected_gradient = torch.zeros_like(images)
    cotangent = torch.randn(expected.shape)
    for k, (image, *box) in enumerate(ROIS.tolist()):
        for i, j, (top, bottom), (left, right) in pixel_ranges(box, scale, bins, (7, 9), 0):
            if top < bottom and left < right:
                planes = images[int(image), i * 3 + j :: 6, top:bottom, left:right]
                expected[k, :, i, j] = planes.mean((1, 2))
        for i, j, (top, bottom), (left, right) in pixel_ranges(box, scale, bins, (8, 10), 0):
            if top < bottom and left < right:
                share = cotangent[k, :, i, j] / ((bottom - top) * (right - left))
                expected_gradient[int(image), i * 3 + j :: 6, top:bottom, left:right] += share[:, None, None]
    rois = ROIS.to(mps)
    torch.use_deterministic_algorithms(deterministic)
    try:
        actual, mapping = ops.ps_roi_pool(images.detach().to(mps), rois, scale, *bins)
        gradient = ops._ps_roi_pool_backward(cotangent.to(mps), rois, mapping, scale, *bins, 2, 12, 8, 10)
    finally:
        torch.use_deterministic_algorithms(False)
    near(actual, expected.detach())
    near(gradient, expected_gradient)


def python_deform_conv(x, weight, offset, mask, bias, stride, padding, dilation, groups, offset_groups):
    """Samples of grid_sample, an element of the kernel at a time."""
    batch, channels, height, width = x.shape
    kernel, (rows, cols) = weight.shape[2:], offset.shape[2:]
    out = bias.view(1, -1, 1, 1).expand(batch, -1, rows, cols).clone()
    per_group = channels // offset_groups
    for e in range(kernel[0] * kernel[1]):
        i, j = divmod(e, kernel[1])
        samples = []
        for g in range(offset_groups):
            at = g * kernel[0] * kernel[1] + e
            y = torch.arange(rows).view(-1, 1) * stride[0] - padding[0] + i * dilation[0] + offset[:, 2 * at]
            z = torch.arange(cols).view(1, -1) * stride[1] - padding[1] + j * dilation[1] + offset[:, 2 * at + 1]
            grid = torch.stack([2 * z / (width - 1) - 1, 2 * y / (height - 1) - 1], -1)
            part = F.grid_sample(x[:, g * per_group : (g + 1) * per_group], grid, align_corners=True)
            samples.append(part if mask is None else part * mask[:, at : at + 1])
        out = out + F.conv2d(torch.cat(samples, 1), weight[:, :, i : i + 1, j : j + 1], groups=groups)
    return out


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "groups", "offset_groups"),
    [((1, 1), (0, 0), (1, 1), 1, 1), ((2, 1), (1, 2), (1, 2), 2, 1), ((1, 2), (1, 1), (1, 1), 1, 2)],
)
@pytest.mark.parametrize("deterministic", [False, True])
def test_deform_conv(ops, masked, stride, padding, dilation, groups, offset_groups, deterministic, mps):
    x, weight, bias = torch.randn(2, 4, 7, 8), torch.randn(6, 4 // groups, 3, 2), torch.randn(6)
    windows = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in zip((7, 8), padding, dilation, (3, 2), stride)
    ]
    offset = torch.randn(2, offset_groups * 12, *windows)
    mask = torch.rand(2, offset_groups * 6, *windows)
    leaves = [t.double().requires_grad_() for t in (x, weight, offset, mask, bias)]
    used = leaves[3] if masked else None
    expected = python_deform_conv(
        leaves[0], leaves[1], leaves[2], used, leaves[4], stride, padding, dilation, groups, offset_groups
    )
    cotangent = torch.randn(expected.shape)
    gradients = torch.autograd.grad(expected, leaves, cotangent.double(), allow_unused=True)
    ours = [t.to(mps) for t in (x, weight, offset, mask if masked else torch.zeros(2, 1), bias)]
    options = (*stride, *padding, *dilation, groups, offset_groups, masked)
    torch.use_deterministic_algorithms(deterministic)
    try:
        near(ops.deform_conv2d(*ours, *options), expected.detach().float())
        actual = ops._deform_conv2d_backward(cotangent.to(mps), *ours, *options)
    finally:
        torch.use_deterministic_algorithms(False)
    for got, want in zip(actual, gradients):
        if want is not None:
            near(got, want.float(), 5e-4)


def test_errors(ops, mps):
    boxes = torch.ones(3, 4, device=mps)
    with pytest.raises(RuntimeError, match="boxes should have 4 elements in dimension 1, got 3"):
        ops.nms(boxes[:, :3], boxes[:, 0], 0.5)
    with pytest.raises(RuntimeError, match="Tensor rois should have shape as Tensor"):
        ops.roi_align(torch.ones(1, 1, 4, 4, device=mps), boxes, 1.0, 2, 2, -1, False)


def test_tensors_of_two_devices(ops, mps):
    x, rois, weight = torch.ones(2, 8, 9, 9, device=mps), ROIS, torch.ones(4, 8, 3, 3, device=mps)
    calls = [
        lambda: ops.nms(rois[:, 1:].to(mps), torch.ones(4), 0.5),
        lambda: ops.roi_align(x, rois, 1.0, 2, 2, 2, False),
        lambda: ops._roi_align_backward(x[:, :, :2, :2], rois[:2], 1.0, 2, 2, 2, 8, 9, 9, 2, False),
        lambda: ops.roi_pool(x, rois, 1.0, 2, 2),
        lambda: ops.ps_roi_align(x, rois, 1.0, 2, 2, 2),
        lambda: ops.ps_roi_pool(x, rois, 1.0, 2, 2),
        lambda: ops.deform_conv2d(
            x, weight, torch.zeros(2, 18, 7, 7), x[:, :0], weight[:, 0, 0, 0], 1, 1, 0, 0, 1, 1, 1, 1, False
        ),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="on the same device"):
            call()
