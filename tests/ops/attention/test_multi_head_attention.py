"""PyTorch's operators for whole layers of attention, which torch.nn calls in inference, beside the CPU."""

import itertools

import pytest
import torch
from both_devices import agree, layouts
from compare import ATTENTION_LAYER as TOLERANCE

pytestmark = pytest.mark.usefixtures("no_fallback")
BATCH, LENGTH, HEADS, EMBED = 3, 7, 4, 24


def parameters(dtype=torch.float32, embed=EMBED):
    shapes = [(3 * embed, embed), (3 * embed,), (embed, embed), (embed,)]
    return [(torch.randn(shape) * 0.3).to(dtype) for shape in shapes]


def random_mask(*shape):
    """Leaves out some keys, and no query without any."""
    mask = torch.rand(shape) < 0.4
    mask[..., 0] = False
    return mask


MASKS = {
    "none": (None, None),
    "keys and queries": (random_mask(LENGTH, LENGTH), 0),
    "padding": (random_mask(BATCH, LENGTH), 1),
    "of every score": (random_mask(BATCH, HEADS, LENGTH, LENGTH), 2),
    "of every score, another type": (random_mask(BATCH, HEADS, LENGTH, LENGTH), None),
    "expanded": (random_mask(BATCH, 1, 1, LENGTH).expand(BATCH, HEADS, LENGTH, LENGTH), 2),
    "floats": (torch.full((LENGTH, LENGTH), -torch.inf).triu(1), 0),
    "a row of no key": (torch.arange(BATCH)[:, None].expand(BATCH, LENGTH) == 1, 1),
}


def attend(q, k, v, parameters, mask, mask_type, need_weights=True, average=True, embed=EMBED, heads=HEADS):
    out, weights = torch._native_multi_head_attention(
        q, k, v, embed, heads, *parameters, mask, need_weights, average, mask_type
    )
    return (out,) if weights is None else (out, weights)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_self_attention(name, dtype):
    mask, mask_type = MASKS[name]
    q = torch.randn(BATCH, LENGTH, EMBED).to(dtype)
    for weights, average in ((False, True), (True, True), (True, False)):
        agree(
            lambda q, *rest: attend(q, q, q, *rest),
            q, parameters(dtype), mask, mask_type, weights, average, tolerance=TOLERANCE[dtype], backward=False,
        )  # fmt: skip


@pytest.mark.parametrize("need_weights", [True, False])
def test_other_keys_and_values_and_strides(need_weights):
    shape = (BATCH, LENGTH, EMBED)
    for q, k, v in zip(layouts(shape), layouts(shape), layouts(shape)):
        given = parameters()
        agree(lambda q, k, v, p: attend(q, k, v, p, None, None, need_weights), q, k, v, given, backward=False)
        agree(lambda q, k, p: attend(q, k, k, p, None, None, need_weights), q, k, given, backward=False)
        agree(lambda q, k, p: attend(q, q, k, p, None, None, need_weights), q, k, given, backward=False)


def test_nothing_to_attend_to():
    for shape in ((0, LENGTH, EMBED), (BATCH, 0, EMBED)):
        agree(lambda q, p: attend(q, q, q, p, None, None), torch.randn(shape), parameters(), backward=False)


def test_no_derivative(raises_as_on_the_cpu):
    p = parameters()

    def backward(ones):
        q = ones(1, 2, EMBED).requires_grad_()
        attend(q, q, q, [t.to(q.device) for t in p], None, None)[0].sum().backward()

    raises_as_on_the_cpu(backward)


@pytest.mark.parametrize(
    "shape, mask, mask_type, heads, dtype",
    [
        ((2, EMBED), None, None, 4, None),
        ((2, 3, EMBED + 1), None, None, 4, None),
        ((2, 3, EMBED), None, None, 5, None),
        ((2, 3, EMBED), (3, 3), None, 4, None),
        ((2, 3, EMBED), (3, 3), 3, 4, None),
        ((2, 3, EMBED), (2, 3), 0, 4, None),
        ((2, 3, EMBED), (3, 3), 1, 4, None),
        ((2, 3, EMBED), (2, 1, 3, 3), 2, 4, None),
        ((2, 3, EMBED), None, None, 4, torch.int32),
        ((2, 3, EMBED), None, None, 4, torch.complex64),
    ],
)
@pytest.mark.parametrize("need_weights", [True, False])
def test_errors(shape, mask, mask_type, heads, dtype, need_weights, raises_as_on_the_cpu):
    def case(ones):
        q, p = ones(*shape).to(dtype), [ones(*t.shape).to(dtype) for t in parameters()]
        attend(q, q, q, p, None if mask is None else ones(*mask) == 0, mask_type, need_weights, heads=heads)

    raises_as_on_the_cpu(case)


def test_errors_of_other_shapes(raises_as_on_the_cpu):
    def case(ones, key=(2, 3, 8), weight=(24, 8), bias=(24,)):
        torch._native_multi_head_attention(
            ones(2, 3, 8), ones(*key), ones(*key), 8, 2, ones(*weight), ones(*bias), ones(8, 8), ones(8)
        )

    for wrong in ({"key": (2, 4, 8)}, {"key": (2, 8)}, {"weight": (24,)}, {"weight": (16, 8)}, {"weight": (24, 9)},
                  {"bias": (24, 1)}, {"bias": (8,)}):  # fmt: skip
        raises_as_on_the_cpu(lambda ones, wrong=wrong: case(ones, **wrong))


