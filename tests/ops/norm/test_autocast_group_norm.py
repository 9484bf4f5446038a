"""group_norm under autocast: float32 results from 16 bits, without a copy of them in float32."""

import pytest
import torch
import torch.nn.functional as F
from both_devices import kernels
from compare import ONE_ROUNDING as ROUNDING

DTYPES = [torch.float16, torch.bfloat16]
SHAPES = [(6, 4), (5, 4, 7), (3, 8, 7, 7), (2, 12, 16, 16), (2, 4, 3, 2, 5), (1, 8, 40, 41)]


def results(x, grad, parameters, device, convert):
    """Output and gradients; `convert` makes what is handed to group_norm from the leaf."""
    x = x.to(device).requires_grad_()
    w, b = ([t.to(device).requires_grad_() for t in parameters]) if parameters else (None, None)
    y = F.group_norm(convert(x), 4, w, b)
    inputs = [t for t in (x, w, b) if t is not None]
    return [y, *torch.autograd.grad(y, inputs, grad.to(device, y.dtype))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values(shape, dtype):
    views = [lambda t: t, lambda t: t.flip(0)]
    if len(shape) == 4:
        views += [lambda t: t.contiguous(memory_format=torch.channels_last), lambda t: t.transpose(2, 3)]
    for view in views:
        for affine in (True, False):
            x, grad = (torch.randn(shape) * 2 + 0.5).to(dtype), torch.randn(view(torch.empty(shape)).shape)
            parameters = [torch.randn(shape[1]) for _ in range(2)] if affine else []
            with torch.autocast("mps", dtype):
                got = results(x, grad, parameters, "mps", view)
            own = results(x, grad, parameters, "mps", lambda t, view=view: view(t.float()))
            exact = results(x.double(), grad, [t.double() for t in parameters], "cpu", view)
            assert got[0].stride() == own[0].stride()
            for g, o, e in zip(got, own, exact, strict=True):
                assert g.dtype == o.dtype
                bound = max(1.0, e.abs().max().item())
                torch.testing.assert_close(g.cpu().double(), e, rtol=ROUNDING[g.dtype] * 2, atol=1e-5 * bound)
            assert got[0].dtype == torch.float32 and got[1].dtype == dtype


def test_autograd_keeps_sixteen_bits():
    norm = torch.nn.GroupNorm(4, 8).to("mps")
    x = torch.randn(3, 8, 7, 7, device="mps", dtype=torch.bfloat16, requires_grad=True)
    saved = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t)
    with hooks, torch.autocast("mps", torch.bfloat16):
        y = norm(x)
    assert [t.data_ptr() for t in saved if t.numel() >= x.numel()] == [x.data_ptr()]
    grad = torch.ones_like(y)
    assert not [k for k in kernels(lambda: torch.autograd.grad(y, [x, *norm.parameters()], grad)) if "copy" in k]


def test_what_it_cannot_take():
    """Errors and unusual arguments are those of float32."""
    x = torch.randn(4, 8, 3, device="mps", dtype=torch.bfloat16)
    with torch.autocast("mps", torch.bfloat16):
        with pytest.raises(RuntimeError, match="divisible by num_groups"):
            F.group_norm(x, 3)
        with pytest.raises(RuntimeError, match="Expected weight to be a vector"):
            F.group_norm(x, 2, torch.ones(4, device="mps"))
        half = torch.randn(8, device="mps", dtype=torch.bfloat16)
        torch.testing.assert_close(F.group_norm(x, 2, half), F.group_norm(x.float(), 2, half.float()))
        assert F.group_norm(x[:0], 2).shape == (0, 8, 3)
        with torch.inference_mode():
            inner = x * 1
            assert F.group_norm(inner, 2).dtype == torch.float32
        y = F.group_norm(inner, 2, torch.ones(8, device="mps", requires_grad=True), torch.zeros(8, device="mps"))
    y.sum().backward()


def test_transforms():
    x = torch.randn(4, 8, 5, device="mps", dtype=torch.bfloat16)
    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad(F.group_norm(leaf.float(), 2).sin().sum(), leaf)[0]

    def total(t):
        with torch.autocast("mps", torch.bfloat16):
            return F.group_norm(t, 2).sin().sum()

    # Within transforms autocast does not reach composite operators: results of 16 bits.
    torch.testing.assert_close(torch.func.grad(total)(x), expected, rtol=2**-6, atol=2**-6)
    each = torch.func.vmap(torch.func.grad(lambda t: total(t[None])))(x)
    torch.testing.assert_close(each, expected, rtol=2**-6, atol=2**-6)
    with torch.autocast("mps", torch.bfloat16):
        y = F.group_norm(leaf, 2).sin()
    batched = torch.autograd.grad(y.sum((1, 2)), leaf, torch.eye(4, device="mps"), is_grads_batched=True)[0]
    torch.testing.assert_close(batched.sum(0), expected, rtol=2**-7, atol=1e-3)
