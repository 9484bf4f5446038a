"""Flex attention in compiled graphs: its score and mask functions become part of generated kernels."""

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
