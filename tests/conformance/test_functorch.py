"""torch.func's transforms, forward-mode and second derivatives on mps, compared with the CPU.

The kernels of ours for composite operators serve plain tensors; what wraps a tensor goes PyTorch's own way.
"""

import contextlib
import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import func, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

MPS = "mps"


def both(make, transform):
    """transform's result for a function and its input, as make() gives them, on mps and on the CPU.

    The CPU's fused attention and recurrent layers have no forward derivatives: there the math does it.
    """
    torch.manual_seed(0)
    function, x = make()
    with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
        expected = transform(function, x)
    actual = transform(copy.deepcopy(function).to(MPS), x.to(MPS))
    return actual, expected


class Attention(nn.Module):
    """scaled_dot_product_attention of one tensor, with the given keywords."""

    def __init__(self, mask=None, **keywords):
        super().__init__()
        self.keywords = keywords
        self.register_buffer("mask", mask)

    def forward(self, x):
        key = x[:, :1] if self.keywords.get("enable_gqa") else x
        return F.scaled_dot_product_attention(x.sin(), key, key.cos(), self.mask, **self.keywords)


class OfWeight(nn.Module):
    """A function of an embedding's weights."""

    def __init__(self):
        super().__init__()
        self.register_buffer("indices", torch.tensor([[1, 0, 2], [1, 3, 1]]))

    def forward(self, x):
        return F.embedding(self.indices, x).sin()


class OfScores(nn.Module):
    """Cross entropy of scores."""

    def __init__(self):
        super().__init__()
        self.register_buffer("target", torch.tensor([1, 0, 2, 1]))

    def forward(self, x):
        return F.cross_entropy(x, self.target)


class First(nn.Module):
    """A recurrent or attention module's output without what comes with it."""

    def __init__(self, module, times=1, **keywords):
        super().__init__()
        self.module, self.times, self.keywords = module, times, keywords

    def forward(self, x):
        return self.module(*[x] * self.times, **self.keywords)[0]


KEPT = torch.tensor([[True, False, True], [True, True, False], [False, True, True]])
FUNCTIONS = {
    "attention": lambda: (Attention(), torch.randn(1, 2, 3, 4)),
    "causal attention": lambda: (Attention(is_causal=True, scale=0.3), torch.randn(1, 2, 3, 4)),
    "masked attention": lambda: (Attention(mask=KEPT), torch.randn(1, 2, 3, 4)),
    "biased attention": lambda: (Attention(mask=torch.randn(3, 3)), torch.randn(1, 2, 3, 4)),
    "grouped attention": lambda: (Attention(mask=KEPT, enable_gqa=True), torch.randn(1, 2, 3, 4)),
    "MultiheadAttention": lambda: (First(nn.MultiheadAttention(8, 2), 3), torch.randn(3, 2, 8)),
    "MultiheadAttention without weights": lambda: (
        First(nn.MultiheadAttention(8, 2), 3, need_weights=False),
        torch.randn(3, 2, 8),
    ),
    "TransformerEncoderLayer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), torch.randn(3, 2, 8)),
    "linear": lambda: (nn.Linear(4, 3), torch.randn(2, 4)),
    "linear of three dimensions": lambda: (nn.Linear(4, 3), torch.randn(2, 3, 4)),
    "dropout of nothing": lambda: (nn.Sequential(nn.Dropout(0.0), nn.Tanh()), torch.randn(2, 4)),
    "dropout in evaluation": lambda: (nn.Sequential(nn.Dropout(0.5), nn.Tanh()).eval(), torch.randn(2, 4)),
    "glu": lambda: (nn.GLU(), torch.randn(2, 4)),
    "convolution": lambda: (nn.Conv2d(2, 3, 2), torch.randn(2, 2, 3, 3)),
    "layer_norm": lambda: (nn.LayerNorm(4), torch.randn(2, 4)),
    "group_norm": lambda: (nn.GroupNorm(2, 4), torch.randn(2, 4, 3)),
    "batch_norm": lambda: (nn.BatchNorm1d(4, track_running_stats=False), torch.randn(3, 4)),
    "rms_norm": lambda: (nn.RMSNorm(4), torch.randn(2, 4)),
    "embedding": lambda: (OfWeight(), torch.randn(4, 3)),
    "cross_entropy": lambda: (OfScores(), torch.randn(4, 3)),
    "lstm": lambda: (First(nn.LSTM(4, 3)), torch.randn(2, 2, 4)),
    "gru": lambda: (First(nn.GRU(4, 3)), torch.randn(2, 2, 4)),
}


def scalar(function):
    return lambda x: function(x).square().sum()


def batched(transform):
    """Of a batch of three inputs."""
    return lambda f, x: func.vmap(lambda t: transform(f, t))(torch.stack([x, 2 * x, x.cos()]))


