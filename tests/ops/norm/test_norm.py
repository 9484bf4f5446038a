"""Layer, RMS, batch and group norm with their gradients against the CPU."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from compare import SUMMED as TOLERANCE
from compare import close


def check(actual, expected, tolerance=None):
    if expected is None:
        assert actual is None
        return
    close(actual, expected, tolerance or TOLERANCE, actual.dtype, scaled=True)


def outputs_and_gradients(op, inputs, grad, device, dtype):
    leaves = [None if t is None else t.to(device, dtype).requires_grad_() for t in inputs]
    out = op(*leaves)
    return [out.detach(), *torch.autograd.grad(out, [t for t in leaves if t is not None], grad.to(device, dtype))]


def compare(op, inputs, dtype=torch.float32, tolerance=None):
    """op's output and the gradients of all inputs on mps, against float32 of the same rounded inputs on the CPU."""
    inputs = [None if t is None else t.to(dtype).float() for t in inputs]
    grad = torch.randn(op(*inputs).shape).to(dtype).float()
    expected = outputs_and_gradients(op, inputs, grad, "cpu", torch.float32)
    actual = outputs_and_gradients(op, inputs, grad, "mps", dtype)
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == dtype
        check(a, e, tolerance)


def with_affine(x, shape):
    """(x, w, b) in the ways that modules call a norm."""
    w, b = torch.randn(shape), torch.randn(shape)
    return [(x, w, b), (x, w, None), (x, None, None)]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 70])
def test_layer_norm(dtype, rows):
    for shape, normalized in (((rows, 7), (7,)), ((rows, 64), (64,)), ((rows, 3, 8), (3, 8)), ((2, rows, 300), (300,))):
        for x, w, b in with_affine(torch.randn(shape), normalized):
            compare(lambda x, w, b, n=normalized: F.layer_norm(x, n, w, b), (x, w, b), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 70])
def test_rms_norm(dtype, rows):
    for shape, normalized in (((rows, 7), (7,)), ((rows, 64), (64,)), ((rows, 3, 8), (3, 8)), ((2, rows, 300), (300,))):
        for x, w, _ in with_affine(torch.randn(shape), normalized)[1:]:
            compare(lambda x, w, n=normalized: F.rms_norm(x, n, w), (x, w), dtype)
            compare(lambda x, w, n=normalized: F.rms_norm(x, n, w, eps=1e-3), (x, w), dtype)


