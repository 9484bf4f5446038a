"""Convolutions and their gradients against float64 on the CPU, over sampled parameters."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from compare import CONVOLUTION as EPSILON

pytestmark = pytest.mark.usefixtures("poisoned_memory", "all_bits_of_f32")

LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def gradients(arguments, x, w, b, g):
    """The result and the gradients of input, weight and bias."""
    leaves = [t.detach().requires_grad_() for t in (x, w, b) if t is not None]
    y = torch.convolution(*leaves, *([None] if b is None else []), *arguments)
    return [y.detach(), *torch.autograd.grad(y, leaves, g)]


def check(arguments, x, w, b=None, g=None, dtype=torch.float32, epsilon=None, compared=None):
    """Every result is within rounding of the float64 one, relative to the sum of its terms' magnitudes."""
    tensors = [None if t is None else t.to(dtype) for t in (x, w, b)]
    doubles = [None if t is None else t.double() for t in tensors]
    if g is None:
        g = torch.randn_like(torch.convolution(*doubles, *arguments)).to(dtype)
    expected = gradients(arguments, *doubles, g.double())
    scales = gradients(arguments, *[None if t is None else t.abs() for t in doubles], g.double().abs())
    actual = gradients(arguments, *[None if t is None else t.to("mps") for t in tensors], g.to("mps"))
    for name, out, want, scale in zip(("y", "grad x", "grad w", "grad b"), actual, expected, scales, strict=False):
        assert out.dtype == dtype and out.shape == want.shape, name
        if compared is not None and name not in compared:
            continue
        error = (out.cpu().double() - want).abs()
        limit = (epsilon or EPSILON[dtype]) * scale + torch.finfo(dtype).tiny
        assert (error <= limit).all(), f"{name}: worst {(error / limit).max()} times the limit"
    return actual


def sample(rng, dim, groups, transposed):
    """Random sizes and parameters that give a non-empty result."""
    channels, filters = (rng.choice([1, 2, 3, 4, 8]) for _ in range(2))
    sizes = [rng.randint(4, 9) for _ in range(dim)]
    taps, strides, paddings, dilations = (
        [rng.choice(choice) for _ in range(dim)] for choice in ([1, 2, 3], [1, 1, 2, 3], [0, 1, 2], [1, 1, 2])
    )
    for i in range(dim):
        if (taps[i] - 1) * dilations[i] + 1 > sizes[i] + 2 * paddings[i]:
            dilations[i] = 1
        while transposed and (sizes[i] - 1) * strides[i] - 2 * paddings[i] + (taps[i] - 1) * dilations[i] < 0:
            paddings[i] -= 1
    extra = [rng.randint(0, max(s, d) - 1) if transposed else 0 for s, d in zip(strides, dilations, strict=True)]
    x = torch.randn(rng.choice([1, 2, 11]), channels * groups, *sizes)
    w = torch.randn(*((channels * groups, filters) if transposed else (filters * groups, channels)), *taps)
    b = torch.randn(filters * groups) if rng.random() < 0.7 else None
    return (strides, paddings, dilations, transposed, extra, groups), x, w, b


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_sampled_parameters(dim, transposed):
    rng = random.Random(torch.initial_seed())
    for groups in (1, 1, 2, 4):
        arguments, x, w, b = sample(rng, dim, groups, transposed)
        if dim in LAST and rng.random() < 0.4:
            x = x.contiguous(memory_format=LAST[dim])
        dtype = rng.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
        try:
            check(arguments, x, w, b, dtype=dtype)
        except Exception as error:
            raise AssertionError(f"{arguments} {x.shape} {x.stride()} {w.shape} {dtype}") from error


PLAIN = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def test_batch_above_8_and_odd_sizes():
    check(PLAIN, torch.randn(19, 3, 13, 17), torch.randn(33, 3, 3, 3), torch.randn(33))


@pytest.mark.parametrize("dim", [2, 3])
def test_channels_last_in_and_out(dim):
    arguments = ([1] * dim, [1] * dim, [1] * dim, False, [0] * dim, 1)
    x = torch.randn(2, 8, *[6] * dim).contiguous(memory_format=LAST[dim])
    w = torch.randn(12, 8, *[3] * dim)
    for weight in (w, w.contiguous(memory_format=LAST[dim])):
        y, gx, gw, _ = check(arguments, x, weight, torch.randn(12))
        for result in (y, gx, gw):
            assert result.is_contiguous(memory_format=LAST[dim])
    y, *_ = check(arguments, x.contiguous(), w.contiguous(memory_format=LAST[dim]))
    assert y.is_contiguous(memory_format=LAST[dim])