TRANSFORMS = {
    "grad": lambda f, x: func.grad(scalar(f))(x),
    "vjp": lambda f, x: func.vjp(f, x)[1](f(x).cos())[0],
    "jvp": lambda f, x: func.jvp(f, (x,), (x.cos(),)),
    "vmap": batched(lambda f, x: f(x)),
    "jacrev": lambda f, x: func.jacrev(f)(x),
    "jacfwd": lambda f, x: func.jacfwd(f)(x),
    "hessian": lambda f, x: func.hessian(scalar(f))(x),
    "grad of grad": lambda f, x: func.grad(lambda t: scalar(func.grad(scalar(f)))(t))(x),
    "jvp of grad": lambda f, x: func.jvp(func.grad(scalar(f)), (x,), (x.cos(),)),
    "vmap of grad": batched(lambda f, x: func.grad(scalar(f))(x)),
    "functionalize": lambda f, x: func.functionalize(f)(x),
}


# PyTorch has no rule for batches of recurrent layers, on no device.
CASES = [
    case
    for case in itertools.product(FUNCTIONS, TRANSFORMS)
    if not (case[0] in ("lstm", "gru") and case[1] in ("vmap", "vmap of grad"))
]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's rules for batches of glu_jvp
@pytest.mark.parametrize(("function", "transform"), CASES)
def test_transforms(mps, function, transform):
    actual, expected = both(FUNCTIONS[function], TRANSFORMS[transform])
    torch.testing.assert_close(actual, expected, check_device=False, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", [False, True])
def test_dropout_of_a_batch(mps, attention):
    """Of vmap's kinds of randomness."""
    x = torch.eye(20, device=mps).expand(4, 2, 20, 20).clone()

    def function(t):
        return F.scaled_dot_product_attention(t, t, t, dropout_p=0.5) if attention else F.dropout(t + 1, 0.5)

    same = func.vmap(function, randomness="same")(x)
    assert all(torch.equal(row, same[0]) for row in same) and (same == 0).any()
    different = func.vmap(function, randomness="different")(x)
    assert (different == 0).any() and not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(function, randomness="error")(x)


def second_order(device, given, keywords, backend):
    """Attention's first and second derivatives: by query, key, value and, where it is a float, the mask."""
    tensors = [t.to(device).requires_grad_(t.is_floating_point()) for t in given]
    leaves = [t for t in tensors if t.requires_grad]
    with sdpa_kernel(backend) if backend else contextlib.nullcontext():
        out = F.scaled_dot_product_attention(*tensors, **keywords)
    first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.pow(3).sum() for g in first), leaves)
    return [t.detach().cpu() for t in (*first, *second)]


@pytest.mark.parametrize("backend", [None, SDPBackend.MATH])
@pytest.mark.parametrize(
    ("mask", "keywords"),
    [
        (None, {}),
        (None, {"is_causal": True, "scale": 0.4}),
        (torch.tensor([[True, False, True], [False, False, False], [True, True, True], [False, True, True]]), {}),
        ("float", {}),
        (None, {"enable_gqa": True}),
        ("float", {"enable_gqa": True, "dropout_p": 0.0}),
    ],
    ids=["plain", "causal", "bool mask", "float mask", "groups", "groups and a mask"],
)
def test_second_derivatives_of_attention(mps, mask, keywords, backend):
    """Gradient penalties, with and without the math backend."""
    heads = 2 if keywords.get("enable_gqa") else 4
    given = [torch.randn(2, 4, 4, 5), torch.randn(2, heads, 3, 5), torch.randn(2, heads, 3, 6)]
    if mask is not None:
        given.append(torch.randn(2, 1, 4, 3) if mask == "float" else mask)
    expected = second_order("cpu", given, keywords, SDPBackend.MATH)
    actual = second_order(mps, given, keywords, backend)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4)])
def test_second_derivatives_of_empty_attention(mps, shape):
    for keywords in ({}, {"is_causal": True}, {"enable_gqa": shape[1] > 0}):
        derivatives = second_order(mps, [torch.zeros(shape)] * 3, keywords, None)
        assert all(d.shape == shape for d in derivatives)
    no_keys = [torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 0, 4), torch.zeros(1, 2, 0, 4)]
    for got, want in zip(second_order(mps, no_keys, {}, None), second_order("cpu", no_keys, {}, SDPBackend.MATH)):
        torch.testing.assert_close(got, want)