def test_long_rows_and_many_rows():
    for shape in ((3, 20_000), (5000, 16), (1, 4097)):
        for x, w, b in with_affine(torch.randn(shape), shape[1:])[:1]:
            compare(lambda x, w, b, n=shape[1:]: F.layer_norm(x, n, w, b), (x, w, b))
            compare(lambda x, w, n=shape[1:]: F.rms_norm(x, n, w), (x, w))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_many_rows_of_words(dtype):
    """Rows that GPUs keep in registers, with the gradients of w and b as parts of many rows."""
    for shape in ((1030, 12), (1024, 256), (1025, 1000)):
        for x, w, b in with_affine(torch.randn(shape), shape[1:]):
            compare(lambda x, w, b, n=shape[1:]: F.layer_norm(x, n, w, b), (x, w, b), dtype)
            compare(lambda x, w, n=shape[1:]: F.rms_norm(x, n, w), (x, w), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_gradients_of_rows_of_words(dtype):
    """Rows that GPUs share among a team of subgroups: ends of teams and of words, and not all of the gradients."""
    for shape in ((1024, 516), (1027, 1020), (2061, 128), (1031, 132), (1025, 1024), (1039, 4)):
        x, w, b = (torch.randn(s).to(dtype).float() for s in (shape, shape[1:], shape[1:]))
        grad = torch.randn(shape).to(dtype).float()
        _, *statistics = torch.native_layer_norm(x, shape[1:], w, b, 1e-5)
        on_mps = [shape[1:], *(t.to("mps") for t in statistics)]
        for mask in ([True, True, True], [True, True, False], [True, False, True]):
            for weight in (w, None):
                ones = torch.ones(shape[1:]) if weight is None else weight  # the CPU takes no None here
                expected = torch.ops.aten.native_layer_norm_backward(grad, x, shape[1:], *statistics, ones, b, mask)
                g, y, v, c = (None if t is None else t.to("mps", dtype) for t in (grad, x, weight, b))
                actual = torch.ops.aten.native_layer_norm_backward(g, y, *on_mps, v, c, mask)
                for a, e, wanted in zip(actual, expected, mask, strict=True):
                    check(a, e if wanted else None)
        compare(lambda x, w, n=shape[1:]: F.rms_norm(x, n, w), (x, w), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_planes_that_are_no_whole_words(dtype):
    """Words of four elements reach into the next channel."""
    for shape in ((4, 8, 7, 7), (4, 6, 1, 5), (8, 2, 3, 3), (1, 8, 3, 5), (23, 16, 7, 7), (9, 12, 11)):
        w, b = torch.randn(shape[1]), torch.randn(shape[1])
        compare(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (torch.randn(shape), w, b), dtype)
        compare(lambda x, w, b: F.group_norm(x, 2, w, b), (torch.randn(shape), w, b), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_group_norm_of_many_small_planes_in_words(dtype):
    """Groups that a workgroup of a GPU keeps in registers for their gradients."""
    shapes = ((8, 2048, 49, 32), (64, 256, 36, 16), (256, 64, 25, 2), (65, 256, 50, 8))
    shapes += ((3, 35, 20, 7), (2, 12, 4, 3), (1, 60, 49, 15), (2, 64, 196, 2), (2, 6, 784, 3), (1, 1024, 4, 1))
    for samples, channels, size, groups in shapes:
        x, w, b = torch.randn(samples, channels, size), torch.randn(channels), torch.randn(channels)
        compare(lambda x, w, b, n=groups: F.group_norm(x, n, w, b), (x, w, b), dtype)
        compare(lambda x, n=groups: F.group_norm(x, n), (x,), dtype)


@pytest.mark.parametrize("shape", [(8, 64, 7, 7), (3, 132, 5, 5), (16, 8, 9, 11), (2, 36, 16, 13), (5, 12, 31, 30)])
@pytest.mark.parametrize("far", [0, 1000])
def test_batch_norm_statistics_of_words(shape, far):
    """Means and variances, and what follows from them, by kernels of words of 16 bytes."""
    x, state = torch.randn(shape) + far, (torch.randn(shape[1]), torch.rand(shape[1]))
    x[0, :, 0] += 50  # variances about an element must be right wherever it lies
    expected_state = [s.double() for s in state]
    expected = F.batch_norm(x.double(), *expected_state, training=True)
    for layout in (torch.contiguous_format, torch.channels_last):
        actual_state = [s.to("mps") for s in state]
        actual = F.batch_norm(x.to("mps").contiguous(memory_format=layout), *actual_state, training=True)
        for a, b in zip((actual, *actual_state), (expected, *expected_state), strict=True):
            torch.testing.assert_close(a.cpu().double(), b, rtol=1e-5, atol=1e-5 + far * 1e-7)


def test_layer_norm_of_views():
    x = torch.randn(4, 6, 5, 8)
    layouts = [
        (lambda t: t.permute(0, 2, 3, 1), (6,)),
        (lambda t: t[:, :, 1:, ::2], (4,)),
        (lambda t: t.transpose(0, 1), (5, 8)),
        (lambda t: t.permute(1, 0, 3, 2), (8, 5)),
        (lambda t: t.flatten()[1:701].view(-1, 7)[:, :5], (5,)),
        (lambda t: t[:1].expand(3, -1, -1, -1), (8,)),
    ]
    for layout, normalized in layouts:
        w, b = torch.randn(normalized), torch.randn(normalized)
        compare(lambda x, w, b, view=layout, n=normalized: F.layer_norm(view(x), n, w, b), (x, w, b))
        compare(lambda x, w, view=layout, n=normalized: F.rms_norm(view(x), n, w), (x, w))


def test_mean_far_from_zero():
    x = torch.randn(6, 4, 500) + 1e4
    exact = F.layer_norm(x.double(), (500,))
    check(F.layer_norm(x.to("mps"), (500,)), exact, 2e-3)


def test_mixed_dtypes():
    x, w, b = torch.randn(4, 32).half(), torch.randn(32), torch.randn(32)
    check(F.layer_norm(x.to("mps"), (32,), w.to("mps"), b.to("mps")), F.layer_norm(x.float(), (32,), w, b))
    check(F.rms_norm(x.to("mps"), (32,), w.to("mps")), F.rms_norm(x.float(), (32,), w))


@pytest.mark.parametrize("input_type", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ["batch_norm", "instance_norm", "group_norm", "layer_norm"])
def test_parameters_of_another_dtype(op, input_type, raises_as_on_the_cpu):
    def case(ones):
        x, w, stats = ones(2, 4, 4).to(input_type), ones(4).half(), (ones(4).half(), ones(4).half())
        {
            "batch_norm": lambda: F.batch_norm(x, *stats, training=True),
            "instance_norm": lambda: F.instance_norm(x, None, None, w, w),
            "group_norm": lambda: F.group_norm(x, 2, w, w),
            "layer_norm": lambda: F.layer_norm(x, (4,), w, w),
        }[op]()

    raises_as_on_the_cpu(case)


def test_layer_norm_statistics():
    x, w, b = torch.randn(3, 4, 10), torch.randn(10), torch.randn(10)
    actual = torch.native_layer_norm(x.to("mps"), (10,), w.to("mps"), b.to("mps"), 1e-5)
    for a, e in zip(actual, torch.native_layer_norm(x, (10,), w, b, 1e-5), strict=True):
        check(a, e)


def test_empty_layer_norm():
    for shape in ((0, 5), (2, 0, 5)):
        compare(lambda x, w, b: F.layer_norm(x, (5,), w, b), (torch.empty(shape), torch.ones(5), torch.ones(5)))


@pytest.mark.parametrize("op", [F.layer_norm, F.group_norm], ids=["layer_norm", "group_norm"])
def test_one_element_has_no_gradient(op, mps):
    # rstd is 316 there: an average that is subtracted from an unrounded product leaves 1e-5.
    x = torch.randn(64, 1).to(mps).requires_grad_()
    w = torch.randn(1).to(mps)
    y = op(x, (1,), w) if op is F.layer_norm else op(x, 1, w)
    (dx,) = torch.autograd.grad(y, x, torch.randn(64, 1).to(mps))
    assert torch.equal(dx.cpu(), torch.zeros(64, 1))


def test_layer_norm_errors():
    x = torch.ones(3, 4)
    cases = [
        lambda t: F.layer_norm(t, (3,)),
        lambda t: F.layer_norm(t, ()),
        lambda t: F.layer_norm(t, (4,), t[0, :3]),
        lambda t: F.rms_norm(t, (3,)),
        lambda t: F.rms_norm(t, (4,), t[0, :3]),
    ]
    for case in cases:
        with pytest.raises(Exception) as expected:
            case(x)
        with pytest.raises(expected.type) as actual:
            case(x.to("mps"))
        assert str(actual.value) == str(expected.value)


def train_batch_norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(4, 6), (5, 3, 7), (2, 8, 4, 4), (3, 5, 3, 7), (2, 4, 3, 2, 5), (64, 1, 9, 9)])
def test_batch_norm(dtype, shape):
    channels = shape[1]
    mean, var = torch.randn(channels).to(dtype).float(), torch.rand(channels).to(dtype).float() + 0.5

    def evaluate(x, w, b):
        return F.batch_norm(x, mean.to(x), var.to(x), w, b, training=False)

    for x, w, b in with_affine(torch.randn(shape), channels):
        compare(train_batch_norm, (x, w, b), dtype)
        compare(evaluate, (x, w, b), dtype)


@pytest.mark.parametrize("shape", [(4, 6, 5, 5), (2, 8, 4, 4), (2, 4, 3, 2, 5)])
def test_batch_norm_channels_last(shape):
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    for x, w, b in with_affine(torch.randn(shape), shape[1]):
        compare(train_batch_norm, (x.to(memory_format=layout), w, b))
        compare(lambda x, w, b: train_batch_norm(x.transpose(0, 1), w, b), (x.transpose(0, 1).contiguous(), w, b))
    out = train_batch_norm(x.to("mps", memory_format=layout), None, None)
    assert out.is_contiguous(memory_format=layout)


def test_batch_norm_of_views():
    x, w, b = torch.randn(3, 6, 5, 8), torch.randn(6), torch.randn(6)
    compare(lambda x, w, b: train_batch_norm(x[:, :, 1:, ::2], w, b), (x, w, b))
    compare(lambda x, w, b: train_batch_norm(x.expand(4, -1, -1, -1), w, b), (x[:1], w, b))
    compare(lambda x, w, b: train_batch_norm(x[1:], w, b), (x, w, b))


@pytest.mark.parametrize("momentum", [0.1, None, 1.0])
def test_running_statistics(momentum):
    modules = [torch.nn.BatchNorm2d(5, momentum=momentum), torch.nn.BatchNorm2d(5, momentum=momentum).to("mps")]
    for step in range(3):
        x = torch.randn(4, 5, 3, 3) * 2 + step
        expected, actual = modules[0](x), modules[1](x.to("mps"))
        check(actual.detach(), expected.detach())
    for name, buffer in modules[0].named_buffers():
        check(dict(modules[1].named_buffers())[name], buffer, 2e-5)
    for module in modules:
        module.eval()
    check(modules[1](x.to("mps")).detach(), modules[0](x).detach())


@pytest.mark.parametrize("shape", [(5, 3, 7), (4, 3), (2, 3, 4, 4)])
def test_running_statistics_of_views(shape, mps):
    x, table = torch.randn(shape), torch.rand(3, 4) + 0.5
    expected, actual = table.clone(), table.to(mps)
    for stats in (expected, actual):
        F.batch_norm(x.to(stats.device), stats[:, 1], stats[:, 3], training=True)
    check(actual, expected)
    for stats in (expected, actual):
        torch.batch_norm_update_stats(x.to(stats.device), stats[:, 0], stats[:, 2], 0.1)
    check(actual, expected)


def test_statistics_of_nothing(raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda ones: torch.batch_norm_update_stats(ones(0, 3), ones(3), ones(3), 0.1))


def test_batch_norm_spellings():
    x, w, b = torch.randn(4, 6, 3, 3), torch.randn(6), torch.randn(6)

    def run(device):
        t = [v.to(device) for v in (x, w, b)]
        aten = torch.ops.aten
        for training in (True, False):
            stats = torch.zeros(6, device=device), torch.ones(6, device=device)
            yield from aten.native_batch_norm(*t, *stats, training, 0.1, 1e-5)
            yield from aten._native_batch_norm_legit(*t, *stats, training, 0.1, 1e-5)
            yield from aten._native_batch_norm_legit_functional(*t, *stats, training, 0.1, 1e-5)
            outs = [torch.empty(0, device=device) for _ in range(3)]
            yield from torch.native_batch_norm(*t, *stats, training, 0.1, 1e-5, out=outs)
            yield from stats
        yield from aten._native_batch_norm_legit.no_stats(*t, True, 0.1, 1e-5)
        yield from aten._batch_norm_with_update(*t, *stats, 0.1, 1e-5)[:3]
        yield from aten._batch_norm_no_update(*t, *stats, 0.1, 1e-5)[:3]
        yield from aten.batch_norm_update_stats(t[0], *stats, 0.1)
        yield from stats

    for actual, expected in zip(run("mps"), run("cpu"), strict=True):
        check(actual, expected, 2e-5)


def test_batch_norm_mixed_dtypes():
    x, w, b = torch.randn(4, 6, 3, 3).half(), torch.randn(6), torch.randn(6)
    stats = torch.zeros(6, device="mps"), torch.ones(6, device="mps")
    actual = F.batch_norm(x.to("mps"), *stats, w.to("mps"), b.to("mps"), training=True)
    assert actual.dtype == torch.float16 and stats[0].dtype == torch.float32
    check(actual, F.batch_norm(x.float(), None, None, w, b, training=True))


def test_batch_norm_far_from_zero():
    x = torch.randn(8, 3, 20, 20) + 1e4
    check(
        F.batch_norm(x.to("mps"), None, None, training=True), F.batch_norm(x.double(), None, None, training=True), 2e-3
    )


def test_batch_norm_training_step_of_many_samples():
    x, w, b = torch.randn(32, 4, 28, 28), torch.randn(4), torch.randn(4)
    compare(train_batch_norm, (x, w, b), tolerance=1e-4)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "shape,groups", [((2, 6, 4, 4), 3), ((3, 4, 5), 2), ((2, 8, 3, 3), 1), ((2, 6, 7), 6), ((1, 4), 2)]
)
def test_group_norm(dtype, shape, groups):
    # In a gradient of two numbers terms of 1 / sqrt(eps) = 316 cancel: the CPU is as far from float64 as mps.
    pairs = dtype == torch.float32 and math.prod(shape[1:]) == 2 * groups
    for x, w, b in with_affine(torch.randn(shape), shape[1]):
        compare(lambda x, w, b: F.group_norm(x, groups, w, b), (x, w, b), dtype, 3e-4 if pairs else None)


