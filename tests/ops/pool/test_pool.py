"""Pooling and its gradients, equal to the CPU's: values, chosen indices, ties, NaN, memory formats, edge parameters."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from compare import close

pytestmark = pytest.mark.usefixtures("poisoned_memory")

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE_AVG = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
ADAPTIVE_MAX = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}


def check(function, x, cpu_type=None):
    """Results (indices too) and the gradient of the first one, for the tensor given, on both devices.

    cpu_type: what the CPU computes in, where it lacks the op for x's type or sums gradients in it.
    """
    outputs = []
    for device in ("cpu", "mps"):
        leaf = x.to(device, cpu_type if device == "cpu" else None).detach()
        if x.is_floating_point():
            leaf.requires_grad_()
        result = function(leaf)
        result = list(result) if isinstance(result, tuple) else [result]
        if x.is_floating_point():
            if not outputs:
                grad = torch.randn(result[0].shape).to(x.dtype)
            result += torch.autograd.grad(result[0], leaf, grad.to(device, result[0].dtype))
        outputs.append([t.detach().to(x.dtype) if t.is_floating_point() else t for t in result])
    for expected, actual in zip(*outputs, strict=True):
        close(actual, expected)
    return outputs[1]


def image(dim, channels=3, low=4, high=9, batch=2):
    return torch.randn(batch, channels, *[random.randint(low, high) for _ in range(dim)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_max_pool_parameters(dim, dtype):
    for options in (
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    ):
        x = image(dim, low=5).to(dtype)
        check(lambda x, options=options: MAX[dim](x, return_indices=True, **options), x, torch.float32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pool_gradients_in_words(dtype):
    """Rows of whole words, whose gradient a thread of a GPU gathers in words; whole numbers have ties."""
    for width, height, kernel, stride, padding in itertools.product((4, 12), (5, 8), (1, 2, 3, 4), (1, 2, 3), (0, 1)):
        if 2 * padding > kernel:
            continue
        x = torch.randint(-4, 4, (2, 3, height, width)).to(dtype)
        for indices in (False, True):  # kept as offsets in windows, or as positions in the plane
            check(lambda x, w=(kernel, stride, padding), i=indices: F.max_pool2d(x, *w, 1, False, i), x, torch.float32)
        for options in ({}, {"ceil_mode": True}, {"count_include_pad": False}, {"divisor_override": 3}):
            check(lambda x, w=(kernel, stride, padding), o=options: F.avg_pool2d(x, *w, **o), x, torch.float32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradient_of_means_of_planes_in_words(dtype):
    """A word reaches into the next plane, and planes of three elements into a third."""
    backward = torch.ops.aten._adaptive_avg_pool2d_backward
    for shape in ((2, 6, 7, 7), (3, 4, 8, 8), (2, 8, 3, 5), (4, 2, 1, 4), (4, 4, 1, 3), (1, 1, 3, 3), (6, 5, 5)):
        x, grad = torch.zeros(shape, dtype=dtype), torch.randn(*shape[:-2], 1, 1).to(dtype)
        size = shape[-1] * shape[-2]
        expected = (grad.double() / size).expand(shape)
        actual = backward(grad.to("mps"), x.to("mps")).cpu().double()
        info = torch.finfo(dtype)  # quotients of small numbers may be subnormal
        torch.testing.assert_close(actual, expected, rtol=info.eps, atol=info.smallest_normal * info.eps)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_avg_pool_parameters(dim, dtype):
    for options in (
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True, "count_include_pad": False},
    ):
        check(lambda x, options=options: AVG[dim](x, **options), image(dim).to(dtype), torch.float32)
    if dim > 1:
        check(lambda x: AVG[dim](x, 3, padding=1, divisor_override=5), image(dim).to(dtype), torch.float32)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_adaptive_pools(dim):
    for size in (1, 2, 3, 7, 12):
        x = image(dim)
        check(lambda x, size=size: ADAPTIVE_AVG[dim](x, size), x)
        check(lambda x, size=size: ADAPTIVE_MAX[dim](x, size, return_indices=True), x)
    check(lambda x: F.adaptive_avg_pool2d(x, (None, 3)), image(2))


def test_windows_differ_by_axis():
    x = torch.randn(3, 2, 9, 14)
    check(lambda x: F.max_pool2d(x, (2, 3), (3, 1), (1, 0), (2, 3), return_indices=True), x)
    check(lambda x: F.avg_pool2d(x, (4, 1), (1, 2), (2, 0)), x)
    y = torch.randn(2, 2, 6, 7, 8)
    check(lambda x: F.max_pool3d(x, (1, 2, 3), (2, 1, 3), (0, 1, 1), (3, 2, 1), return_indices=True), y)
    check(lambda x: F.avg_pool3d(x, (1, 2, 3), (2, 1, 3), (0, 1, 1)), y)


def test_ties_choose_the_index_that_the_cpu_chooses():
    x = torch.randint(0, 3, (2, 3, 8, 9)).float()
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    check(lambda x: F.max_pool2d(x, 3, 1, 1, 2, return_indices=True), torch.zeros(1, 1, 6, 6))
    check(lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), x)
    check(lambda x: F.max_pool3d(x, 2, 1, return_indices=True), torch.randint(0, 2, (2, 2, 4, 4, 5)).float())


def test_nan_and_infinity():
    x = torch.randn(2, 3, 8, 8)
    x[0, 0, 2, 3] = x[0, 0, 3, 3] = x[1, 2, 7, 7] = float("nan")
    x[0, 1] = float("-inf")
    x[1, 1, 4, 4] = float("inf")
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    check(lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True), x)
    check(lambda x: F.avg_pool2d(x, 3, 2, 1), x)


@pytest.mark.parametrize("dim", [2, 3])
def test_memory_formats(dim):
    x = torch.randn(11, 5, *[6] * dim).contiguous(memory_format=LAST[dim + 2])
    for function in (
        lambda x: MAX[dim](x, 2, return_indices=True),
        lambda x: AVG[dim](x, 2),
        lambda x: ADAPTIVE_AVG[dim](x, 4),
        lambda x: ADAPTIVE_MAX[dim](x, 4, return_indices=True),
    ):
        results = check(function, x)
        expected = function(x)
        expected = expected[0] if isinstance(expected, tuple) else expected
        assert results[0].stride() == expected.stride()


def test_views_and_unbatched():
    base = torch.randn(6, 5, 12, 13)
    for x in (
        base[1:4, 2:, ::2, 3:12],
        base.transpose(2, 3),
        base[0],
        base.permute(1, 0, 3, 2)[:, 2:],
        base[:1, :1].expand(3, 4, 12, 13),
    ):
        check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
        check(lambda x: F.avg_pool2d(x, 2), x)
        check(lambda x: F.adaptive_avg_pool2d(x, (3, 5)), x)


def test_expanded_gradient():
    x = torch.randn(2, 3, 8, 8)
    for function in (lambda x: F.max_pool2d(x, 3, 1), lambda x: F.avg_pool2d(x, 3, 1)):
        grads = []
        for device in ("cpu", "mps"):
            leaf = x.to(device).detach().requires_grad_()
            y = function(leaf)
            grads.append(torch.autograd.grad(y, leaf, torch.ones((), device=device).expand(y.shape))[0])
        close(grads[1], grads[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers(dtype):
    x = torch.randint(-100, 100, (2, 3, 7, 8)).to(dtype)
    check(lambda x: F.max_pool2d(x, 2, return_indices=True), x)
    if dtype == torch.int64:
        check(lambda x: F.avg_pool2d(x, 2), x)


def random_pool(dim):
    """An input of any layout, with ties, NaN or infinities, and the arguments of max_pool."""
    kernel = [random.randint(1, 4) for _ in range(dim)]
    arguments = (
        kernel,
        [random.randint(1, 4) for _ in range(dim)],
        [random.randint(0, k // 2) for k in kernel],
        random.choice((1, 1, 1, 2)),
        random.random() < 0.4,
    )
    shape = [*random.choice(([2, 3], [3], [1, 1], [4, 8])), *(random.randint(7, 13) for _ in range(dim))]
    x = torch.randint(-4, 5, shape).float() if random.random() < 0.5 else torch.randn(shape)
    x[..., 0] = random.choice((1.0, 1.0, float("nan"), -float("inf")))
    layout = random.choice(("dense", "last", "strided"))
    if layout == "last" and x.dim() in LAST and x.dim() == dim + 2:
        x = x.contiguous(memory_format=LAST[x.dim()])
    return x[..., ::2] if layout == "strided" else x, arguments


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_max_pool_without_indices(dim, mps):
    """Values, gradients and their gradients where offsets in windows are kept; without a gradient nothing is."""
    for _ in range(40):
        x, arguments = random_pool(dim)
        try:
            expected = MAX[dim](x, *arguments)
        except RuntimeError:  # the window is larger than the input
            continue
        check(lambda x, a=arguments: MAX[dim](x, *a), x)
        with torch.no_grad():
            actual = MAX[dim](x.to(mps), *arguments)
        with torch.inference_mode():
            close(MAX[dim](x.to(mps), *arguments), expected)
        close(actual, expected)
        assert actual.is_contiguous() == expected.is_contiguous()
        seconds = []
        grad, weights = torch.randn_like(expected), torch.randn_like(x)
        for device in ("cpu", mps):
            leaf, cotangent = x.to(device).detach().requires_grad_(), grad.to(device).requires_grad_()
            first = torch.autograd.grad(MAX[dim](leaf, *arguments), leaf, cotangent, create_graph=True)[0]
            seconds.append(torch.autograd.grad((first * weights.to(device)).sum(), cotangent)[0])
        close(seconds[1], seconds[0])


@pytest.mark.parametrize("shape", [(2, 3, 4, 5, 6), (3, 4, 5, 6), (3, 5, 6)])
def test_max_pool_without_indices_keeps_the_layout(shape, mps):
    """That of channels-last, of one volume without a batch too."""
    dim = 2 if len(shape) == 3 else 3
    batch = torch.randn(shape if len(shape) == dim + 2 else (1, *shape)).contiguous(memory_format=LAST[dim + 2])
    x = batch if len(shape) == dim + 2 else batch.squeeze(0)
    for wants_gradient in (False, True):
        leaf = x.clone().requires_grad_(wants_gradient)
        on_device = x.to(mps).requires_grad_(wants_gradient)
        assert MAX[dim](on_device, 2, 1).stride() == MAX[dim](leaf, 2, 1).stride()


def test_max_pool_keeps_a_byte_an_output(mps):
    """Not int64 indices, nor the input; without a gradient no more than the result."""
    x = torch.randn(4, 16, 64, 64, device=mps)
    for memory, wants_gradient in ((1 << 18, False), ((1 << 18) + (1 << 16), True)):
        y = x.clone().requires_grad_(wants_gradient) * 1
        before = torch.mps.current_allocated_memory() - y.nbytes
        y = F.max_pool2d(y, 2)
        assert torch.mps.current_allocated_memory() - before == memory


def test_max_pool_under_transforms(mps):
    """torch.func goes PyTorch's way, as do gradients of many cotangents at a time."""
    x = torch.randn(2, 3, 8, 8)

    def function(t):
        return F.max_pool2d(t, 3, 2, 1)

    for transform in (torch.func.vmap(function), torch.func.jacrev(function), torch.func.jacfwd(function)):
        close(transform(x.to(mps)), transform(x))
    grads = torch.randn(5, 2, 3, 4, 4)
    results = []
    for device in ("cpu", mps):
        leaf = x.to(device).requires_grad_()
        results += torch.autograd.grad(function(leaf), leaf, grads.to(device), is_grads_batched=True)
    close(results[1], results[0])


