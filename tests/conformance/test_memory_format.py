"""Strides of results and of gradients beside the CPU's: channels-last inputs, transposed and sliced ones."""

import pytest
import torch
import torch.nn.functional as F

LINE, IMAGE, VOLUME = (2, 8, 4), (2, 8, 4, 4), (2, 8, 4, 4, 4)
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(
        memory_format={4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    ),
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "sliced": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "reversed": lambda x: x.permute(*range(x.dim())[::-1]).contiguous().permute(*range(x.dim())[::-1]),
}


def unpool(spatial):
    pool, inverse = getattr(F, f"max_pool{spatial}d"), getattr(F, f"max_unpool{spatial}d")

    def call(x):
        with torch.no_grad():
            _, indices = pool(x, 2, return_indices=True)
        return inverse(x[(..., *(slice(2),) * spatial)], indices, 2)

    return call


CASES = {
    "group_norm": (lambda x: F.group_norm(x, 2), LINE, IMAGE, VOLUME),
    "group_norm of weights": (lambda x: F.group_norm(x, 2, x.new_ones(8), x.new_ones(8)), IMAGE, VOLUME),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), LINE, IMAGE, VOLUME),
    "instance_norm": (F.instance_norm, IMAGE, VOLUME),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), LINE, IMAGE),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), IMAGE, (8, 4, 4)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), IMAGE, (8, 4, 4)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), IMAGE),
    "max_unpool2d": (unpool(2), IMAGE, (8, 4, 4)),
    "max_unpool3d": (unpool(3), VOLUME),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2, return_indices=True)[1], IMAGE),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), VOLUME),
    "max_pool3d of one": (lambda x: F.max_pool3d(x[0], 2, return_indices=True)[1], VOLUME),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), IMAGE),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), VOLUME),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 3), IMAGE),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 3), VOLUME),
    "dropout": (lambda x: F.dropout(x, 0.5), (3, 5), LINE, IMAGE, VOLUME),
    "dropout of all": (lambda x: F.dropout(x, 1.0), IMAGE),
    "dropout2d": (lambda x: F.dropout2d(x, 0.5), IMAGE),
    "alpha_dropout": (lambda x: F.alpha_dropout(x, 0.5, training=True), IMAGE),
    "rrelu": (lambda x: F.rrelu(x, training=True), IMAGE),
    "bernoulli": (lambda x: torch.bernoulli(x.detach().sigmoid()), IMAGE),
    "pad constant": (lambda x: F.pad(x, (1, 1) * 2), IMAGE),
    "pad constant 3d": (lambda x: F.pad(x, (1, 1) * 3), VOLUME),
    "conv2d": (lambda x: F.conv2d(x, x.new_ones(4, 8, 2, 2)), IMAGE),
    "conv3d": (lambda x: F.conv3d(x, x.new_ones(4, 8, 2, 2, 2)), VOLUME),
    "softmax": (lambda x: x.softmax(1), LINE, IMAGE),
    "cumsum": (lambda x: x.cumsum(1), IMAGE),
    "sort": (lambda x: x.sort(1).values, IMAGE),
    "cat": (lambda x: torch.cat([x, x], 1), IMAGE, VOLUME),
    "where": (lambda x: torch.where(x > 0, x, 0), IMAGE),
    "glu": (lambda x: F.glu(x, 1), IMAGE),
    "sum": (lambda x: x.sum(1, keepdim=True), IMAGE),
    "gather": (lambda x: x.gather(1, x.argsort(1)), IMAGE),
    "index_select": (lambda x: x.index_select(1, torch.tensor([0, 1], device=x.device)), IMAGE),
    "index": (lambda x: x[:, [0, 1]], IMAGE),
    "flip": (lambda x: x.flip(1), IMAGE),
    "half": (lambda x: x.half(), IMAGE),
}
for mode in ("reflect", "replicate"):
    CASES[f"pad {mode} 1d"] = (lambda x, mode=mode: F.pad(x, (1, 1), mode=mode), LINE)
    CASES[f"pad {mode} 2d"] = (lambda x, mode=mode: F.pad(x, (1, 1) * 2, mode=mode), IMAGE, LINE)
    CASES[f"pad {mode} 3d"] = (lambda x, mode=mode: F.pad(x, (1, 1) * 3, mode=mode), VOLUME, IMAGE)
for mode in ("nearest", "bilinear", "bicubic"):
    CASES[f"interpolate {mode}"] = (lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode), IMAGE)
RANDOM = {"dropout", "dropout2d", "alpha_dropout", "rrelu", "bernoulli"}


# PyTorch's formula hands both tensors to the kernel contiguous where they are not the CPU's.
CONTIGUOUS_GRADIENTS = {"group_norm", "group_norm of weights"}


def results(function, x):
    x = x.detach().requires_grad_()
    out = function(x)
    if not out.requires_grad:
        return [out]
    return [out, *torch.autograd.grad(out, x, torch.ones_like(out))]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_strides_are_those_of_the_cpu(name, layout):
    function, *shapes = CASES[name]
    for shape in shapes:
        x = LAYOUTS[layout](torch.randn(shape))
        there = torch.empty_strided(x.shape, x.stride(), device="mps").copy_(x)
        pairs = list(zip(results(function, there), results(function, x), strict=True))
        for got, wanted in pairs:
            assert got.shape == wanted.shape
            assert got.stride() == wanted.stride() or (got is not pairs[0][0] and name in CONTIGUOUS_GRADIENTS)
            if name not in RANDOM:
                # 1e-4: a GPU's convolutions may take float32 numbers by fewer bits (docs/numerics.md)
                torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)