def test_group_norm_of_views_and_long_rows():
    x, w, b = torch.randn(2, 6, 5, 8), torch.randn(6), torch.randn(6)
    compare(lambda x, w, b: F.group_norm(x[:, :, 1:, ::2], 3, w, b), (x, w, b))
    compare(lambda x, w, b: F.group_norm(x, 3, w, b), (x.to(memory_format=torch.channels_last), w, b))
    compare(lambda x, w, b: F.group_norm(x, 2, w, b), (torch.randn(1, 6, 100, 100), w, b), tolerance=1e-4)
    far = torch.randn(2, 4, 30, 30) + 1e4
    check(F.group_norm(far.to("mps"), 2), F.group_norm(far.double(), 2), 2e-3)


def test_instance_norm():
    x, w, b = torch.randn(3, 4, 6, 5), torch.randn(4), torch.randn(4)
    compare(lambda x, w, b: F.instance_norm(x, None, None, w, b), (x, w, b))


def test_group_norm_errors():
    x = torch.ones(2, 6, 4)
    for case in (lambda t: F.group_norm(t, 4), lambda t: F.group_norm(t, 2, t[0, :3, 0]), lambda t: F.group_norm(t, 0)):
        with pytest.raises(Exception) as expected:
            case(x)
        with pytest.raises(expected.type) as actual:
            case(x.to("mps"))
        assert str(actual.value) == str(expected.value)


