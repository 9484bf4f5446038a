"""complex64: PyTorch's own samples of every operator that computes in it, forward and backward, and what they lack."""

from __future__ import annotations

import cmath
import itertools
import math
from pathlib import Path
from re import MULTILINE, findall

import pytest
import torch
from op_db_support import OPS, run_op

pytestmark = pytest.mark.usefixtures("mps", "no_fallback")

POINTWISE = (
    "abs acos acosh add addcdiv addcmul angle asin asinh atan atanh conj_physical cos cosh div-no_rounding_mode "
)
POINTWISE += "eq exp exp2 expm1 float_power imag isclose isfinite isinf isnan isreal ldexp lerp log log10 log1p log2 "
POINTWISE += "logaddexp logical_and logical_not logical_or logical_xor masked_fill mul ne neg nn.functional.l1_loss "
POINTWISE += "nn.functional.silu-complex nn.functional.softsign nn.functional.tanhshrink positive pow real reciprocal "
POINTWISE += (
    "__radd__ __rdiv__ __rmul__ __rpow__ __rsub__ rsqrt rsub sgn sigmoid sin sinc sinh sqrt square sub tan tanh "
)
POINTWISE += "true_divide view_as_real where fill complex polar"
REDUCTIONS = "all allclose any count_nonzero cumprod cumsum cumulative_trapezoid diff dist equal linalg.vector_norm "
REDUCTIONS += (
    "logcumsumexp logsumexp mean nn.functional.normalize nn.functional.pairwise_distance norm norm-fro norm-inf "
)
REDUCTIONS += "prod std std-unbiased std_mean std_mean-unbiased sum sum_to_size trace trapezoid trapz var "
REDUCTIONS += "var-unbiased var_mean var_mean-unbiased"
PRODUCTS = "addbmm addmm addmm-decomposed addmv addr baddbmm bmm corrcoef cov cross dot einsum inner kron linalg.cross "
PRODUCTS += "linalg.multi_dot linalg.vecdot __rmatmul__ matmul mm mv nn.functional.linear outer "
PRODUCTS += "tensordot vdot"
COPIES = "byte cat cfloat clone contiguous diag diag_embed diagonal_copy expand flip float gather half index_add "
COPIES += (
    "index_copy index_fill index_put index_select int long masked_scatter masked_select narrow_copy nonzero permute "
)
COPIES += "put repeat resolve_conj roll rot90 scatter scatter_add short stack take tril triu unfold_copy bool"
NAMES = " ".join((POINTWISE, REDUCTIONS, PRODUCTS, COPIES)).split()


# Its gradient divides sums of exponentials that differ by many orders of magnitude: the CPU is off by as much.
TOLERANCE = {"logcumsumexp": 3e-3}


@pytest.mark.parametrize("name", [n for n in NAMES if n in OPS])
def test_samples_of_op_db(name):
    reports = run_op(OPS[name], torch.complex64, 6, tolerance=TOLERANCE.get(name, 3e-5))
    for phase, report in reports.items():
        assert report.outcome in ("pass", "none"), f"{phase}: {report.messages[report.outcome]}"


def numbers(*shape, seed=0, dtype=torch.complex64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


UNARY = "exp expm1 log log1p log2 log10 sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid"
EXACT = {"log1p": lambda z: cmath.log(1 + z), "expm1": lambda z: cmath.exp(z) - 1, "log2": lambda z: cmath.log(z, 2)}
EXACT |= {"rsqrt": lambda z: 1 / cmath.sqrt(z), "sigmoid": lambda z: 1 / (1 + cmath.exp(-z))}


@pytest.mark.parametrize("name", UNARY.split())
def test_accuracy(name):
    """Relative to double precision in all quadrants, from 1e-4 to 1e3."""
    z = numbers(4000) * torch.logspace(-4, 3 if name in ("log", "log2", "log10", "sqrt", "rsqrt") else 1, 4000)
    function = getattr(torch, name)
    got, reference = function(z.to("mps")).cpu().to(torch.complex128), function(z.to(torch.complex128))
    errors = (got - reference).abs() / reference.abs().clamp_min(1e-30)
    worst = int(errors.argmax())
    assert errors[worst] < 2e-6, f"{name}({z[worst]}) = {got[worst]} for {reference[worst]}"


@pytest.mark.parametrize("name", ["sqrt", "log", "asin", "acos", "atan", "asinh", "acosh", "atanh"])
def test_branch_cuts(name):
    """Both sides of a cut are told apart by the sign of zero."""
    parts = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0)
    for re, im in itertools.product(parts, parts):
        if re != 0 and im != 0 or (name in ("atan", "atanh") and 1 in (abs(re), abs(im))):
            continue
        try:
            expected = getattr(cmath, name)(complex(re, im))
        except ValueError:
            continue
        got = getattr(torch, name)(torch.tensor([complex(re, im)], device="mps")).item()
        assert cmath.isclose(got, expected, rel_tol=1e-5, abs_tol=1e-6), f"{name}({re}, {im}): {got} for {expected}"


