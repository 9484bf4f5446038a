"""Interpolation and padding: layouts, types, factors and edges that op_db's samples leave out."""

import itertools

import pytest
import torch
import torch.nn.functional as F

SIZES = [((1,), (7,)), ((5,), (5,)), ((6,), (12,)), ((9,), (4,)), ((40,), (3,)), ((3,), (40,))]
MODES = [
    ("nearest", (1, 2, 3), {}),
    ("nearest-exact", (1, 2, 3), {}),
    ("linear", (1, 2, 3), {"align_corners": False}),
    ("linear", (1, 2, 3), {"align_corners": True}),
    ("bicubic", (2,), {"align_corners": False}),
    ("bicubic", (2,), {"align_corners": True}),
    ("linear", (2,), {"antialias": True, "align_corners": False}),
    ("bicubic", (2,), {"antialias": True}),
    ("lanczos", (2,), {"antialias": True}),
]
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


def both(function, x):
    """Result and gradient of a function on the CPU and on the device, on the CPU."""
    results = []
    for device in ("cpu", "mps"):
        leaf = x.to(device).detach().requires_grad_()
        out = function(leaf)
        weights = torch.arange(out.numel(), dtype=torch.float32).remainder(13).view(out.shape).to(device, out.dtype)
        (gradient,) = torch.autograd.grad(out, leaf, weights)
        results.append((out.detach().cpu(), gradient.cpu()))
    return zip(*results)


@pytest.mark.parametrize(("mode", "dims", "options"), MODES)
def test_interpolation_of_any_sizes(mode, dims, options, mps):
    for n, ((before,), (after,)) in itertools.product(dims, SIZES):
        if n == 3 and before * after > 60:
            continue
        x = torch.randn(2, 3, *(before + k for k in range(n)))
        name = LINEAR[n] if mode == "linear" else mode
        size = [after + 2 * k for k in range(n)]
        for expected, actual in both(
            lambda t, size=size, name=name: F.interpolate(t, size=size, mode=name, **options), x
        ):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("factor", [(1.7, 0.6), (3.0, 3.0), (0.31, 2.0)])
def test_scale_factors(mode, recompute, factor, mps):
    x = torch.randn(1, 2, 11, 8)
    for expected, actual in both(
        lambda t: F.interpolate(t, scale_factor=factor, mode=mode, recompute_scale_factor=recompute), x
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_and_channels_last(mode, dtype, mps):
    x = torch.randn(2, 5, 6, 7).to(dtype).contiguous(memory_format=torch.channels_last)
    out = F.interpolate(x.to(mps), scale_factor=2, mode=mode)
    assert out.is_contiguous(memory_format=torch.channels_last)
    expected = F.interpolate(x.float(), scale_factor=2, mode=mode)
    torch.testing.assert_close(out.cpu().float(), expected, rtol=1e-2, atol=2e-2)


def test_images_of_bytes(mps):
    """Rounded once: the CPU rounds between its passes, and clips overshoots there too."""
    x = torch.randint(0, 256, (1, 3, 9, 9), dtype=torch.uint8)
    for mode in ("nearest", "bilinear", "bicubic"):
        expected = F.interpolate(x.float(), size=(20, 13), mode=mode).round().clamp(0, 255)
        actual = F.interpolate(x.to(mps), size=(20, 13), mode=mode).cpu()
        assert ((actual.float() - expected).abs() <= (0 if mode == "nearest" else 1)).all()


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 7), (2, 3, 7), (2, 3, 5, 7), (2, 2, 5, 6, 7)])
def test_padding_of_views(mode, dtype, shape, mps):
    base = torch.randn(*shape[:-1], shape[-1] * 2).to(dtype)
    dims = min(3, max(1, len(shape) - 2))
    padding = [2, 3, 1, 4, 0, 2][: 2 * dims]
    weights = torch.arange(17).to(torch.float32)

    def run(device):
        leaf = base.to(device).detach().requires_grad_()
        view = leaf[..., 1::2]
        out = F.pad(view.transpose(0, 1) if len(shape) > 3 else view, padding, mode=mode)
        scale = weights.to(device)[torch.arange(out.numel(), device=device).remainder(17)].view(out.shape).to(dtype)
        return out.detach().cpu(), torch.autograd.grad(out, leaf, scale)[0].cpu()

    tolerance = (2e-2, 1e-1) if dtype == torch.bfloat16 else (1e-5, 1e-5)
    for actual, expected in zip(run("mps"), run("cpu")):
        torch.testing.assert_close(actual, expected, rtol=tolerance[0], atol=tolerance[1])


@pytest.mark.parametrize(
    "case",
    [
        lambda d: F.pad(torch.ones(1, 2, 3, device=d), (3, 0), mode="reflect"),
        lambda d: F.pad(torch.ones(1, 2, 3, 3, device=d), (3, 0, 0, 0), mode="reflect"),
        lambda d: F.pad(torch.ones(1, 2, 3, 3, device=d), (0, 0, 4, 0), mode="reflect"),
        lambda d: F.pad(torch.ones(1, 0, 3, 3, device=d), (1, 0, 1, 0), mode="reflect"),
        lambda d: torch.ops.aten.replication_pad2d_backward(
            torch.ones(1, 1, 5, 6, device=d), torch.ones(1, 1, 3, 3, device=d), (1, 1, 1, 1)
        ),
        lambda d: F.pad(torch.ones(1, 2, 3, 3, device=d, dtype=torch.bool), (1, 1, 1, 1), mode="reflect"),
        lambda d: F.interpolate(torch.ones(1, 0, 3, 3, device=d), size=(4, 4), mode="bilinear"),
        lambda d: F.interpolate(torch.ones(1, 1, 3, 3, device=d), size=(0, 4), mode="bicubic"),
    ],
)
def test_wrong_arguments_raise_what_the_cpu_raises(case, mps):
    with pytest.raises(Exception) as expected:
        case("cpu")
    with pytest.raises(type(expected.value)) as actual:
        case("mps")
    words = str(expected.value).split("\n")[0].replace("gradOutput", "grad_output")  # as from PyTorch 2.15 on
    assert str(actual.value).split("\n")[0] == words
