"""Compiled functions that are called within autocast: their operators go through it once, when they are traced."""

import pytest
import torch
import torch._functorch.config
from torch import nn
from torch._higher_order_ops.scan import scan
from torch.utils.checkpoint import checkpoint

import torch_anymps

CONVOLUTIONS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def agrees(function, *inputs, training=True, rtol=1e-5):
    """In dtypes and numbers, gradients included, with what eager code gives within bfloat16 autocast."""
    results = []
    for call in (torch.compile(function), function):
        leaves = [x.detach().clone().requires_grad_(training) for x in inputs]
        with torch.autocast("mps", torch.bfloat16):
            out = call(*leaves)
        gradients = torch.autograd.grad(out.float().square().sum(), leaves) if training else ()
        results.append((out.detach(), *gradients))
    for got, expected in zip(*results, strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=rtol if got.dtype == torch.float32 else 2e-2, atol=1e-4)


@torch._functorch.config.patch(backward_pass_autocast="off")  # the default has it as around the call
@pytest.mark.parametrize("training", [False, True])
def test_a_region_without_autocast(mps, training):
    def function(a, b):
        with torch.autocast("mps", enabled=False):
            return a @ b

    agrees(function, torch.randn(33, 48, device=mps), torch.randn(48, 20, device=mps), training=training)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dims", CONVOLUTIONS)
def test_transposed_convolutions(mps, dims, training):
    """Those of volumes stay float32 under autocast of mps."""
    net = CONVOLUTIONS[dims](16, 8, 2, 2).to(mps)
    agrees(net, torch.randn(2, 16, *(5,) * dims, device=mps), training=training)


def test_the_patch_can_be_undone(mps):
    patch = torch_anymps.patches._PATCHES["torch_autocast"]
    with torch.autocast("mps", torch.bfloat16):
        assert torch._C._is_any_autocast_enabled()
    assert not torch._C._is_any_autocast_enabled()
    assert patch.in_force


HIGHER_ORDER = {
    "cond": lambda a, b: torch.cond(a.sum() > 0, lambda a, b: (a @ b) * 2, lambda a, b: -(a @ b), (a, b)),
    "checkpoint": lambda a, b: checkpoint(lambda a, b: (a @ b) * 2, a, b, use_reentrant=False),
    "subgraph": torch.compiler.nested_compile_region(lambda a, b: (a @ b) * 2),
}


@pytest.mark.parametrize("name", HIGHER_ORDER)
def test_higher_order_operators(mps, name):
    """They hand autocast on, with gradients."""
    # Positive terms, as compiled gradients of weights are not rounded to bfloat16 and eager ones are: by 2 ** -8.
    agrees(HIGHER_ORDER[name], torch.rand(33, 48, device=mps), torch.rand(48, 20, device=mps), rtol=1e-2)


def test_scan(mps):
    a, b = torch.randn(33, 48, device=mps), torch.randn(48, 20, device=mps)
    with torch.autocast("mps", torch.bfloat16):
        last, _ = scan(lambda carry, row: (carry + row @ b, row.clone()), torch.zeros(20, device=mps), a)
    torch.testing.assert_close(last, a.sum(0) @ b, rtol=5e-2, atol=0.3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_a_program_widens_is_rounded_first(mps, dtype):
    a, b = (torch.randn(64, 64, device=mps, dtype=dtype) for _ in range(2))
    assert torch.equal(torch.compile(lambda a, b: (a @ b).float())(a, b), (a @ b).float())
