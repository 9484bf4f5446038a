"""Convolutions of float32 that may lose what TF32 loses: as scaled halves where matrix units multiply those and all
blocks of the factors are in range, by other means where not."""

from __future__ import annotations

import json
import os

import pytest
import torch
import torch.nn.functional as F
from test_conv import LAST, PLAIN, check

# Of the sum of the terms' magnitudes: two factors of 11 bits, or of two bf16 parts, which have 16 bits or more.
ROUNDED = 1.05e-3
EXACT = 2**-15


pytestmark = pytest.mark.usefixtures("poisoned_memory", "tf32")


def device():
    return json.loads(torch.ops.anymps.device_info())


@pytest.fixture(params=["shared memory", "direct"])
def sizes(request):
    """Of an image and a weight: small ones are not worth the search for the largest magnitude on a GPU. Those for the
    tiles without shared memory are others on software drivers too, which lack these tiles."""
    if device()["kind"] == "software":
        return ((2, 16, 16, 15), (24, 16, 3, 3)) if request.param != "direct" else ((2, 32, 9, 8), (32, 32, 3, 3))
    return ((16, 64, 56, 55), (72, 64, 3, 3)) if request.param != "direct" else ((16, 128, 28, 27), (128, 128, 3, 3))


def has_halves():
    info = device()
    return info["features"]["coopmat"] and (info["kind"] != "software" or os.environ.get("ANYMPS_TILES") == "gpu")


def images(*shapes):
    return [torch.randn(shape) for shape in shapes]


def is_rounded(x, w):
    have, want = F.conv2d(x.to("mps"), w.to("mps")).cpu(), F.conv2d(x.double(), w.double())
    return ((have - want).abs().max() / want.abs().max()).item() > 1e-6


@pytest.mark.parametrize("last", [False, True])
def test_ordinary_factors_are_rounded_as_tf32_rounds_them(last, sizes):
    x, w = images(*sizes)
    if last:
        x, w = (t.contiguous(memory_format=LAST[2]) for t in (x, w))
    check(PLAIN, x, w, torch.randn(len(w)), epsilon=ROUNDED)
    assert is_rounded(x, w) == has_halves()


def test_any_scale_is_as_good_as_another(sizes):
    x, w = images(*sizes)
    for scale_x, scale_w in ((1e-14, 1e-18), (1e25, 1e-20), (1e12, 1e12)):
        check(PLAIN, x * scale_x, w * scale_w, g=torch.randn(len(x), len(w), *x.shape[2:]) * 1e-6, epsilon=ROUNDED)
        assert is_rounded(x * scale_x, w * scale_w) == has_halves()