def test_max_pool_twice_and_out(mps):
    x = torch.randn(2, 4, 16, 16)
    check(lambda x: F.max_pool2d(F.max_pool2d(x, 2), 2), x)
    out, indices = torch.empty(0, device=mps), torch.empty(0, dtype=torch.int64, device=mps)
    torch.ops.aten.max_pool2d_with_indices.out(x.to(mps), [2, 2], out=out, indices=indices)
    close(out, F.max_pool2d(x, 2))


def test_empty_batch(mps):
    x = torch.empty(0, 3, 8, 8, device=mps, requires_grad=True)
    for function in (lambda x: F.max_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(x, 3)):
        y = function(x)
        assert y.shape[0] == 0
        assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape


@pytest.mark.parametrize(
    "case",
    [
        lambda t: F.max_pool2d(t(1, 1, 4, 4), 2, padding=2),
        lambda t: F.max_pool2d(t(1, 1, 4, 4), 2, stride=0),
        lambda t: F.max_pool2d(t(1, 1, 2, 2), 3),
        lambda t: F.max_pool2d(t(4, 4), 2),
        lambda t: F.max_pool2d(t(1, 1, 4, 4), 0),
        lambda t: F.max_pool3d(t(4, 4), 2),
        lambda t: F.max_pool3d(t(1, 1, 2, 2, 2), 3),
        lambda t: F.max_pool3d(t(1, 1, 4, 4, 4), 2, padding=2),
        lambda t: F.max_pool3d(t(1, 1, 4, 4, 4), 2, stride=0),
        lambda t: F.avg_pool2d(t(1, 1, 4, 4), 2, padding=2),
        lambda t: F.avg_pool3d(t(4, 4), 2),
        lambda t: F.avg_pool2d(t(1, 1, 4, 4), 2, divisor_override=0),
        lambda t: F.avg_pool2d(t(1, 1, 2, 2), 3),
        lambda t: torch._C._nn.adaptive_avg_pool2d(t(2, 2), (2, 2)),
        lambda t: F.adaptive_avg_pool2d(t(1, 2, 0, 4), 2),
        lambda t: F.adaptive_avg_pool3d(t(2, 2), 2),
        lambda t: F.adaptive_max_pool2d(t(2, 2), (2, 2)),
        lambda t: F.adaptive_avg_pool2d(t(1, 1, 4, 4).long(), 2),
        lambda t: F.max_pool2d(t(1, 1, 4, 4).bool(), 2),
        lambda t: F.avg_pool2d(t(1, 1, 4, 4).int(), 2),
    ],
)
def test_wrong_arguments_raise_what_the_cpu_raises(case, raises_as_on_the_cpu):
    raises_as_on_the_cpu(case)


@pytest.mark.parametrize("dilation", [1, 2])
def test_gradient_of_max_pool2d_without_positions(dilation, mps):
    x = torch.randn(2, 3, 11, 9, requires_grad=True)
    y = torch.nn.functional.max_pool2d(x, 3, 2, 1, dilation, ceil_mode=True)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, grad)
    arguments = ([3, 3], [2, 2], [1, 1], [dilation] * 2, True)
    actual = torch.ops.aten.max_pool2d_backward(grad.to(mps), x.detach().to(mps), *arguments)
    torch.testing.assert_close(actual.cpu(), expected)
