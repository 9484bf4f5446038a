"""scaled_dot_product_attention against the mathematics in float64 on the CPU."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from both_devices import agree, same_outcome, spoil_memory
from compare import ATTENTION as TOLERANCE
from torch.nn.attention import SDPBackend, sdpa_kernel


def reference(q, k, v, mask=None, causal=False, scale=None, gqa=False):
    """Attention by its definition, in float64; a row without any key gives zeros."""
    if gqa:
        k, v = (t.repeat_interleave(q.size(-3) // t.size(-3), -3) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale if scale is not None else q.size(-1) ** -0.5)
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores if mask.dtype == torch.bool else scores + mask
        scores = scores.masked_fill(~mask if mask.dtype == torch.bool else mask == -torch.inf, -torch.inf)
    return torch.nan_to_num(torch.softmax(scores, -1)) @ v


def transposed(shape, dtype):
    """As transformers makes heads: (batch, tokens, heads, size) transposed."""
    return torch.randn(shape[0], shape[2], shape[1], shape[3], dtype=dtype).transpose(1, 2)


def compare(shapes, dtype=torch.float32, mask=None, make=torch.randn, **options):
    inputs = [make(s, dtype=dtype) for s in shapes]
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


@pytest.mark.parametrize("keys", [4, 64, 256, 260, 1028])
def test_rows_of_words(keys):
    """Scores of float32 whose rows GPUs keep in registers, and of 1,028 columns, which they do not.

    Heads are too long for fused kernels.
    """
    shapes = [(1, 2, 9, 136), (1, 2, keys, 136), (1, 2, keys, 136)]
    compare(shapes)
    compare(shapes, is_causal=True)
    compare(shapes, mask=torch.rand(9, keys) > 0.4)
    compare(shapes, mask=torch.randn(1, 1, 1, keys))


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_masks(enable_gqa):
    heads = 2 if enable_gqa else 4
    shapes = [(2, 4, 9, 16), (2, heads, 11, 16), (2, heads, 11, 24)]
    for mask_shape in ((9, 11), (2, 1, 1, 11), (1, 4, 9, 11), (2, 4, 9, 11)):
        keep = torch.rand(mask_shape) > 0.4
        compare(shapes, mask=keep, enable_gqa=enable_gqa)
        compare(shapes, mask=torch.randn(mask_shape), enable_gqa=enable_gqa, scale=0.3)


@pytest.mark.parametrize("keys", [64, 72])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_of_which_most_tiles_hide_nothing(dtype, keys):
    """Kernels on matrix units look at masks of bool tile by tile, by words where they can."""
    shapes = [(2, 2, 64, 32), (2, 2, keys, 32), (2, 2, keys, 32)]
    keep = torch.ones(2, 1, 64, keys, dtype=torch.bool)
    compare(shapes, dtype, mask=keep)
    keep[1, :, :, 40:] = False  # padding
    compare(shapes, dtype, mask=keep)
    compare(shapes, dtype, mask=keep[:, :, :1])
    compare(shapes, dtype, mask=keep[:, :, :1].expand(2, 2, 64, keys))
    keep[0, 0, 5, 17], keep[0, 0, 63, keys - 1] = False, False
    compare(shapes, dtype, mask=keep)
    wide = torch.ones(2, 1, 64, keys + 16, dtype=torch.bool)
    wide[1, :, 30, 3:9] = False
    compare(shapes, dtype, mask=wide[..., 1 : keys + 1])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_masks_that_hide_whole_tiles(dtype):
    """All rows of a subgroup, of its neighbour or past the end see no key, over memory that holds NaN."""
    whole = slice(None)
    hidden = ((slice(16), whole), (slice(16, 48), slice(16, None)), (slice(64, None), slice(32)), (whole, slice(16)))
    for length, keys in ((70, 70), (81, 33)):
        shapes = [(2, 2, length, 32), (2, 2, keys, 32), (2, 2, keys, 32)]
        for place in hidden:
            keep = torch.ones(length, keys, dtype=torch.bool)
            keep[place] = False
            spoil_memory()
            compare(shapes, dtype, mask=keep)
            compare(shapes, dtype, mask=torch.zeros(length, keys).masked_fill(~keep, -torch.inf))


def test_rows_without_a_key_are_zero():
    keep = torch.rand(5, 6) > 0.5
    keep[2] = False
    compare([(1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8)], mask=keep)


@pytest.mark.parametrize(
    "dtype, mask_dtype",
    [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)],
)
def test_rows_that_the_least_number_masks(dtype, mask_dtype):
    """Their keys have equal probabilities, as beside such a number no score and no logarithm of a count survives."""
    for length, size in ((9, 16), (9, 136), (1, 16)):
        mask = torch.zeros(2, 1, length, 12, dtype=mask_dtype)
        mask[1, ..., 5:] = mask[0] = torch.finfo(mask_dtype).min
        mask[0, ..., 7:] = -torch.inf
        compare([(2, 2, length, size), (2, 2, 12, size), (2, 2, 12, size)], dtype, mask)


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


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_head_sizes(dtype):
    for size in (32, 40, 72, 80, 96, 256):
        compare([(1, 2, 19, size), (1, 2, 37, size), (1, 2, 37, size)], dtype, make=transposed)
    compare([(1, 2, 19, 56), (1, 2, 37, 56), (1, 2, 37, 24)], dtype, make=transposed, is_causal=True)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_more_than_one_tile(dtype):
    """Lengths around the tiles of 16 to 128 rows and keys, and masks that leave out the last or the first of them."""
    for length, keys in ((130, 259), (257, 128), (64, 65)):
        shapes = [(1, 4, length, 64), (1, 2, keys, 64), (1, 2, keys, 64)]
        compare(shapes, dtype, make=transposed, is_causal=True, enable_gqa=True)
        compare(shapes, dtype, mask=torch.arange(keys) < keys // 2, enable_gqa=True)
        compare(shapes, dtype, mask=torch.randn(4, 1, keys), make=transposed, enable_gqa=True)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_deterministic_gradients(dtype):
    """Several workgroups add to the gradient of a query."""
    shapes = [(1, 4, 300, 64), (1, 2, 520, 64), (1, 2, 520, 64)]
    inputs = [torch.randn(s, dtype=dtype, device="mps", requires_grad=True) for s in shapes]

    def gradients():
        out = F.scaled_dot_product_attention(*inputs, enable_gqa=True)
        return torch.autograd.grad(out, inputs, inputs[0])

    torch.use_deterministic_algorithms(True)
    try:
        first = gradients()
        assert all(torch.equal(a, b) for _ in range(5) for a, b in zip(first, gradients()))
        compare(shapes, dtype, enable_gqa=True)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.OVERRIDEABLE])
def test_groups_of_no_heads(backend):
    """The CPU's division by their number ends the process in some versions."""
    for outer in ((0,), (2, 0)):
        q, k = torch.randn(*outer, 3, 8, device="mps", requires_grad=True), torch.randn(*outer, 6, 8, device="mps")
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        assert out.shape == q.shape == torch.autograd.grad(out.sum(), q)[0].shape


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_decoding(dtype):
    """Few queries over many keys."""
    for length, keys, size in ((1, 700, 64), (3, 1030, 40), (8, 300, 160)):
        compare([(2, 4, length, size), (2, 2, keys, size), (2, 2, keys, size)], dtype, make=transposed, enable_gqa=True)
    # Of so few rows the keys are cut into parts even for the two cores of a software driver.
    compare([(1, 2, 1, 64), (1, 1, 1100, 64), (1, 1, 1100, 64)], dtype, make=transposed, enable_gqa=True)
    keep = torch.rand(2, 1, 1, 700) > 0.5
    keep[1] = False
    compare([(2, 4, 1, 64), (2, 4, 700, 64), (2, 4, 700, 48)], dtype, mask=keep)