def test_double_backward():
    x = torch.randn(2, 4, 5, dtype=torch.float32)

    def second(device):
        leaf = x.to(device).requires_grad_()
        results = []
        for op in (
            lambda t: F.layer_norm(t, (5,)),
            lambda t: F.group_norm(t, 2),
            lambda t: train_batch_norm(t, None, None),
        ):
            (first,) = torch.autograd.grad(op(leaf).pow(3).sum(), leaf, create_graph=True)
            results += torch.autograd.grad(first.square().sum(), leaf)
        return results

    for actual, expected in zip(second("mps"), second("cpu"), strict=True):
        check(actual, expected, 1e-4)


@pytest.mark.parametrize("shape", [(2, 4, 0), (0, 4, 3), (2, 4, 0, 5)])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_of_empty_planes(shape, affine, mps):
    """Gradients too: a plane without elements has no memory to read. The weight's is the sum of no products, where the
    CPU multiplies it by the mean of no elements, NaN. From 2.15 on PyTorch refuses such planes."""
    norms = [torch.nn.GroupNorm(2, 4, affine=affine).to(device) for device in ("cpu", mps)]
    try:
        norms[0](torch.rand(shape))
    except RuntimeError as refusal:
        with pytest.raises(RuntimeError, match=re.escape(str(refusal))):
            norms[1](torch.rand(shape, device=mps))
        return
    found = []
    for norm, device in zip(norms, ("cpu", mps)):
        x = torch.rand(shape, device=device, requires_grad=True)
        norm(x).sum().backward()
        found.append([x.grad.cpu(), *(p.grad.cpu() for p in norm.parameters())])
    torch.mps.synchronize()
    for got, want in zip(found[1], found[0]):
        assert torch.equal(got, want.nan_to_num())