def test_the_bias_and_scale_of_heads(raises_as_on_the_cpu):
    for qkv in layouts((BATCH, LENGTH, 3 * EMBED)):
        agree(
            lambda qkv, bias: torch._transform_bias_rescale_qkv(qkv, bias, HEADS),
            qkv, torch.randn(6 * EMBED)[::2], backward=False,
        )  # fmt: skip
    raises_as_on_the_cpu(lambda ones: torch._transform_bias_rescale_qkv(ones(2, 3, 24), ones(24), 5))
    raises_as_on_the_cpu(lambda ones: torch._transform_bias_rescale_qkv(ones(2, 3, 25), ones(24), 2))
    raises_as_on_the_cpu(lambda ones: torch._transform_bias_rescale_qkv(ones(2, 3, 24).int(), ones(24).int(), 2))


@pytest.mark.parametrize("name", ["none", "keys and queries", "padding", "of every score"])
def test_encoder_layer(name):
    mask, mask_type = MASKS[name]
    norms = [torch.randn(EMBED) for _ in range(4)]
    feed_forward = [torch.randn(shape) * 0.3 for shape in ((40, EMBED), (40,), (EMBED, 40), (EMBED,))]

    def layer(src, attention, norms, feed_forward, mask, gelu, norm_first):
        return torch._transformer_encoder_layer_fwd(
            src, EMBED, HEADS, *attention, gelu, norm_first, 1e-5, *norms, *feed_forward, mask, mask_type
        )

    given = (parameters(), norms, feed_forward, mask)
    for gelu, norm_first in itertools.product((False, True), repeat=2):
        src = torch.randn(BATCH, LENGTH, EMBED)
        agree(layer, src, *given, gelu, norm_first, tolerance=5e-5, backward=False)
    if mask is None:
        agree(layer, torch.randn(0, LENGTH, EMBED), *given, True, True, backward=False)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_masked_softmax(dtype):
    for dim, scores in itertools.product((None, 0, 1, -1), layouts((5, 4, 6), dtype)):
        mask = random_mask(5, 4, 6)
        # The CPU's own writes a permuted result as if it were contiguous.
        agree(lambda s, m, d: torch._masked_softmax(s.contiguous() if s.is_cpu else s, m, d), scores, mask, dim)
    for (mask, mask_type), dim in itertools.product(MASKS.values(), (None, -1, 1)):
        if mask is not None and mask.dtype == torch.bool:
            scores = torch.randn(BATCH, HEADS, LENGTH, LENGTH).to(dtype)
            agree(torch._masked_softmax, scores, mask, dim, mask_type, backward=mask_type == 2)
    agree(torch._masked_softmax, torch.tensor(2.0, dtype=dtype), torch.tensor(False))


def test_errors_of_masked_softmax(raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda ones: torch._masked_softmax(ones(2, 3), ones(2, 3)))
    raises_as_on_the_cpu(lambda ones: torch._masked_softmax(ones(2, 3), ones(3, 3).bool()))
    raises_as_on_the_cpu(lambda ones: torch._masked_softmax(ones(2, 3).int(), ones(2, 3).bool()))
    raises_as_on_the_cpu(lambda ones: torch._masked_softmax(ones(2, 3), ones(2, 3).bool(), 4))
    raises_as_on_the_cpu(lambda ones: torch._masked_softmax(ones(1, 1, 2, 2), ones(2, 2).bool(), 3))
    backward = torch.ops.aten._masked_softmax_backward
    raises_as_on_the_cpu(lambda ones: backward(ones(2, 3), ones(2, 3), ones(2, 1).bool()))
    raises_as_on_the_cpu(lambda ones: backward(ones(2, 3), ones(2, 3), ones(2, 3)))


@pytest.mark.parametrize("use_gelu", [True, False])
def test_product_with_activation(use_gelu, raises_as_on_the_cpu):
    def product(bias, a, b):
        return torch._addmm_activation(bias, a, b, beta=0.5, alpha=2, use_gelu=use_gelu)

    for bias in (torch.randn(5), torch.randn(4, 5), torch.randn(1)):
        for a in layouts((4, 3)):
            agree(product, bias, a, torch.randn(5, 3).t(), backward=False)
    agree(product, torch.randn(5), torch.randn(4, 0), torch.randn(0, 5), backward=False)
    raises_as_on_the_cpu(lambda ones: product(ones(5), ones(4, 3), ones(4, 5)))


def test_modules_give_the_same_in_inference(mps):
    """torch.nn takes the operators above where the tensors are on the CPU, and its ordinary way on mps."""
    layer = torch.nn.TransformerEncoderLayer(EMBED, HEADS, 32, batch_first=True).eval()
    src, mask = torch.randn(BATCH, LENGTH, EMBED), random_mask(LENGTH, LENGTH)
    with torch.inference_mode():
        expected = layer(src, mask)
        torch.testing.assert_close(layer.to(mps)(src.to(mps), mask.to(mps)).cpu(), expected, rtol=1e-5, atol=2e-5)
