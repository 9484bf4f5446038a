"""scaled_dot_product_attention against the mathematics in float64 on the CPU."""

import itertools

import pytest
import torch
import torch.nn.functional as F

TOLERANCE = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def reference(q, k, v, mask=None, causal=False, scale=None, gqa=False):
    """Attention by its definition, in float64; a row without any key gives zeros."""
    if gqa:
        k, v = (t.repeat_interleave(q.size(-3) // t.size(-3), -3) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale if scale is not None else q.size(-1) ** -0.5)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return torch.nan_to_num(torch.softmax(scores, -1)) @ v


def compare(shapes, dtype=torch.float32, mask=None, **options):
    inputs = [torch.randn(s, dtype=dtype) for s in shapes]
    leaves = [t.double().requires_grad_() for t in inputs]
    ours = [t.to("mps").requires_grad_() for t in inputs]
    gqa = options.get("enable_gqa", False)
    wanted = reference(
        *leaves,
        mask=mask.double() if mask is not None and mask.is_floating_point() else mask,
        causal=options.get("is_causal", False),
        scale=options.get("scale"),
        gqa=gqa,
    )
    got = F.scaled_dot_product_attention(*ours, attn_mask=None if mask is None else mask.to("mps"), **options)
    grad = torch.randn(wanted.shape, dtype=dtype)
    wanted.backward(grad.double())
    got.backward(grad.to("mps"))
    assert got.dtype == dtype and got.shape == wanted.shape
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got.cpu().double(), wanted.detach(), rtol=tolerance, atol=tolerance)
    for a, b in zip(ours, leaves):
        torch.testing.assert_close(a.grad.cpu().double(), b.grad, rtol=4 * tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_backward(dtype, causal):
    for size, (length, keys) in itertools.product((8, 33, 128), ((1, 1), (7, 7), (33, 40))):
        compare([(2, 3, length, size), (2, 3, keys, size), (2, 3, keys, size)], dtype, is_causal=causal)


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_masks(enable_gqa):
    heads = 2 if enable_gqa else 4
    shapes = [(2, 4, 9, 16), (2, heads, 11, 16), (2, heads, 11, 24)]
    for mask_shape in ((9, 11), (2, 1, 1, 11), (1, 4, 9, 11), (2, 4, 9, 11)):
        keep = torch.rand(mask_shape) > 0.4
        compare(shapes, mask=keep, enable_gqa=enable_gqa)
        compare(shapes, mask=torch.randn(mask_shape), enable_gqa=enable_gqa, scale=0.3)


def test_rows_without_a_key_are_zero():
    keep = torch.rand(5, 6) > 0.5
    keep[2] = False
    compare([(1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8)], mask=keep)


def test_gradient_of_the_mask():
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    mask = torch.randn(1, 3, 5, 5)
    wanted, got = mask.double().requires_grad_(), mask.to("mps").requires_grad_()
    reference(q.double(), k.double(), v.double(), wanted).sin().sum().backward()
    F.scaled_dot_product_attention(q.to("mps"), k.to("mps"), v.to("mps"), got).sin().sum().backward()
    torch.testing.assert_close(got.grad.cpu().double(), wanted.grad, rtol=1e-4, atol=1e-5)


def test_layouts_of_transformers():
    """[batch, length, heads, size] transposed, and slices with an offset."""
    packed = torch.randn(2, 7, 3, 4, 16)
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    ours = packed.to("mps")
    a, b, c = (ours[:, :, i].transpose(1, 2) for i in range(3))
    got = F.scaled_dot_product_attention(a, b, c)
    torch.testing.assert_close(got.cpu(), F.scaled_dot_product_attention(q, k, v), rtol=2e-5, atol=2e-5)


def test_fewer_and_more_dimensions():
    compare([(6, 8), (5, 8), (5, 8)])
    compare([(3, 6, 8), (3, 5, 8), (3, 5, 8)])
    compare([(2, 2, 3, 6, 8), (2, 2, 3, 5, 8), (2, 2, 3, 5, 8)])
    compare([(2, 3, 6, 8), (1, 3, 5, 8), (1, 1, 5, 8)])


def test_dropout_keeps_the_expectation_and_its_backward_the_same_mask():
    v = torch.randn(1, 1, 64, 64).to("mps").requires_grad_()
    q = torch.zeros(1, 1, 4096, 64, device="mps")
    got = F.scaled_dot_product_attention(q, q[:, :, :64], v, dropout_p=0.25)
    mean = got.mean(2).cpu()
    torch.testing.assert_close(mean, v.detach().mean(2).cpu(), rtol=0, atol=0.02)
    # With out = P v, the sum of out * g is linear in v: its gradient times v gives it back.
    grad = torch.randn(got.shape).to("mps")
    (dv,) = torch.autograd.grad(got, v, grad)
    torch.testing.assert_close((dv * v).sum().cpu(), (got * grad).sum().cpu(), rtol=1e-3, atol=1e-2)


def test_multi_head_attention_and_checkpointing():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(3, 10, 32)
    wanted = layer(x)
    ours = layer.to("mps")
    got = torch.utils.checkpoint.checkpoint(ours, x.to("mps"), use_reentrant=False)
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)
    got.sum().backward()


def test_errors():
    q = torch.randn(1, 2, 4, 8, device="mps")
    with pytest.raises(RuntimeError, match="same dtype"):
        F.scaled_dot_product_attention(q, q.half(), q)
    with pytest.raises(RuntimeError, match="should not be set when is_causal"):
        F.scaled_dot_product_attention(q, q, q, torch.zeros(4, 4, device="mps"), is_causal=True)
