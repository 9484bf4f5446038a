"""complex32: made, moved, viewed, printed; computed in as complex64 and rounded once to two halves.

test_op_db.py compares what the CPU computes in complex32; here is what only GPUs and Apple's device do.
"""

from __future__ import annotations

import pytest
import torch
from op_db_compare import map_tensors, tensors_in
from op_db_support import DEVICE, OPS, Call, chosen_samples
from test_complex import NAMES

pytestmark = pytest.mark.usefixtures("mps", "no_fallback")

HALF = {torch.complex64: torch.complex32, torch.float32: torch.float16}
SINGLE = {half: single for single, half in HALF.items()}
# Two roundings of nearly the same number to half are at most 2^-10 apart.
ONE_ROUNDING = 1e-3
# Made of several kernels, each of which rounds numbers of 10 to 100, of which some cancel.
SEVERAL = 3e-2
COMPOSITES = {"addr", "cross", "diff", "ldexp", "linalg.cross", "linalg.multi_dot", "__rdiv__"}


REFUSED = {"complex", "polar"}  # complex operands
REFUSED |= {"float_power"}  # computes in double precision


@pytest.fixture
def pairs():
    return torch.randn(5, 7, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).to(torch.complex32)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    assert a.dtype == b.dtype == torch.complex32 and a.shape == b.shape
    return torch.equal(a.cpu().to(torch.complex64), b.cpu().to(torch.complex64))


def in_types(value, types: dict):
    """The same structure with tensors and dtypes replaced by those of `types`."""
    if isinstance(value, torch.dtype):
        return types.get(value, value)
    if isinstance(value, dict):
        return {k: in_types(v, types) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(in_types(v, types) for v in value)
    return map_tensors(value, lambda t: t.to(types.get(t.dtype, t.dtype)))


def assert_rounded(actual, exact, tolerance: float) -> None:
    """actual, of complex32 and float16, is what exact, of complex64 and float32, is rounded to."""
    got, want = tensors_in(actual), tensors_in(exact)
    assert len(got) == len(want)
    for a, e in zip(got, want):
        assert a.dtype == HALF.get(e.dtype, e.dtype) and a.shape == e.shape
        a, e = a.detach().cpu(), e.detach().to(a.dtype)  # beyond half's range both are infinite
        if a.is_complex():
            a, e = (torch.view_as_real(t.resolve_conj()).float() for t in (a, e))
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance, equal_nan=True)


def only_here(name: str) -> bool:
    return name in OPS and name not in REFUSED and not OPS[name].supports_dtype(torch.complex32, "cpu")


@pytest.mark.parametrize("name", [name for name in NAMES if only_here(name)])
def test_samples_that_the_cpu_refuses(name):
    """Beside the CPU's complex64 from the same numbers."""
    op, tolerance = OPS[name], SEVERAL if name in COMPOSITES else ONE_ROUNDING
    for sample in chosen_samples(op, 2, torch.complex64, requires_grad=False):
        halves = in_types((sample.input, sample.args, sample.kwargs), HALF)
        exact = Call(*in_types(halves, SINGLE))
        sample.input, sample.args, sample.kwargs = halves
        device = Call.of(op, sample, DEVICE)
        assert_rounded(device.run(op, sample), exact.run(op, sample), tolerance)


