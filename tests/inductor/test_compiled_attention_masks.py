"""Masks of attention that graphs compute of positions: torch_anymps/inductor/mask_passes.py."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("mps")

SIZE = 24


def causal(x):
    at = torch.arange(x.shape[1], device=x.device)
    return (at[None, :] <= at[:, None])[None, None].expand(len(x), 1, -1, -1)


def packed(x):
    """Causal, and within sequences that begin where positions do not go on, of which there is one."""
    at = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
    sequence = (torch.diff(at, prepend=at[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    return causal(x) & (sequence[:, None, :, None] == sequence[:, None, None, :])


def added(x):
    hidden = torch.full((x.shape[1],) * 2, torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device)
    return torch.triu(hidden, diagonal=1)[None, None]


def window(x):
    at = torch.arange(x.shape[1], device=x.device)
    return causal(x) & (at[:, None] - at[None, :] < 4)


def of_inputs(x):
    return causal(x) & (x[:, None, None, :, 0] < 1e6)


def weak(x):
    return added(x).clamp(min=-1.0)


def nothing_hidden(x):
    return torch.ones(len(x), 1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device)


class Attention(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask, self.qkv, self.out = mask, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(x))
        return self.out(y.transpose(1, 2).flatten(2))


def flags(codes, backward):
    """(whether there is a mask, is_causal) of each call of attention in generated modules."""
    name = "_scaled_dot_product_fused_attention_overrideable" + ("_backward" if backward else "") + ".default("
    found = []
    for code in codes:
        for line in code.splitlines():
            if name in line:
                found.append((line.count("None") < (3 if backward else 1), bool(re.search(r", True, |, True\)", line))))
    return found


KINDS = [
    (causal, (False, True)),
    (packed, (False, True)),
    (added, (False, True)),
    (nothing_hidden, (False, False)),
    (window, (True, False)),
    (of_inputs, (True, False)),
    (weak, (True, False)),
]


@pytest.mark.parametrize("mask, expected", KINDS, ids=lambda v: getattr(v, "__name__", ""))
def test_inference(mask, expected):
    model, x = Attention(mask), torch.randn(3, SIZE, 32)
    with torch.no_grad(), fresh_cache():
        result, codes = run_and_get_code(torch.compile(copy.deepcopy(model).to("mps"), fullgraph=True), x.to("mps"))
        assert_close(result.cpu(), model(x), rtol=1e-4, atol=1e-4)
    assert flags(codes, backward=False) == [expected]


@pytest.mark.parametrize("mask", [causal, packed, added, nothing_hidden, window, of_inputs, weak])
def test_training(mask):
    model, x = Attention(mask), torch.randn(3, SIZE, 32)
    ours = copy.deepcopy(model).to("mps")
    with fresh_cache():
        torch.compile(ours, fullgraph=True)(x.to("mps")).square().sum().backward()
    model(x).square().sum().backward()
    for got, want in zip(ours.parameters(), model.parameters(), strict=True):
        assert_close(got.grad.cpu(), want.grad, rtol=1e-3, atol=1e-3)


def test_sizes_that_are_not_known_keep_their_mask():
    model, x = Attention(causal), torch.randn(3, SIZE, 32)
    torch._dynamo.mark_dynamic(device_x := x.to("mps"), 1)
    with torch.no_grad(), fresh_cache():
        compiled = torch.compile(copy.deepcopy(model).to("mps"), fullgraph=True)
        result, codes = run_and_get_code(compiled, device_x)
        assert_close(result.cpu(), model(x), rtol=1e-4, atol=1e-4)
        assert_close(compiled(device_x[:, :9]).cpu(), model(x[:, :9]), rtol=1e-4, atol=1e-4)
    assert flags(codes, backward=False) == [(True, False)]