def test_mixed_operands():
    # No zeros, whose powers may hold NaN: test_powers_of_zero.
    z, x, n = numbers(4, 33), torch.randn(33), torch.tensor([[-3], [1], [2], [3]])
    for f in (torch.add, torch.mul, torch.sub, torch.eq, torch.pow, lambda a, b: torch.where(a.real > 0, a, b)):
        for a, b in itertools.permutations((z, x, n, x.half()), 2):
            if a.is_complex() or b.is_complex():
                expected = f(a, b)
                got = f(a.to("mps"), b.to("mps"))
                assert got.dtype == expected.dtype
                torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((z.to("mps") * 2j + 1.5 - (1 - 1j)).cpu(), z * 2j + 1.5 - (1 - 1j))


def test_parts():
    """real and imag are views, complex and polar make what they come from."""
    z = numbers(5, 7)
    on_device = z.to("mps")
    on_device.real.mul_(2)
    on_device.imag.copy_(torch.arange(7.0))
    z.real.mul_(2)
    z.imag.copy_(torch.arange(7.0))
    assert torch.equal(on_device.cpu(), z)
    assert torch.equal(torch.complex(on_device.real.t(), on_device.imag.t()).cpu(), z.t())
    torch.testing.assert_close(torch.polar(on_device.abs(), on_device.angle()).cpu(), z, rtol=1e-5, atol=1e-5)
    on_device.conj_physical_()
    assert torch.equal(on_device.cpu(), z.conj())
    assert torch.equal(torch.zeros(5, 7, dtype=torch.complex64, device="mps").copy_(on_device.real).cpu().real, z.real)
    with pytest.raises(RuntimeError, match="In-place abs is not supported for complex tensors"):
        on_device.abs_()


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1, 1), (17, 1, 33), (40, 70, 50), (5, 3000, 2), (0, 4, 5), (3, 0, 5)])
def test_products_of_conjugates_and_transposes(shape):
    m, k, n = shape
    forms = (lambda t: t, lambda t: t.mT.contiguous().mT, lambda t: t.conj(), lambda t: t.mT.contiguous().mH)
    a, b, c = numbers(m, k), numbers(k, n, seed=1), numbers(m, n, seed=2)
    for f, g in itertools.product(forms, forms):
        x, y = f(a.to("mps")), g(b.to("mps"))
        torch.testing.assert_close((x @ y).cpu(), f(a) @ g(b), rtol=1e-4, atol=2e-4)
        got = torch.addmm(c.to("mps").conj(), x, y, beta=2j, alpha=1 - 1j)
        torch.testing.assert_close(
            got.cpu(), torch.addmm(c.conj(), f(a), g(b), beta=2j, alpha=1 - 1j), rtol=1e-4, atol=4e-4
        )