@pytest.mark.parametrize("length", [1, 3, 40])
def test_inference(length):
    """Without gradients, whose kernels compile for minutes with wide subgroups; of some tiles a mask hides nothing."""
    keep = torch.ones(length, 150, dtype=torch.bool)
    keep[:, 130:] = torch.rand(length, 20) > 0.5
    q, k, v = torch.randn(2, 2, length, 40), torch.randn(2, 2, 150, 40), torch.randn(2, 2, 150, 40)
    got = F.scaled_dot_product_attention(q.to("mps"), k.to("mps"), v.to("mps"), attn_mask=keep.to("mps"))
    torch.testing.assert_close(got.cpu(), reference(q, k, v, mask=keep), rtol=1e-5, atol=1e-5)


def test_wholly_masked_rows_and_not_a_number():
    q, k, v = (torch.randn(1, 2, 20, 32) for _ in range(3))
    mask = torch.zeros(20, 20)
    mask[4] = -torch.inf
    compare([q.shape, k.shape, v.shape], mask=mask)
    compare([q.shape, k.shape, v.shape], torch.float16, mask=mask.half())
    for dtype in TOLERANCE:
        bad = q.to(dtype).clone()
        bad[0, 1, 7, 3] = torch.nan
        got = F.scaled_dot_product_attention(*(t.to(dtype).to("mps") for t in (bad, k, v))).cpu()
        assert got[0, 1, 7].isnan().all() and got.isnan().sum() == 32


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("causal", [False, True])
def test_dropout(dtype, causal):
    """With one-hot values the result shows what was dropped; another call of the same seed drops the same."""
    size, length, keys = 64, 83, 60
    q, k = torch.randn(2, 3, length, size, dtype=dtype), torch.randn(2, 3, keys, size, dtype=dtype)
    v, grad = torch.randn(2, 3, keys, size, dtype=dtype), torch.randn(2, 3, length, size, dtype=dtype)
    ours = [t.to("mps").requires_grad_() for t in (q, k, v)]
    one_hot = torch.eye(keys, size, dtype=dtype).expand(2, 3, keys, size).to("mps")
    torch.manual_seed(3)
    kept = F.scaled_dot_product_attention(ours[0], ours[1], one_hot, dropout_p=0.25, is_causal=causal)[..., :keys]
    kept = (kept != 0).cpu()
    possible = torch.ones(length, keys).tril() if causal else torch.ones(length, keys)
    assert abs(kept.sum() / (6 * possible.sum()) - 0.75) < 0.02 and not kept[..., possible == 0].any()
    assert not torch.equal(kept[0, 0], kept[0, 1]) and not torch.equal(kept[0], kept[1])
    torch.manual_seed(3)
    got = F.scaled_dot_product_attention(*ours, dropout_p=0.25, is_causal=causal)
    got.backward(grad.to("mps"))
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    scores = leaves[0] @ leaves[1].transpose(-1, -2) / 8
    if causal:
        scores = scores.masked_fill(~torch.ones(length, keys, dtype=torch.bool).tril(), -torch.inf)
    wanted = (torch.softmax(scores, -1) * kept / 0.75) @ leaves[2]
    wanted.backward(grad.double())
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got.cpu().double(), wanted.detach(), rtol=tolerance, atol=tolerance)
    for a, b in zip(ours, leaves):
        torch.testing.assert_close(a.grad.cpu().double(), b.grad, rtol=4 * tolerance, atol=4 * tolerance)


