"""Operators that Inductor has no lowering for, fused by their rows of pointwise.yaml alone."""

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees, kernel_count
from torch import special

HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def fused_by_rows():
    """Names of the operators."""
    from torch_anymps import inductor
    from torch_anymps.inductor import row_lowering

    inductor.register()
    return {op.name() for op in row_lowering.registered}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: special.zeta(x + 1.5, n) * 2 - special.zeta(2.5, n) + special.zeta(x + 2, 1.25),
        lambda x, n: special.i0e(x) + special.i1e(n.int()) + special.log_ndtr(x),
        lambda x, n: torch.gcd((x * 99).int(), (n * 6).to(torch.int16)) + 1,
        lambda x, n: torch.angle(x - 0.5) + torch.angle((n - 2).int()),
        lambda x, n: special.legendre_polynomial_p(x, 3) + special.hermite_polynomial_h(x, n),
        lambda x, n: torch.igamma(x + 1, n).sum(0),
    ],
    ids=["zeta", "bessel", "gcd", "angle", "polynomials", "then a sum"],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_kernel(mps, fused_by_rows, function, dynamic):
    x, n = torch.rand(6, 8), torch.randint(1, 5, (6, 8)).float()
    assert kernel_count(compiled_agrees(function, x, n, dynamic=dynamic)) == 1


def test_what_is_broadcast(mps, fused_by_rows):
    """From PyTorch 2.15 on a kernel of its own computes it, once for all rows."""
    x, n = torch.rand(6, 8), torch.randint(1, 5, (8,)).float()
    codes = compiled_agrees(lambda x, n: special.zeta(x + 1.5, n) * 2 - special.zeta(2.5, n), x, n)
    assert kernel_count(codes) in (1, 2)


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_keep_their_dtype(mps, dtype):
    compiled_agrees(lambda x: torch.digamma(x) * 3, torch.rand(40).to(dtype) + 1)


def test_a_scalar_argument(mps, fused_by_rows):
    function = lambda x: torch.ops.aten.softshrink_backward(x, x - 0.5, 0.25) + 1
    assert kernel_count(compiled_agrees(function, torch.rand(6, 8))) == 1


def test_gradients(mps):
    compiled_agrees(lambda x: special.log_ndtr(x).sin(), torch.randn(40, requires_grad=True), backward=True)


def test_which_operators(fused_by_rows):
    """Those that PyTorch would call as they are, and of those that it can fuse only what is preferred."""
    assert {"aten::special_zeta", "aten::special_zeta.self_scalar", "aten::gcd", "aten::gelu"} <= fused_by_rows
    assert not {"aten::add.Tensor", "aten::erf", "aten::silu", "aten::hypot"} & fused_by_rows


def test_the_cpu_is_untouched(fused_by_rows):
    x = torch.rand(5) + 2
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(lambda x: special.zeta(x, 1.0) * 2)(x), special.zeta(x, 1.0) * 2)


def test_complex_numbers_are_called_eager(mps):
    x = torch.randn(4, dtype=torch.complex64)
    compiled_agrees(lambda x: torch.angle(x) + 1, x)


def test_assembly_of_other_devices_is_refused(mps):
    from torch._higher_order_ops.inline_asm_elementwise import inline_asm_elementwise

    def function(x):
        return inline_asm_elementwise(x, asm_str="mov.b32 $0, $1;", constraints="=r,r", dtype=torch.float32)

    with pytest.raises(Exception, match="NVIDIA"):
        torch.compile(function)(torch.ones(4, device=mps))


def test_every_row_gives_the_bits_of_its_eager_operator(mps, fused_by_rows):
    from torch_anymps.inductor.row_lowering import registered

    nan, inf = float("nan"), float("inf")
    x = torch.cat([torch.randn(40) * 3, torch.tensor([0.0, -0.0, 1.0, -1.0, nan, inf, -inf, 0.5])]).to(mps)
    n = torch.randint(0, 6, x.shape, device=mps).float()
    calls = []
    for op in registered:
        tensors = iter((x.nan_to_num(0, 7, -7).int(), n.int()) if "gcd" in op.name() else (x, n))
        of_type = {"Tensor": lambda _, t=tensors: next(t), "number": lambda name: 2 if name == "n" else 1.5}
        calls.append((op, [of_type[str(a.type)](a.name) for a in op._schema.arguments if not a.kwarg_only]))
    for first in range(0, len(calls), 18):
        part = calls[first : first + 18]
        torch._dynamo.reset()
        results = torch.compile(lambda part=part: [op(*arguments) for op, arguments in part])()
        for (op, arguments), result in zip(part, results, strict=True):
            torch.testing.assert_close(result, op(*arguments), rtol=0, atol=0, equal_nan=True, msg=op.name())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_its_row_forward_and_backward(mps, approximate):
    x = torch.randn(33, 40, requires_grad=True)
    codes = compiled_agrees(lambda t: F.gelu(t * 2, approximate=approximate), x, backward=True, tolerance=1e-5)
    text = "".join(codes)
    row = "gelu_tanh" if approximate == "tanh" else "gelu"
    assert f"{row}(" in text and f"{row}_backward(" in text