def test_kinds():
    for arguments, x, w in (
        (([2, 2], [0, 0], [1, 1], False, [0, 0], 1), (2, 32, 12, 12), (16, 32, 1, 1)),
        (([2, 1], [1, 2], [1, 2], False, [0, 0], 2), (3, 26, 11, 9), (22, 13, 3, 3)),
        (([1], [1], [1], False, [0], 1), (2, 16, 40), (24, 16, 3)),
        (([1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1), (2, 8, 5, 6, 7), (16, 8, 3, 3, 3)),
        (([2, 2], [1, 1], [1, 1], True, [1, 1], 2), (2, 32, 6, 7), (32, 8, 3, 3)),
        (([1, 1], [0, 0], [1, 1], False, [0, 0], 1), (8, 64, 1, 1), (32, 64, 1, 1)),
    ):
        check(arguments, *images(x, w), epsilon=ROUNDED)


@pytest.mark.parametrize("channels, filters", [(256, 128), (128, 512), (512, 256)])
@pytest.mark.parametrize("offset", [0, 2, 4])
def test_one_tap_of_images_that_are_read_as_they_are(offset, channels, filters):
    """Their floats become halves in the kernel, or bf16 parts where one is out of range; packed ones off words."""
    small = device()["kind"] == "software"
    if small:
        channels, filters = channels // 8, filters // 8 + 8
    shape = (3, channels, 8, 7) if small else (32, channels, 28, 28)
    x, w = images(shape, (filters, shape[1], 1, 1))
    arguments = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    for scale in (1, 1e-12):
        x[1] *= scale
        memory = torch.zeros(offset + x.numel(), device="mps")
        seen = memory[offset:].view(shape).copy_(x)
        want = torch.ops.aten.convolution(x.double(), w.double(), None, *arguments)
        have = torch.ops.aten.convolution(seen, w.to("mps"), None, *arguments).cpu()
        limit = (ROUNDED if scale == 1 else EXACT) * F.conv2d(x.double().abs(), w.double().abs())
        assert ((have - want).abs() <= limit).all()
        check(arguments, x, w, epsilon=ROUNDED)
        if scale != 1:  # the gradient of x has no factor out of range: it may be rounded
            check(arguments, x, w, epsilon=EXACT, compared=("y", "grad w"))


def spoil(t, name):
    """Numbers that the guess of a range may not expect; True where halves cannot hold them."""
    if name == "sparse":
        t *= torch.rand_like(t) < 0.001
    elif name in ("zeros", "one"):
        t *= 0
        t[1, 3, 4, 5] = 5 * (name == "one")
    elif name == "outlier":
        t[1, 3, 4, 5] = 40 * t.abs().max()
    elif name == "large":
        t *= 1e20
    elif name == "tiny":
        t *= 1e-25
    elif name == "huge":
        t[1, 3, 4, 5] = 1e30
    else:
        {"channel": t[:, 3], "position": t[..., 4, 5], "image": t[1]}[name].mul_(1e-12)
    return name in ("tiny", "huge", "channel", "position", "image")


@pytest.mark.parametrize(
    "shape, filters",
    [((4, 512, 28, 28), 256), ((16, 256, 28, 28), 128), ((16, 128, 28, 28), 512), ((8, 128, 28, 28), 320)],
)
@pytest.mark.parametrize(
    "name", ["sparse", "zeros", "one", "outlier", "large", "tiny", "huge", "channel", "position", "image"]
)
def test_one_tap_whose_product_finds_out_the_range(name, shape, filters):
    """Of the image in the forward pass, of the gradient of the output in that of the first shape."""
    if device()["kind"] == "software":
        shape, filters = (2, shape[1] // 8, 8, 8), filters // 8
    arguments = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    x, w, g = images(shape, (filters, shape[1], 1, 1), (shape[0], filters, *shape[2:]))
    exact = spoil(x, name)
    check(arguments, x, w, g=g, epsilon=ROUNDED)
    if exact:
        check(arguments, x, w, g=g, epsilon=EXACT, compared=("y", "grad w"))
    x = torch.randn(shape)
    exact = spoil(g, name)
    check(arguments, x, w, g=g, epsilon=ROUNDED)
    if exact:
        check(arguments, x, w, g=g, epsilon=EXACT, compared=("grad x", "grad w"))


def test_one_tap_whose_gradient_lies_otherwise_than_its_input():
    """Then another kernel runs than the layout of the input had promised."""
    count, channels, filters, side = (2, 64, 32, 8) if device()["kind"] == "software" else (8, 512, 256, 28)
    x, w, g = images((count, channels, side, side), (filters, channels, 1, 1), (count, filters, side, side))
    g[1, 3, 4, 5] = 1000
    rest = None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
    want = torch.ops.aten.convolution_backward(g.double(), x.double(), w.double(), *rest)[0]
    last = w.to("mps").as_strided(w.shape, (channels, 1, channels, channels))
    have = torch.ops.aten.convolution_backward(g.to("mps"), x.to("mps"), last, *rest)[0]
    assert have.is_contiguous(memory_format=LAST[2])
    assert (have.cpu() - want).abs().max() <= ROUNDED * want.abs().max()


@pytest.mark.parametrize(
    "name", ["outlier", "channel", "channel_alone", "rows", "image", "filter", "column", "gradient"]
)
def test_wide_ranges_keep_their_bits(name, sizes):
    """Halves would lose what is 1e-12 of the largest element: sums of such terms alone would be 0."""
    x, w, g = images(*sizes, (sizes[0][0], sizes[1][0], *sizes[0][2:]))
    if name == "outlier":
        x[1, 3, 4, 5] = 1e30
    elif name == "channel":
        x[:, 3] *= 1e-12
    elif name == "channel_alone":
        x[:, 3] *= 1e-12
        w[:, torch.arange(w.shape[1]) != 3] = 0
    elif name == "rows":
        x[0, :, :4] *= 1e-12
    elif name == "image":
        x[0] *= 1e-12
    elif name == "filter":
        w[5] *= 1e-12
    elif name == "column":
        w[:, 5] *= 1e-12
    elif name == "gradient":
        g[0] *= 1e-12
    check(PLAIN, x, w, g=g, epsilon=EXACT, compared=("grad x", "grad w") if name == "gradient" else None)


@pytest.mark.parametrize("name", ["channel", "position", "image", "filter", "column", "tap"])
def test_wide_ranges_of_few_positions_keep_their_bits(name):
    """Images and weights that are read in words which belong to several channels."""
    small = device()["kind"] == "software"
    images_, channels, filters = (3, 16, 24) if small else (64, 128, 256)
    x, w = images((images_, channels, 7, 7), (filters, channels, 3, 3))
    part = {"channel": x[:, 3], "position": x[..., 3, 4], "image": x[1], "filter": w[5], "column": w[:, 5]}
    part.get(name, w[..., 1, 1]).mul_(1e-12)
    check(PLAIN, x, w, epsilon=EXACT)


def test_what_is_small_within_the_range_is_rounded_too(sizes):
    """Halves of such a channel are subnormal in part: its block's largest element loses no more than 2^-13 by them."""
    x, w = images(*sizes)
    x[:, 3] *= 2e-7
    w[:, torch.arange(w.shape[1]) != 3] = 0
    check(PLAIN, x, w, epsilon=ROUNDED, compared=("y",))
    assert is_rounded(x, w) == has_halves()


def test_zeros_and_few_numbers_among_them(sizes):
    x, w = images(*sizes)
    check(PLAIN, x * 0, w, epsilon=ROUNDED)
    check(PLAIN, x, w * 0, epsilon=ROUNDED)
    check(PLAIN, x * (torch.rand_like(x) < 0.1), w, epsilon=ROUNDED)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3.4e38, 1e-39])
def test_what_halves_cannot_hold(value, sizes):
    x, w = images(*sizes)
    x[0, 3, 4, 5] = value
    if value < 1:
        x[1, 4] = value
    torch.testing.assert_close(
        F.conv2d(x.to("mps"), w.to("mps")).cpu(), F.conv2d(x, w), rtol=1e-3, atol=1e-3, equal_nan=True
    )


def test_the_gradients_share_a_packed_image(sizes):
    """Where one of the three factors is out of range, both gradients take what holds it."""
    x, w = images(*sizes)
    x[0] *= 1e-12
    arguments = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    g = torch.randn_like(F.conv2d(x, w, padding=1))
    want = torch.ops.aten.convolution_backward(g.double(), x.double(), w.double(), *arguments, [True, True, False])
    for mask in ([True, True, False], [True, False, False], [False, True, False]):
        have = torch.ops.aten.convolution_backward(*(t.to("mps") for t in (g, x, w)), *arguments, mask)
        for i in range(2):
            if mask[i]:
                rounded = has_halves() and not mask[1]  # the gradient of x knows nothing of x
                limit = (ROUNDED if rounded else EXACT) * want[i].abs().max()
                assert (have[i].cpu() - want[i]).abs().max() <= limit
