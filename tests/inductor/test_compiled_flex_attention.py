"""Flex attention: in compiled graphs its score and mask functions become part of generated kernels; gradients."""

import pytest
import torch
from compiled import kernel_count
from torch._inductor.utils import run_and_get_code
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.testing import assert_close


def agrees(attend, *arguments, tolerance=2e-3):
    torch._dynamo.reset()
    with torch.no_grad():
        expected = attend(*arguments)
        compiled = torch.compile(attend, fullgraph=True)
        actual, codes = run_and_get_code(compiled, *(t.to("mps") for t in arguments))
    assert kernel_count(codes) > 0
    assert_close(actual.cpu(), expected, rtol=tolerance, atol=tolerance)
    return codes


def heads(*sizes, dtype=torch.float32):
    return (torch.randn(sizes, dtype=dtype) for _ in range(3))


def test_scores_with_a_captured_bias(mps):
    def attend(q, k, v, bias):
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h, i - j + 32])

    agrees(attend, *heads(2, 3, 32, 16), torch.randn(3, 64))


def test_causal_block_mask_and_shared_heads(mps):
    q, k, v = torch.randn(1, 4, 130, 16), torch.randn(1, 2, 130, 16), torch.randn(1, 2, 130, 8)

    def attend(q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 130, 130, device=q.device.type)
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    agrees(attend, q, k, v)


def test_half_precision_between_other_operators(mps):
    def attend(q, k, v):
        y = flex_attention(q.sin(), k, v, score_mod=lambda score, b, h, i, j: 30 * torch.tanh(score / 30), scale=0.5)
        return y.transpose(1, 2).flatten(2) + 1

    agrees(attend, *heads(1, 2, 48, 16, dtype=torch.float16), tolerance=1e-2)


def written_out(q, k, v, bias, mask):
    """The definition, as plain operators; rows whose mask is empty are 0."""
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    scores = 5 * torch.tanh((q @ k.mT / q.shape[-1] ** 0.5 + bias[:, i - j + len(j)]) / 5)
    scores = scores.masked_fill(~mask, -torch.inf)
    seen = mask.any(-1, keepdim=True)
    return scores.where(seen, 0).softmax(-1).where(seen, 0) @ v, scores.logsumexp(-1)[..., mask.any(-1)]


@pytest.mark.parametrize(("compiled", "dynamic"), [(True, False), (True, True), (False, False)])
def test_gradients(mps, compiled, dynamic):
    """Of queries, shared keys and values, a captured bias, through outputs and log-sums, with rows that see nothing."""
    for n in (48, 67) if dynamic else (48,):
        tensors = torch.randn(2, 4, n, 16), torch.randn(2, 2, n, 16), torch.randn(2, 2, n, 8), torch.randn(4, 2 * n + 1)
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        mask[0] = mask[7] = False

        def attend(q, k, v, bias):
            n = q.shape[2]
            seen = create_block_mask(lambda b, h, i, j: (i >= j) & (i != 0) & (i != 7), None, None, n, n, q.device)
            bent = lambda score, b, h, i, j: 5 * torch.tanh((score + bias[h, i - j + n]) / 5)  # noqa: E731
            out, sums = flex_attention(q, k, v, score_mod=bent, block_mask=seen, enable_gqa=True, return_lse=True)
            return out, sums[:, :, (torch.arange(n, device=q.device) != 0) & (torch.arange(n, device=q.device) != 7)]

        expected_of, actual_of = ([t.clone().to(d).requires_grad_() for t in tensors] for d in ("cpu", mps))
        expected = written_out(*expected_of, mask)
        actual = (torch.compile(attend, dynamic=dynamic) if compiled else attend)(*actual_of)
        weights = [torch.randn_like(t) for t in expected]
        torch.autograd.backward(expected, weights)
        torch.autograd.backward(actual, [t.to(mps) for t in weights])
        for got, wanted in zip(
            (*actual, *(t.grad for t in actual_of)), (*expected, *(t.grad for t in expected_of)), strict=True
        ):
            assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
def test_autocast_casts_the_arguments(mps, compiled):
    q, k, v = (torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3))

    def attend(q, k, v):
        return flex_attention(q, k.bfloat16(), v)

    with torch.autocast("mps", torch.bfloat16):
        y = (torch.compile(attend) if compiled else attend)(*(t.to(mps) for t in (q, k, v)))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert_close(y.cpu().float(), expected, rtol=2e-2, atol=2e-2)
    assert_close(v.grad, torch.autograd.grad(expected.sum(), v)[0], rtol=2e-2, atol=2e-2)
