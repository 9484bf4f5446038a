"""Convolutions large enough for the tiles without shared memory (shaders/conv/conv_nosmem_tile.slang, conv_wgrad_3x3,
conv_wgrad_1x1); on software drivers, which lack these, small ones by other kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_conv import check
from test_conv_tf32 import device, has_halves

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def small():
    return device()["kind"] == "software"


def shapes(images, channels, filters, height, width, taps):
    if small():
        images, channels, filters = min(images, 2), channels // 4, filters // 4
    return (images, channels, height, width), (filters, channels, taps, taps)


KINDS = {  # images, channels, filters, height, width, taps; stride, padding, dilation
    "3x3": ((3, 64, 96, 12, 16, 3), 1, 1, 1),
    "odd sizes": ((5, 96, 64, 7, 9, 3), 1, 1, 1),
    "frames": ((3, 64, 128, 5, 6, 3), 1, 1, 1),
    "few rows": ((2, 32, 72, 9, 8, 3), 1, 1, 1),
    "strided": ((3, 64, 128, 15, 16, 3), 2, 1, 1),
    "strided, even lines": ((3, 64, 96, 12, 16, 3), 2, 1, 1),
    "strided, lines of two": ((3, 64, 96, 6, 12, 3), 2, 1, 1),
    "dilated": ((2, 64, 64, 14, 13, 3), 1, 2, 2),
    "5x5": ((2, 64, 64, 12, 12, 5), 1, 2, 1),
    "split": ((2, 512, 64, 7, 7, 3), 1, 1, 1),
    "1x1 of 64": ((3, 64, 320, 12, 20, 1), 1, 0, 1),
    "1x1 of 128": ((3, 128, 72, 14, 14, 1), 1, 0, 1),
    "1x1 of 160": ((3, 160, 200, 14, 14, 1), 1, 0, 1),
    "1x1 of 7 x 7": ((5, 96, 64, 7, 7, 1), 1, 0, 1),
    "1x1 strided": ((3, 64, 96, 14, 15, 1), 2, 0, 1),
    "1x1 strided, even lines": ((3, 64, 96, 14, 16, 1), 2, 0, 1),
    "weights of 256": ((4, 256, 128, 8, 8, 1), 1, 0, 1),
    "weights of 72": ((8, 72, 136, 6, 6, 1), 1, 0, 1),
    "weights of lines": ((3, 48, 130, 5, 14, 3), 1, 1, 1),
    "weights of one line": ((5, 32, 64, 1, 9, 3), 1, 1, 1),
}


def arguments(kind):
    _, stride, padding, dilation = KINDS[kind]
    return ([stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits(kind, dtype):
    x, w = (torch.randn(shape) for shape in shapes(*KINDS[kind][0]))
    check(arguments(kind), x, w, torch.randn(len(w)), dtype=dtype)


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("cut", [(0, 8), (4, 12), (2, 12), (3, 10), (1, 2)])
def test_weights_of_views(cut, taps):
    """Lines that begin at words of eight, four or two bytes."""
    x, g = (torch.randn(4, channels, 8, 16).half() for channels in (32, 64))
    w = torch.randn(64, 32, taps, taps)
    rest = None, [1, 1], [taps // 2] * 2, [1, 1], False, [0, 0], 1, [False, True, False]
    cpu, mps = (
        torch.ops.aten.convolution_backward(
            *(v.to(device, t)[..., slice(*cut)] for v in (g, x)), w.to(device, t), *rest
        )[1]
        for device, t in (("cpu", torch.double), ("mps", torch.half))
    )
    torch.testing.assert_close(mps.cpu().double(), cpu, rtol=2e-3, atol=2e-3 * cpu.abs().max().item())


RESULTS = ("y", "grad x", "grad w", "grad b")
ONE_TAP = [kind for kind in KINDS if KINDS[kind][0][-1] == 1]


@pytest.mark.parametrize("kind", ONE_TAP)
def test_one_tap_of_floats_keeps_sixteen_bits(kind, tf32):
    """Pairs of bf16 whatever the range; halves, which have eleven bits, only of images that are packed, and where few
    channels go to many rows, as in the input's gradient of the last kind."""
    x, w = (torch.randn(shape) for shape in shapes(*KINDS[kind][0]))
    x[0] *= 1e-12
    w[-1] *= 1e18
    halves = {
        "1x1 of 7 x 7": RESULTS,
        "1x1 strided": RESULTS,
        "1x1 strided, even lines": RESULTS,
        "weights of 256": ("grad x",),
    }.get(kind, ())
    b = torch.randn(len(w))
    check(arguments(kind), x, w, b, epsilon=2**-15, compared=[name for name in RESULTS if name not in halves])
    check(arguments(kind), x, w, b, epsilon=1.05e-3, compared=halves)


@pytest.mark.parametrize("kind", ["1x1 of 160", "weights of 72"])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 3.4e38, 1e-39])
def test_one_tap_of_floats_that_parts_cannot_hold(value, kind, tf32):
    x, w = (torch.randn(shape) for shape in shapes(*KINDS[kind][0]))
    x[1, 3, 4, 5] = value
    g = torch.randn(len(x), len(w), *x.shape[2:])
    have = [F.conv2d(x.to("mps"), w.to("mps"))]
    want = [F.conv2d(x, w)]
    for place, results in (("mps", have), ("cpu", want)):
        gradient = torch.ops.aten.convolution_backward(
            *(t.to(place) for t in (g, x, w)), None, *arguments(kind)[:5], 1, [False, True, False]
        )
        results.append(gradient[1])
    # Halves hold 1e-39, as 0: then factors are rounded as TF32 rounds them, and sums of 1,000 terms are 1e-2 off.
    atol = 5e-2 if value == 1e-39 and has_halves() else 1e-2
    for a, b in zip(have, want, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=atol, equal_nan=True)