def test_views():
    base = torch.randn(5, 9, 14, 15)
    w = torch.randn(8, 10, 3, 3)
    check(PLAIN, base[1:4, 2:6, ::2, 3:14], w[1:6, 3:7])
    check(PLAIN, base.transpose(2, 3)[:, 1:5], w.flip(2)[:, :4, :, :2])
    check(PLAIN, base[:1, :4].expand(3, 4, 14, 15), w[:, :4].transpose(2, 3), torch.randn(17)[1::2])
    y = torch.convolution(base[:, :4], w[:, :4], None, *PLAIN)
    check(PLAIN, base[:, :4], w[:, :4], g=torch.ones(()).expand(y.shape))


KINDS = {  # shapes of image and weight, stride, padding, dilation, groups, transposed
    "3x3": ((2, 16, 9, 10), (24, 16, 3, 3), 1, 1, 1, 1, False),
    "odd channels": ((3, 3, 9, 11), (10, 3, 3, 3), 1, 1, 1, 1, False),
    "strided": ((2, 16, 9, 10), (24, 16, 3, 3), 2, 1, 1, 1, False),
    "dilated groups": ((2, 20, 7, 8), (24, 10, 3, 3), 1, 2, 2, 2, False),
    "lanes for one gradient": ((2, 32, 7, 8), (8, 16, 3, 3), 1, 1, 1, 2, False),
    "1x1": ((2, 16, 9, 10), (24, 16, 1, 1), 1, 0, 1, 1, False),
    "1x1 strided": ((2, 16, 9, 10), (24, 16, 1, 1), 2, 0, 1, 1, False),
    "transposed": ((2, 16, 6, 7), (16, 12, 3, 3), 2, 1, 1, 1, True),
    "1d": ((3, 12, 40), (20, 12, 5), 1, 2, 1, 1, False),
    "3d": ((2, 6, 5, 6, 7), (9, 6, 2, 3, 3), 1, 1, 1, 1, False),
    # Channels of whole tiles, whose taps are walked through one after the other; 36 are too many for that.
    "taps": ((2, 64, 7, 8), (40, 64, 3, 2), 1, 1, 1, 1, False),
    "taps of groups": ((2, 64, 8, 7), (64, 32, 3, 3), 1, 2, 2, 2, False),
    "taps strided": ((2, 32, 9, 8), (64, 32, 3, 3), 2, 1, 1, 1, False),
    "taps 1d": ((3, 32, 40), (24, 32, 5), 1, 2, 1, 1, False),
    "taps 3d": ((2, 32, 5, 4, 6), (32, 32, 2, 3, 3), 1, 1, 1, 1, False),
    "many taps": ((2, 32, 8, 9), (16, 32, 6, 6), 1, 3, 1, 1, False),
    # Images that are read as they are, and ones of few positions, whose channels are packed as one row.
    "words of positions": ((3, 48, 8, 7), (72, 48, 1, 1), 1, 0, 1, 1, False),
    "few positions": ((3, 136, 7, 7), (40, 136, 1, 1), 1, 0, 1, 1, False),
    "few positions, groups": ((3, 80, 5, 3), (32, 40, 3, 3), 1, 1, 1, 2, False),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_in_half(kind, last):
    """What matrix units multiply, where there are any: packed images of every kind."""
    image, weight, stride, padding, dilation, groups, transposed = KINDS[kind]
    dim = len(image) - 2
    if last and dim not in LAST:
        return
    x, w = torch.randn(image), torch.randn(weight)
    if last:
        x, w = (t.contiguous(memory_format=LAST[dim]) for t in (x, w))
    arguments = ([stride] * dim, [padding] * dim, [dilation] * dim, transposed, [0] * dim, groups)
    results = check(arguments, x, w, dtype=torch.float16)
    b = torch.randn(weight[1] * groups if transposed else weight[0])
    x, w, b = (t.to("mps", torch.float16) for t in (x, w, b))
    with_bias = torch.convolution(x, w, b, *arguments)
    torch.testing.assert_close(with_bias, results[0] + b.view(1, -1, *[1] * dim), rtol=2e-3, atol=1e-2)
    if last:
        assert all(r.is_contiguous(memory_format=LAST[dim]) for r in results[:2])


def test_gradients_of_weights_use_matrix_units(run_python):
    """With and without a whole number of granules of channels, no kernel of lanes runs where there are matrix units."""
    source = """
import json, sys, torch, torch_anymps

if not json.loads(torch.ops.anymps.device_info())["features"]["coopmat"]:
    sys.exit()
for channels, filters in ((16, 24), (3, 16), (16, 1), (1, 8)):
    x, w = torch.randn(2, channels, 9, 10).half(), torch.randn(filters, channels, 3, 3).half()
    g = torch.randn(2, filters, 9, 10).half()
    arguments = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    with torch_anymps.profile() as profile:
        actual = torch.ops.aten.convolution_backward(g.to("mps"), x.to("mps"), w.to("mps"), *arguments)[1]
    names = [kernel.name for kernel in profile.kernels]
    assert any("conv_matrix" in name for name in names), names
    expected = torch.ops.aten.convolution_backward(g.double(), x.double(), w.double(), *arguments)[1]
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-2, atol=1e-1)
"""
    result = run_python(source, env={"ANYMPS_TILES": "gpu"}, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr


def test_depthwise_of_every_type():
    for dtype in EPSILON:
        for multiplier, stride, padding, taps in ((1, 1, 2, 3), (2, 2, 2, 3), (1, 1, 2, 5), (3, 1, 0, 1)):
            x, w = torch.randn(3, 4, 13, 10), torch.randn(4 * multiplier, 1, taps, taps)
            arguments = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 4)
            check(arguments, x, w, torch.randn(4 * multiplier), dtype=dtype)
            last = torch.channels_last
            check(arguments, x.contiguous(memory_format=last), w.contiguous(memory_format=last), dtype=dtype)
    check(([2, 2], [1, 1], [1, 1], True, [1, 1], 12), torch.randn(2, 12, 6, 7), torch.randn(12, 1, 3, 3))
    check(([1, 2, 1], [1, 1, 0], [1, 1, 2], False, [0] * 3, 6), torch.randn(2, 6, 5, 6, 7), torch.randn(6, 1, 2, 3, 3))


def test_depthwise():
    for channels in (6, 32):
        check(
            ([1, 1], [1, 1], [1, 1], False, [0, 0], channels),
            torch.randn(3, channels, 17, 16),
            torch.randn(channels, 1, 3, 3),
            torch.randn(channels),
        )
    check(([2], [4], [2], False, [0], 5), torch.randn(2, 5, 400), torch.randn(10, 1, 5), torch.randn(10))


@pytest.mark.parametrize("taps", [3, 5, 7])
@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (1, 2)])
def test_depthwise_strips(taps, stride, dilation):
    """By one channel and by four a thread, with strips that end inside and outside of the image, in both formats."""
    last = torch.channels_last
    arguments = [[stride] * 2, [dilation * (taps // 2)] * 2, [dilation] * 2, False, [0, 0]]
    w, b = torch.randn(72, 1, taps, taps), torch.randn(72)
    x = torch.randn(2, 72, 15, 13)
    check((*arguments, 72), x.contiguous(memory_format=last), w, b, dtype=torch.bfloat16)
    check((*arguments, 72), x, w, b, dtype=torch.float16)
    arguments[1] = [0, 1]
    x, w = torch.randn(3, 7, 18, 34), torch.randn(7, 1, taps, taps)
    for image in (x, x.contiguous(memory_format=last)):
        check((*arguments, 7), image, w)
    # Images and gradients of different formats; words that no vector is aligned to.
    x, w = torch.randn(2, 9, 16, 15).contiguous(memory_format=last)[:, 1:], torch.randn(8, 1, taps, taps)
    g = torch.randn_like(torch.convolution(x, w, None, *arguments, 8)).contiguous()
    check((*arguments, 8), x, w, g=g)


def test_depthwise_beyond_the_image():
    """Padding wider than the taps, a transposed convolution, and positions of the image that no result reads."""
    last = torch.channels_last
    for stride in (1, 2):
        x, w = torch.randn(2, 4, 5, 6), torch.randn(4, 1, 3, 3)
        for image in (x, x.contiguous(memory_format=last)):
            check(([stride] * 2, [9, 8], [1, 1], False, [0, 0], 4), image, w, torch.randn(4))
            check(([stride] * 2, [1, 0], [1, 1], True, [stride - 1] * 2, 4), image, w)
    x, w = torch.randn(2, 4, 8, 8), torch.randn(4, 1, 3, 3)
    x[:, :, -1], x[..., -1] = torch.inf, torch.nan
    arguments = ([2, 2], [0, 0], [1, 1], False, [0, 0], 4)
    for image in (x, x.contiguous(memory_format=last)):
        y = torch.convolution(image.to("mps"), w.to("mps"), None, *arguments)
        mask = [True, True, False]
        g = torch.ops.aten.convolution_backward(y, image.to("mps"), w.to("mps"), None, *arguments, mask)
        assert all(t.isfinite().all() for t in (y, *g[:2]))


def test_strides_beyond_the_image():
    """... are planned by the positions that there are."""
    for groups in (1, 3):
        check(([100_000] * 2, [1, 1], [1, 1], False, [0, 0], groups),
              torch.randn(2, 3, 5, 6), torch.randn(6, 3 // groups, 3, 3), torch.randn(6))  # fmt: skip


def test_few_channels_in_many_groups_channels_last():
    x = torch.randn(5, 8, 12, 12).contiguous(memory_format=torch.channels_last)
    for channels, filters in ((4, 4), (4, 2), (8, 1)):
        w = torch.randn(filters, channels, 3, 3).contiguous(memory_format=torch.channels_last)
        check(([1, 1], [1, 1], [1, 1], False, [0, 0], 8 // channels), x, w)


def test_pointwise_and_full_size_kernels():
    check(([1, 1], [0, 0], [1, 1], False, [0, 0], 1), torch.randn(2, 20, 7, 9), torch.randn(12, 20, 1, 1))
    check(([1, 1], [0, 0], [1, 1], False, [0, 0], 1), torch.randn(3, 5, 6, 7), torch.randn(4, 5, 6, 7))


def test_long_sums_of_the_weight_gradient_are_exact_and_reproducible():
    """Sums over batch and positions are cut into parts, added in a fixed order; tiny gradients survive them."""
    x, w = torch.randn(24, 3, 48, 48), torch.randn(4, 3, 3, 3)
    g = torch.randn(24, 4, 48, 48) * 1e-12
    first = check(PLAIN, x, w, g=g)
    again = gradients(PLAIN, x.to("mps"), w.to("mps"), None, g.to("mps"))
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, again, strict=True))


def test_padding_modes_and_unbatched():
    x, w = torch.randn(3, 9, 9), torch.randn(4, 3, 3, 3)
    for padding in ("same", "valid", 2):
        actual = F.conv2d(x.to("mps"), w.to("mps"), padding=padding).cpu()
        torch.testing.assert_close(actual, F.conv2d(x, w, padding=padding), rtol=1e-4, atol=1e-4)


def test_integers():
    x, w = torch.randint(-9, 9, (2, 3, 7, 8)), torch.randint(-9, 9, (4, 3, 3, 2))
    for dtype in (torch.int64, torch.int32, torch.uint8):
        a, b = x.to(dtype), w.to(dtype)
        assert torch.equal(F.conv2d(a.to("mps"), b.to("mps")).cpu(), F.conv2d(a, b))


def test_empty_batches(mps):
    x = torch.empty(0, 3, 8, 8, device=mps, requires_grad=True)
    w = torch.ones(4, 3, 3, 3, device=mps, requires_grad=True)
    y = F.conv2d(x, w)
    assert y.shape == (0, 4, 6, 6)
    gx, gw = torch.autograd.grad(y.sum(), [x, w])
    assert gx.shape == x.shape and gw.cpu().abs().max().item() == 0


def test_second_derivative():
    x, w = torch.randn(2, 3, 6, 6, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)

    def second(x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = F.conv2d(x, w, stride=2, padding=1)
        (gx,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        return torch.autograd.grad((gx * gx).sum(), w)[0]

    actual = second(x.float().to("mps"), w.float().to("mps")).cpu().double()
    torch.testing.assert_close(actual, second(x, w), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    "case",
    [
        lambda t: F.conv2d(t(1, 3, 5, 5), t(4, 2, 3, 3)),
        lambda t: F.conv2d(t(1, 3, 2, 2), t(4, 3, 3, 3)),
        lambda t: F.conv2d(t(1, 3, 5, 5), t(4, 3, 3, 3), t(3)),
        lambda t: F.conv2d(t(5, 5), t(4, 3, 3, 3)),
        lambda t: F.conv2d(t(1, 3, 5, 5), t(4, 3, 3, 3), stride=0),
        lambda t: F.conv2d(t(1, 3, 5, 5), t(4, 3, 3, 3), padding=-1),
        lambda t: F.conv2d(t(1, 3, 5, 5), t(4, 3, 3, 3), groups=2),
        lambda t: F.conv_transpose2d(t(1, 3, 5, 5), t(4, 3, 3, 3)),
        lambda t: F.conv_transpose2d(t(1, 2, 6, 2), t(2, 2, 3, 1), padding=1, dilation=(3, 1)),
    ],
)
def test_wrong_arguments_raise_what_the_cpu_raises(case, raises_as_on_the_cpu):
    raises_as_on_the_cpu(case)


def test_mixed_types_are_refused(mps):
    with pytest.raises(RuntimeError, match="should be the same"):
        F.conv2d(torch.ones(1, 1, 3, 3, device=mps), torch.ones(1, 1, 3, 3, device=mps).half())