def test_result_lies_in_memory_as_the_query_does():
    """So that its transposition back is not a copy; torch.compile expects it too."""
    q = torch.randn(2, 5, 3, 32).to("mps").transpose(1, 2).requires_grad_()
    got = F.scaled_dot_product_attention(q, q, q)
    assert got.stride() == q.stride()
    got.sum().backward()


def test_multi_head_attention_and_checkpointing():
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = torch.randn(3, 10, 32)
    wanted = layer(x)
    ours = layer.to("mps")
    got = torch.utils.checkpoint.checkpoint(ours, x.to("mps"), use_reentrant=False)
    torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)
    got.sum().backward()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_operator_of_programs_exported_on_the_cpu(causal, dtype, mps):
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q, k, v = (torch.randn(2, 3, n, 8, dtype=dtype) for n in (5, 9, 9))
    for mask in (None, torch.randn(5, 9, dtype=dtype), torch.randn(2, 1, 5, 9)):
        masks = {} if mask is None else {"cpu": mask, "mps": mask.to(mps)}

        def call(q, k, v, masks=masks):
            return operator(q, k, v, 0.0, causal, attn_mask=masks.get(q.device.type), scale=0.5)

        agree(call, q, k, v, tolerance=2e-5 if dtype == torch.float32 else 5e-3)
    for bad in ((q[0], k, v), (q, k, v[..., :4]), (q.int(), k.int(), v.int())):
        same_outcome(lambda device, bad=bad: operator(*(t.to(device) for t in bad)))
    for options in ({"dropout_p": 0.1}, {"attn_mask": torch.ones(5, 9) > 0}, {"attn_mask": q[0]}):
        same_outcome(
            lambda device, options=options: operator(
                *(t.to(device) for t in (q, k, v)),
                **{key: v.to(device) if key == "attn_mask" else v for key, v in options.items()},
            )
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_operator_of_programs_exported_on_a_mac(dtype, mps):
    operator = torch.ops.aten._scaled_dot_product_attention_math_for_mps
    keep = torch.rand(5, 9).gt(0.3) | torch.eye(5, 9).gt(0)
    bias = torch.where(keep, 0.0, float("-inf"))
    masks = ((None, None, False), (None, None, True), (keep, bias, False), (bias.to(dtype), bias, False))
    limit = 2e-5 if dtype == torch.float32 else 5e-3
    for heads, leading, (mask, float_mask, causal) in itertools.product((2, 4), ((3,), (), (2, 3)), masks):
        q, k, v = (torch.randn(*leading, h, n, 8).to(dtype) for h, n in ((heads, 5), (2, 9), (2, 9)))
        options = {"scale": 0.5, "enable_gqa": heads != 2}
        on_mps = [t if t is None else t.to(mps) for t in (q, k, v, mask)]
        wanted = torch.ops.aten._scaled_dot_product_attention_math(
            q.float(), k.float(), v.float(), float_mask, 0.0, causal, **options
        )
        for got, expected in zip(operator(*on_mps, 0.0, causal, **options), wanted, strict=True):
            torch.testing.assert_close(got.cpu(), expected.to(dtype), rtol=limit, atol=limit)


def test_errors():
    q = torch.randn(1, 2, 4, 8, device="mps")
    with pytest.raises(RuntimeError, match="same dtype"):
        F.scaled_dot_product_attention(q, q.half(), q)
    with pytest.raises(RuntimeError, match="should not be set when is_causal"):
        F.scaled_dot_product_attention(q, q, q, torch.zeros(4, 4, device="mps"), is_causal=True)
    for probability in (1.5, -0.5):
        with pytest.raises(RuntimeError, match="dropout probability has to be between 0 and 1"):
            F.scaled_dot_product_attention(q, q, q, dropout_p=probability)


@pytest.mark.parametrize("dims", [2, 3, 4, 5])
def test_sizes_that_do_not_fit_raise(dims):
    """Instead of what lies behind the shorter tensor."""
    q = torch.randn((2,) * (dims - 2) + (4, 8), device="mps")
    for k, v in ((q[..., :7], q), (q, q[..., :3, :]), (q[..., :3, :], q), (q, q[..., :1, :])):
        with pytest.raises(RuntimeError, match="cannot be multiplied|Expected size for first two dimensions"):
            F.scaled_dot_product_attention(q, k, v)


def test_groups_of_keys_and_of_values_apart():
    agree(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        *(torch.randn(2, heads, 3, 4) for heads in (4, 2, 1)),
    )


def test_vectors_without_elements(mps):
    """All scores are zero, and the result the mean of the values."""
    q, k, v = torch.zeros(1, 2, 3, 0), torch.zeros(1, 2, 4, 0), torch.randn(1, 2, 4, 5)
    got = F.scaled_dot_product_attention(q.to(mps), k.to(mps), v.to(mps))
    torch.testing.assert_close(got.cpu(), v.mean(2, keepdim=True).expand(1, 2, 3, 5))