def test_attention_of_groups_without_heads_raises(mps):
    q, k = torch.zeros(1, 2, 3, 4, device=mps), torch.zeros(1, 0, 3, 4, device=mps)
    for attend in (F.scaled_dot_product_attention, func.vmap(F.scaled_dot_product_attention)):
        with pytest.raises(RuntimeError, match="[Nn]umber of heads in key and value"):
            attend(q[:, None], k[:, None], k[:, None], enable_gqa=True)


def test_second_derivatives_of_attention_with_dropout(mps):
    """What the forward pass dropped is dropped in both derivatives."""
    query, key, value = (torch.randn(1, 2, 20, 4, device=mps, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(query, key, value, dropout_p=0.4)
    cotangent = torch.randn_like(out).requires_grad_()
    fused = torch.autograd.grad(out, (query, key, value), cotangent, retain_graph=True)
    first = torch.autograd.grad(out, (query, key, value), cotangent, create_graph=True)
    torch.testing.assert_close(first, fused, rtol=1e-4, atol=1e-5)
    # A linear function of its cotangent: the derivative along v is the product with v.
    (again,) = torch.autograd.grad(sum((g * g.detach()).sum() for g in first), cotangent, retain_graph=True)
    torch.testing.assert_close((again * cotangent).sum(), sum(g.square().sum() for g in first), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_second_derivatives_of_attention_in_16_bits(mps, dtype):
    given = [torch.randn(1, 2, 4, 5).to(dtype) for _ in range(3)]
    expected = second_order("cpu", [t.float() for t in given], {}, SDPBackend.MATH)
    for got, want in zip(second_order(mps, given, {}, None), expected):
        assert got.dtype == dtype
        # the first derivative is rounded to 16 bits before it is cubed
        torch.testing.assert_close(got.float() / want.abs().max(), want / want.abs().max(), rtol=0, atol=4e-2)


@pytest.mark.filterwarnings("error:There is a performance drop")
def test_gradients_of_batches(mps):
    """is_grads_batched meets the derivatives of linear and attention with a batch of cotangents, at once."""
    for shape, columns in (((1, 2, 3, 4), 4), ((3, 4), 5), ((4,), 5), ((1, 2, 3, 4), None)):
        results = []
        for device in ("cpu", mps):
            torch.manual_seed(0)
            given = (shape, (4,)) if columns is None else (shape, (columns, 4), (columns,))
            leaves = [torch.randn(s).to(device).requires_grad_() for s in given]
            out = F.linear(*leaves)
            if out.dim() == 4:
                out = F.scaled_dot_product_attention(out, leaves[0], leaves[0], is_causal=True)
            grads = torch.stack([out.detach().cos(), out.detach().sin(), out.detach()])
            results.append(torch.autograd.grad(out, leaves, grads, is_grads_batched=True))
        torch.testing.assert_close(results[1], results[0], check_device=False, rtol=1e-4, atol=1e-5)


def test_forward_mode(mps):
    """Dual tensors outside of torch.func."""
    results = []
    for device in ("cpu", mps):
        torch.manual_seed(0)
        x, w, b = (torch.randn(s).to(device) for s in ((2, 4), (3, 4), (3,)))
        q = torch.randn(1, 2, 3, 4).to(device)
        with forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH) if device == "cpu" else contextlib.nullcontext():
            dual, dual_q = (forward_ad.make_dual(t, t.cos()) for t in (x, q))
            outs = (
                F.linear(dual, w, b),
                F.linear(x, forward_ad.make_dual(w, w.sin()), b),
                F.glu(dual),
                F.dropout(dual, 0.5, training=False),
                F.scaled_dot_product_attention(dual_q, q, q),
                F.cross_entropy(dual, torch.tensor([1, 3], device=device)),
            )
            results.append([forward_ad.unpack_dual(out).tangent.cpu() for out in outs])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


def test_second_derivatives_of_complex_linear(mps):
    for shape, bias in itertools.product(((2, 4), (2, 3, 4)), (False, True)):
        results = []
        for device in ("cpu", mps):
            torch.manual_seed(0)
            given = [torch.randn(s, dtype=torch.cfloat).to(device) for s in (shape, (3, 4), (3,))]
            leaves = [t.requires_grad_() for t in given[: 2 + bias]]
            first = torch.autograd.grad(F.linear(*leaves).abs().pow(3).sum(), leaves, create_graph=True)
            second = torch.autograd.grad(sum(g.abs().square().sum() for g in first), leaves)
            results.append([t.detach().cpu() for t in (*first, *second)])
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8)])
@pytest.mark.parametrize("train", [False, True])
def test_empty_encoder_layers(mps, shape, train):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train(train).to(mps)
    x = torch.zeros(shape, device=mps, requires_grad=train)
    out = layer(x)
    assert out.shape == shape
    if train:
        out.sum().backward()
        assert x.grad.shape == shape
    with torch.no_grad():
        assert layer(x).shape == shape