@pytest.mark.parametrize("layout", [lambda t: t, lambda t: t.t(), lambda t: t[1:, ::2], lambda t: t.conj()])
def test_copies(pairs, layout):
    z = layout(pairs.to("mps"))
    assert same(z, layout(pairs))
    assert same(z.clone(), layout(pairs)) and same(z.contiguous(), layout(pairs))
    assert torch.equal(z.to(torch.complex64).cpu(), layout(pairs).to(torch.complex64))
    assert same(z.to(torch.complex64).chalf(), layout(pairs))
    target = torch.empty(3, *z.shape, dtype=torch.complex32, device="mps")
    assert same(target.copy_(z), layout(pairs).expand(3, *z.shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_conversions(pairs, dtype):
    x = torch.arange(6).to(dtype)
    assert same(x.to("mps").chalf(), x.to(torch.complex64).to(torch.complex32))
    target = torch.ones(6, dtype=torch.complex32, device="mps").conj()
    assert torch.equal(target.copy_(x.to("mps")).cpu().to(torch.complex64), x.to(torch.complex64))
    if dtype.is_floating_point:
        assert torch.equal(pairs.to("mps").real.to(dtype).cpu(), pairs.real.to(dtype))
    into = torch.zeros(6, dtype=torch.complex32, device="mps")  # an operator of real numbers converts its result
    torch.add(x.to("mps"), x.to("mps"), out=into)
    assert same(into, (x + x).to(torch.complex32))
    with_complex = x.to("mps") + pairs.flatten()[:6].to("mps")
    exact = x + pairs.flatten()[:6].to(torch.complex64)
    assert_rounded(with_complex.chalf(), exact.to(torch.complex64), ONE_ROUNDING)
    assert with_complex.dtype == torch.promote_types(dtype, torch.complex32)


def test_values_and_views(pairs):
    z = pairs.to("mps")
    assert same(z.view(7, 5).permute(1, 0)[2:], pairs.view(7, 5).permute(1, 0)[2:])
    assert torch.equal(torch.view_as_real(z).cpu(), torch.view_as_real(pairs))
    assert same(torch.view_as_complex(torch.view_as_real(z)), pairs)
    assert z[1, 2].item() == pairs[1, 2].item() and z.tolist() == pairs.tolist()
    z[0] = 2 - 1j
    z.imag[1] = 3
    assert z[0, 3].item() == 2 - 1j and z[1, 0].imag.item() == 3
    assert same(torch.zeros(3, dtype=torch.complex32, device="mps"), torch.zeros(3, dtype=torch.complex32))
    assert same(torch.cat([pairs.to("mps")] * 2), torch.cat([pairs] * 2))
    large = [torch.full((3,), 1e6 - 2j, dtype=torch.complex32, device=device) for device in ("cpu", "mps")]
    assert same(large[1], large[0])
    torch.testing.assert_close(z, z.clone())
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        torch.testing.assert_close(z, z + 1)


def test_parts_and_printing(pairs):
    real, imag = torch.randn(2, 9, generator=torch.Generator().manual_seed(1)).half()
    z = torch.complex(real.to("mps"), imag.to("mps"))
    assert same(z, torch.complex(real, imag))
    polar = torch.polar(real.abs().to("mps"), imag.to("mps"))
    assert_rounded(polar, torch.polar(real.abs().float(), imag.float()), ONE_ROUNDING)
    words = repr(pairs.to("mps")).split()
    words.remove("device='mps:0',")
    assert words == repr(pairs).split()


# One kernel of each kind: elements and words of four, strides and broadcasts, sums of rows, columns and all, sums in
# memory, products of short and long sides.
SHAPES = [(3, 5), (64, 33), (1, 4096), (2050, 8)]
CALLS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "mul_strided": lambda a, b: a.t() * b.t(),
    "broadcast": lambda a, b: a * b[:1] + b[:, :1],
    "scalar": lambda a, b: (a * (2 - 1j) + 0.1) / 3,
    "sum_rows": lambda a, b: a.sum(1),
    "mean_columns": lambda a, b: a.mean(0),
    "sum": lambda a, b: a.sum(),
    "norm": lambda a, b: torch.linalg.vector_norm(a, dim=1),
    "cumsum": lambda a, b: a.cumsum(0),
    "matmul": lambda a, b: a[:70] @ b.mT,
    "conjugates": lambda a, b: a.mH[:9] @ b.conj(),
    "index_add": lambda a, b: a.index_add(0, torch.zeros(len(b), dtype=torch.int64, device=b.device), b),
    "scatter_add": lambda a, b: a.new_zeros(a.shape[0], 70).scatter_add(1, (b.real > 0).long(), b),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sizes(name, shape):
    """Sums of thousands stay in single precision: only the result is rounded."""
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(shape, dtype=torch.complex64, generator=generator).chalf() for _ in range(2))
    got = CALLS[name](a.to("mps"), b.to("mps"))
    exact = CALLS[name](a.to(torch.complex64), b.to(torch.complex64))
    tolerance = 4e-3 if name in ("broadcast", "scalar") else ONE_ROUNDING  # two and three operators
    scale = float(torch.view_as_real(exact).abs().max()) if exact.is_complex() else float(exact.max())
    assert_rounded(got / scale, exact / scale, 2 * tolerance)


def test_gradients():
    x = torch.randn(4, 2, device="mps").half().requires_grad_()
    torch.view_as_complex(x).real.sum().backward()
    assert x.grad.tolist() == [[1.0, 0.0]] * 4


@pytest.mark.parametrize(
    "function",
    [
        lambda z, w: z * w,
        lambda z, w: z / (w + 3),
        lambda z, w: (z - w).abs(),
        lambda z, w: z.exp() + w.sigmoid(),
        lambda z, w: z.sum(0) - w.mean(),
        lambda z, w: z @ w.mH,
        lambda z, w: torch.where(z.real > 0, z, w.conj()),
        lambda z, w: z[:, [0, 0, 1]] * w[:, :3].sgn(),
    ],
)
def test_gradients_of_arithmetic(function):
    z, w = torch.randn(2, 5, 7, dtype=torch.complex64, generator=torch.Generator().manual_seed(3)).chalf()
    found = []
    for dtype, device in ((torch.complex32, "mps"), (torch.complex64, "cpu")):
        leaves = [t.to(device, dtype).requires_grad_() for t in (z, w)]
        result = function(*leaves)
        result.backward(torch.ones_like(result))
        found.append([leaf.grad for leaf in leaves])
    assert_rounded(*found, 4e-3)  # a formula is two to four operators, each of which rounds


def test_autocast_leaves_complex_numbers(pairs):
    with torch.autocast("mps", torch.float16):
        for dtype in (torch.complex32, torch.complex64):
            z = pairs.to("mps", dtype)
            assert (z @ z.mT).dtype == (z * z).dtype == z.sum().dtype == dtype


@pytest.mark.parametrize(
    "function",
    [
        torch.sort,
        torch.floor,
        torch.linalg.inv,
        torch.linalg.cholesky,
        torch.linalg.lu_factor,
        torch.linalg.qr,
        torch.linalg.eig,
        torch.linalg.svdvals,
        lambda z: torch.linalg.solve(z, z),
        lambda z: torch.linalg.solve_triangular(z, z, upper=True),
        lambda z: z < z,
        lambda z: torch.fft.fft(z.real),
        lambda z: torch.softmax(z, 0),
        lambda z: torch.nn.functional.max_pool2d(z[None], 2),
        lambda z: torch.complex(z.real, z.imag.float()),
        lambda z: torch.view_as_complex(torch.view_as_real(z)[..., :1]),
    ],
)
def test_errors_are_those_of_the_cpu(pairs, function):
    words = []
    for device in ("cpu", "mps"):
        with pytest.raises(Exception) as error:  # noqa: PT011 - type and words are compared
            function(pairs[:5, :5].contiguous().to(device))
        words.append((error.type, str(error.value).replace("MPS", "CPU").strip()))
    assert words[0] == words[1]


def test_fourier_transforms_raise(pairs):
    for function in (torch.fft.fft, torch.fft.irfft):
        with pytest.raises(RuntimeError, match="Unsupported dtype ComplexHalf"):
            function(pairs.to("mps"))