def test_vectors_and_out():
    a, b = numbers(1000), numbers(1000, seed=1)
    x, y = a.to("mps"), b.to("mps")
    torch.testing.assert_close(torch.vdot(x, y).cpu(), torch.vdot(a, b), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(torch.vdot(x.conj(), y).cpu(), torch.vdot(a.conj(), b), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(torch.dot(x, y.conj()).cpu(), torch.dot(a, b.conj()), rtol=1e-4, atol=1e-3)
    m = a[:900].view(30, 30)
    out = torch.full((30, 30), complex("nan"), dtype=torch.complex64, device="mps")
    torch.mm(m.to("mps"), m.to("mps"), out=out)
    torch.testing.assert_close(out.cpu(), m @ m, rtol=1e-4, atol=1e-4)
    view = torch.full((30, 30), complex("nan"), dtype=torch.complex64, device="mps").conj()
    view.copy_(m)
    view.addmm_(m.to("mps"), m.to("mps"))
    torch.testing.assert_close(view.cpu(), m + m @ m, rtol=1e-4, atol=1e-4)


def test_gradients_of_linear():
    x, w, b = numbers(2, 5, 7), numbers(3, 7, seed=1), numbers(3, seed=2)
    results = []
    for device in ("cpu", "mps"):
        leaves = [t.to(device).requires_grad_() for t in (x, w, b)]
        out = torch.nn.functional.linear(*leaves)
        results.append([g.cpu() for g in torch.autograd.grad(out, leaves, out.detach() * 1j)])
    for got, expected in zip(results[1], results[0]):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp"])
def test_scans(name):
    z = numbers(5, 400) * 0.9
    for dim, layout in itertools.product((0, 1), (lambda t: t, lambda t: t.conj(), lambda t: t.t().contiguous().t())):
        expected = getattr(torch, name)(layout(z), dim)
        got = getattr(torch, name)(layout(z.to("mps")), dim)
        if name == "logcumsumexp":  # the imaginary part is known up to whole turns
            got, expected = got.exp(), expected.exp()
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_truth_is_in_both_parts():
    parts = (0.0, -0.0, 1.0, cmath.nan, cmath.inf)
    z = torch.tensor([complex(re, im) for re in parts for im in parts], dtype=torch.complex64)
    for view in (lambda t: t, lambda t: t[::2], lambda t: t.conj(), lambda t: t.view(5, 5).t(), lambda t: t[1]):
        expected = view(z).bool()
        assert torch.equal(view(z.to("mps")).bool().cpu(), expected)
        assert torch.equal(torch.zeros_like(expected).copy_(view(z.to("mps"))), expected)
        assert torch.equal(torch.zeros_like(expected, device="mps").copy_(view(z)).cpu(), expected)
    assert torch.tensor([0j, 1j, 1], device="mps").to(torch.complex32).bool().tolist() == [False, True, True]


def test_nan_to_num():
    parts = (0.5, -3.0, cmath.nan, cmath.inf, -cmath.inf)
    z = torch.tensor([complex(re, im) for re in parts for im in parts], dtype=torch.complex64)
    for options in ({}, {"nan": 1.0, "posinf": 2.0, "neginf": 3.0}):
        for view in (lambda t: t, lambda t: t[::2], lambda t: t.conj()):
            expected = torch.nan_to_num(view(z), **options)
            assert torch.equal(torch.nan_to_num(view(z.to("mps")), **options).cpu(), expected)


DIFFERENCES = Path(__file__).resolve().parents[3] / "docs" / "differences.md"
NAN_ON_THE_CPU = findall(r"^\| ([a-z0-9]+) \| .+ \| NaN \| ", DIFFERENCES.read_text(), MULTILINE)
EXTREMES = (0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0, 2e-38, -2e-38, 1e-20, 1e19, 1e38, -1e38, 3e38)
EXTREMES += (88.0, -88.0, 100.0, -104.0, 170.0, math.inf, -math.inf, math.nan)


def extremes():
    return torch.tensor([complex(a, b) for a in EXTREMES for b in EXTREMES])


def same_part(got, wanted):
    """Equal, also as NaN, to 1e-5 and to what devices may flush."""
    return torch.isclose(got, wanted, rtol=1e-5, atol=2**-126, equal_nan=True)


# What ATen makes otherwise for processors without AVX2.
BY_PARTS = {"sgn": lambda z: torch.view_as_complex(torch.view_as_real(z) / z.abs().unsqueeze(-1))}
BY_PARTS |= {"log2": lambda z: torch.view_as_complex(torch.view_as_real(z.log()) / math.log(2))}


@pytest.mark.parametrize("name", [*UNARY.split(), "exp2", "sgn", "square", "abs", "angle", "reciprocal"])
def test_extremal_values(name):
    """As the CPU has them, in one precision or the other. Its NaN of the functions in the table are numbers here."""
    agree, excused, *results = against_the_cpu(name, extremes())
    bad = ~(agree | excused)
    assert not bad.any(), [tuple(str(t[i].item()) for t in results) for i in bad.nonzero()[:4]]
    assert name not in NAN_ON_THE_CPU or (~agree).any()


def against_the_cpu(name, z):
    """Where the device agrees with the CPU, where it need not; z, and what the device and the CPU make of it."""
    function, parts = getattr(torch, name), lambda t: torch.view_as_real(t.to(torch.complex64))
    got, *wanted = function(z.to("mps")).cpu(), function(z), function(z.to(torch.complex128))
    references = [*wanted, BY_PARTS[name](z)] if name in BY_PARTS else wanted
    agree = torch.stack([same_part(parts(got), parts(w)).all(1) for w in references]).any(0)
    return agree, wanted[0].isnan() & (name in NAN_ON_THE_CPU), z, got, *wanted


PARTS = (math.inf, -math.inf, math.nan, 0.0, -2.5, 1.5)
SPECIAL = torch.tensor([complex(a, b) for a in PARTS for b in PARTS])


@pytest.mark.parametrize("name", ["pow", "div"])
def test_infinities_of_two_operands(name):
    """As the CPU has them; powers of 0, and of numbers to the power of 0, as NumPy has them, which are no NaN."""
    a, b = torch.cartesian_prod(torch.arange(len(SPECIAL)), torch.arange(len(SPECIAL))).unbind(1)
    a, b = SPECIAL[a], SPECIAL[b]
    function = getattr(torch, name)
    got, wanted = function(a.to("mps"), b.to("mps")).cpu(), function(a, b)
    if name == "pow":
        wanted[(a == 0) & (b.real > 0)] = 0
        wanted[(b == 0) & ~a.isnan()] = 1
    bad = ~torch.isclose(got, wanted, rtol=1e-5, equal_nan=True)
    assert not bad.any(), [tuple(str(t[i].item()) for t in (a, b, got, wanted)) for i in bad.nonzero()[:6]]


def kinds(z):
    """Of each part: 0 for a finite one, 1 and -1 for infinities, 2 for NaN."""
    parts = torch.view_as_real(z.cpu())
    return torch.where(parts.isfinite(), 0.0, parts).nan_to_num(nan=2, posinf=1, neginf=-1)


ZEROS = torch.tensor([complex(a, b) for a in (0.0, -0.0) for b in (0.0, -0.0)]).unsqueeze(1)
BASES = {"complex": ZEROS, "real": ZEROS.real, "integer": ZEROS.real.int(), "number": 0.0, "complex number": 0j}


@pytest.mark.parametrize("base", BASES)
def test_powers_of_zero(base):
    """Infinite, of no direction, for exponents with a negative real part; part by part as the CPU has them."""
    zero, exponents = BASES[base], extremes()
    exponents = exponents[~exponents.imag.isinf()]
    got = (zero.to("mps") if isinstance(zero, torch.Tensor) else zero) ** exponents.to("mps")
    wanted = zero**exponents
    agree = (kinds(got) == kinds(wanted)).all(-1) | (kinds(wanted) == 2).all(-1)
    assert agree.all(), [(got[tuple(i)].item(), wanted[tuple(i)].item()) for i in (~agree).nonzero()[:4].tolist()]
    assert (kinds(got)[..., 0] == 1).any()


@pytest.mark.parametrize("exponent", [-1, -2, -1.5, -0.5, -math.inf, 2, 0.5, -1 + 1j, -2 - 0.5j])
def test_zero_to_the_power_of_a_number(exponent):
    got, wanted = kinds(ZEROS.to("mps") ** exponent), kinds(ZEROS**exponent)
    assert torch.equal(got, wanted)


def test_accuracy_of_pow():
    """Rounding errors of the exponent would be relative errors of the result; the CPU's are up to 1.5e-5 here."""
    z, w = numbers(4000) * torch.logspace(-4, 3, 4000), 8 * numbers(4000, seed=1)
    z[:500] = -z[:500].abs()  # on the cut
    reference = torch.pow(z.to(torch.complex128), w.to(torch.complex128))
    fits = (reference.abs() > 1e-30) & (reference.abs() < 1e38)
    errors = (torch.pow(z.to("mps"), w.to("mps")).cpu().to(torch.complex128) - reference).abs() / reference.abs()
    assert errors[fits].max() < 2e-6 and fits.sum() > 2000


def test_mean_of_infinities():
    """The sum is divided by a complex number, as on the CPU."""
    z = torch.stack((SPECIAL, torch.full_like(SPECIAL, 1 + 2j)))
    got, wanted = (torch.view_as_real(t.mean(0)).cpu() for t in (z.to("mps"), z))
    torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("name", ["angle", "log", "log10", "asin", "acos"])
def test_angles_of_two_infinities(name):
    """Bit by bit: a number beside an infinity is compared as one with it."""
    z = torch.tensor([complex(a, b) for a in (math.inf, -math.inf) for b in (math.inf, -math.inf)])
    function = getattr(torch, name)
    assert torch.equal(function(z.to("mps")).cpu(), function(z))


@pytest.mark.parametrize("name", ["log1p", "sqrt"])
def test_parts_that_cancel_or_are_far_apart(name):
    """Each part by itself: of log1p next to |1 + z| = 1, of sqrt where one part vanishes beside the other."""
    generator = torch.Generator().manual_seed(0)
    angle = torch.rand(4000, generator=generator, dtype=torch.float64) * 6.28
    size = torch.rand(2, 4000, generator=generator) * 60 - 30
    far = torch.complex(*(torch.randn(2, 4000, generator=generator) * 10**size))
    near = (torch.polar(torch.ones_like(angle), angle) - 1).to(torch.complex64)
    for z in (far, near) if name == "log1p" else (far,):
        function = getattr(torch, name)
        got, wanted = function(z.to("mps")).cpu().to(torch.complex128), function(z.to(torch.complex128))
        for a, b in ((got.real, wanted.real), (got.imag, wanted.imag)):
            # 2^-47: what two floats hold of the terms of |1 + z|^2 - 1, which are up to 4
            assert ((a - b).abs() <= 5e-7 * b.abs() + (3e-14 if z is near else 1e-37)).all()


REAL_ONLY = {
    "layer_norm": lambda z: torch.nn.functional.layer_norm(z, z.shape[1:]),
    "batch_norm": lambda z: torch.nn.functional.batch_norm(z, z.real[0].clone(), z.real[0].abs()),
    "log_normal_": lambda z: z.log_normal_(),
    "exponential_": lambda z: z.exponential_(),
    "geometric_": lambda z: z.geometric_(0.5),
    "bernoulli_": lambda z: z.bernoulli_(0.5),
    "bernoulli_ of a tensor": lambda z: z.bernoulli_(z.real.sigmoid()),
    "bernoulli from complex": lambda z: torch.bernoulli(z),
    "searchsorted": lambda z: torch.searchsorted(z, z),
    "searchsorted a number": lambda z: torch.searchsorted(z.real[0].float(), 1 + 2j),
    "bucketize": lambda z: torch.bucketize(z, z[0]),
    "bucketize between floats": lambda z: torch.bucketize(z, z.real[0].float()),
    "isin": lambda z: torch.isin(z, z[0]),
    "cummax": lambda z: z.cummax(0),
    "mode": lambda z: z.mode(),
}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex32])
@pytest.mark.parametrize("name", REAL_ONLY)
def test_kernels_of_real_numbers_raise_what_the_cpu_does(name, dtype):
    """They would take the real parts for the numbers."""
    found = []
    for device in ("cpu", "mps"):
        with pytest.raises((RuntimeError, NotImplementedError)) as error:
            REAL_ONLY[name](numbers(4, 6).to(dtype).to(device))
        found.append((error.type, str(error.value)))
    assert found[1] == found[0]


def test_dropout_keeps_both_parts():
    z = numbers(64, 33)
    for dtype in (torch.complex64, torch.complex32):
        x = z.to("mps", dtype)
        out, mask = torch.native_dropout(x, 0.25, True)
        assert 0.7 < mask.float().mean().item() < 0.8
        expected = (x * mask / 0.75).to(torch.complex64)
        torch.testing.assert_close(out.to(torch.complex64), expected, rtol=2e-3, atol=1e-5)  # two roundings of halves
        x.requires_grad_()
        out = torch.nn.functional.dropout(x, 0.25)
        out.backward(torch.ones_like(out))
        assert torch.equal(x.grad != 0, out != 0) and 0.7 < (out != 0).float().mean().item() < 0.8
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.native_dropout(torch.ones(4, dtype=torch.int64, device="mps"), 0.5, True)
