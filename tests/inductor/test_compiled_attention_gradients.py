"""Gradients of attention that are written into one tensor: torch_anymps/inductor/attention_passes.py."""

import pytest
import torch
import torch.nn.functional as F
from compare import PROJECTED_ATTENTION_GRADIENT
from compiled import calls, compiled_agrees
from torch._dynamo.utils import counters

pytestmark = pytest.mark.usefixtures("mps")

JOINED = "anymps.attention_backward_in_one.default("
APART = "_scaled_dot_product_fused_attention_overrideable_backward.default("


def attention(x, weight, heads=4, kv_heads=4, order="qkv", **options):
    """Attention of one projection to query, key and value, in this order."""
    size = weight.size(0) // (heads + 2 * kv_heads)
    counts = [heads if name == "q" else kv_heads for name in order]
    parts = F.linear(x, weight).split([count * size for count in counts], -1)
    shaped = {name: part.unflatten(-1, (-1, size)).transpose(1, 2) for name, part in zip(order, parts)}
    out = F.scaled_dot_product_attention(shaped["q"], shaped["k"], shaped["v"], **options)
    return out.transpose(1, 2).flatten(2)


def inputs(rows=24, heads=4, kv_heads=4, size=8, dtype=torch.float32, batch=2):
    torch.manual_seed(0)
    x = torch.randn(batch, rows, 32).to(dtype)
    weight = (torch.randn((heads + 2 * kv_heads) * size, 32) / 6).to(dtype)
    return x.requires_grad_(), weight.requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_a_projection_to_all_three_gets_its_gradient_as_one(dtype, causal):
    def run(x, weight):
        return attention(x, weight, is_causal=causal)

    tolerance = PROJECTED_ATTENTION_GRADIENT[dtype]
    codes = compiled_agrees(run, *inputs(dtype=dtype), backward=True, tolerance=tolerance)
    assert calls(codes, JOINED) == 1 and calls(codes, APART) == 0
    assert calls(codes, "fused_cat") == 0


@pytest.mark.parametrize("flat", [False, True])
def test_a_projection_that_is_unbound(flat):
    """As timm's vision transformers have it."""

    def run(x, weight):
        parts = F.linear(x.flatten(0, 1), weight) if flat else F.linear(x, weight)
        q, k, v = parts.reshape(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    codes = compiled_agrees(run, *inputs(), backward=True, tolerance=2e-4)
    assert calls(codes, JOINED) == 1 and calls(codes, APART) == 0
    assert calls(codes, "fused_cat") == calls(codes, "fused_clone") == 0


@pytest.mark.parametrize("rows, size", [(1, 8), (33, 16), (65, 5)])
def test_odd_sizes(rows, size):
    codes = compiled_agrees(attention, *inputs(rows, size=size), backward=True, tolerance=5e-4)
    assert calls(codes, JOINED) == 1


def test_fewer_heads_of_keys():
    def run(x, weight):
        return attention(x, weight, 4, 2, enable_gqa=True)

    compiled_agrees(run, *inputs(kv_heads=2), backward=True, tolerance=2e-4)


def test_sizes_that_are_not_known():
    codes = compiled_agrees(attention, *inputs(), backward=True, dynamic=True, tolerance=2e-4)
    assert calls(codes, JOINED) == 1
    torch._dynamo.reset()
    counters.clear()
    run = torch.compile(attention, dynamic=True, fullgraph=True)
    for batch in (4, 3, 7):
        run(*(t.to("mps") for t in inputs(batch=batch))).sum().backward()
    assert counters["stats"]["unique_graphs"] == 1


def test_a_mask_without_a_gradient():
    mask = torch.randn(24, 24)

    def run(x, weight):
        return attention(x, weight, attn_mask=mask.to(x.device))

    codes = compiled_agrees(run, *inputs(), backward=True, tolerance=2e-4)
    assert calls(codes, JOINED) == 1


def test_dropout_is_that_of_the_forward_pass():
    def run(x, weight):
        return attention(x, weight, dropout_p=0.5)

    x, weight = (t.detach().to("mps") for t in inputs(rows=16))
    results = []
    for compiled in (False, True):
        torch._dynamo.reset()
        leaf = weight.clone().requires_grad_()
        torch.manual_seed(3)
        (torch.compile(run, fullgraph=True) if compiled else run)(x, leaf).square().sum().backward()
        results.append(leaf.grad.cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("order", ["kqv", "vkq"])
def test_another_order_is_concatenated(order):
    def run(x, weight):
        return attention(x, weight, order=order)

    codes = compiled_agrees(run, *inputs(), backward=True, tolerance=2e-4)
    assert calls(codes, JOINED) == 0 and calls(codes, APART) == 1


def test_a_gradient_that_another_reads_is_concatenated():
    def run(x, weight):
        size = weight.size(0) // 3
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in F.linear(x, weight).split(size, -1))
        return F.scaled_dot_product_attention(q, k + q, v)

    codes = compiled_agrees(run, *inputs(), backward=True, tolerance=2e-4)
    assert calls(codes, JOINED) == 0


def test_rows_of_queries_and_keys_that_differ_are_refused():
    q, k = torch.randn(1, 2, 4, 8, device="mps"), torch.randn(1, 2, 5, 8, device="mps")
    lse, seed = torch.zeros(1, 2, 4, device="mps"), torch.tensor(0)
    with pytest.raises(RuntimeError, match="of as many rows"):
        torch.ops.anymps.attention_backward_in_one(q, q, k, k, None, q, lse, 0.0, False, seed, seed)
