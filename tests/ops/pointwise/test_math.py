"""Accuracy of the functions, as docs/numerics.md promises it, and their special values."""

import math
from pathlib import Path

import mpmath
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

NUMERICS = Path(__file__).parents[3] / "docs" / "numerics.md"
SAMPLES = 4000
INF, NAN = math.inf, math.nan
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.5, -2.5, 1e-30, -1e-30, 100.0, -100.0)
SPECIAL += (3e38, -3e38, INF, -INF, NAN)
PAIRWISE = ["div", "pow", "atan2", "hypot", "fmod", "remainder", "floor_divide", "maximum", "fmin", "xlogy", "copysign"]
SHIFTS_AND_DIVISORS = (torch.bitwise_left_shift, torch.bitwise_right_shift, torch.gcd, torch.lcm, torch.maximum)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def table(columns, header="function"):
    """Rows of the tables of docs/numerics.md with this first word and number of columns, as lists of texts."""
    found = []
    for block in NUMERICS.read_text().split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
        if rows and rows[0][0] == header and len(rows[0]) == columns:
            found += rows[2:]
    return found


def function(name):
    value = torch
    for part in name.split("."):
        value = getattr(value, part)
    return value


# PyTorch's own float64 is off by up to 3e-6 for these (just above x = 5, just below x = -2.09).
BY_MPMATH = {
    "special.bessel_j0": lambda x: mpmath.besselj(0, x),
    "special.bessel_j1": lambda x: mpmath.besselj(1, x),
    "special.bessel_y0": lambda x: mpmath.bessely(0, x),
    "special.bessel_y1": lambda x: mpmath.bessely(1, x),
    "special.airy_ai": mpmath.airyai,
}


def exact(name, arguments):
    """The function's values in float64."""
    if name in BY_MPMATH:
        return torch.tensor([float(BY_MPMATH[name](x)) for x in arguments[0].tolist()], dtype=torch.float64)
    return function(name)(*[a.double() for a in arguments])


def interval(text):
    low, high = text.split(",")
    return float(low), float(high)


def samples(low, high, seed):
    """Half uniform, half with uniformly distributed exponents (where the interval spans decades), in float32."""
    generator = torch.Generator().manual_seed(seed)
    uniform = low + (high - low) * torch.rand(SAMPLES // 2, generator=generator, dtype=torch.float64)
    largest = max(abs(low), abs(high))
    smallest = min(abs(low), abs(high)) if low * high > 0 else largest * 1e-6
    share = torch.rand(SAMPLES // 2, generator=generator, dtype=torch.float64)
    spread = smallest * (largest / smallest) ** share
    if low < 0 < high:
        spread = spread * (1 - 2 * torch.randint(0, 2, spread.shape, generator=generator))
    elif high <= 0:
        spread = -spread
    return torch.cat((uniform, spread.clamp(low, high))).float()


def ulps(got, reference, least):
    """Errors in ulp of float32 at max(|reference|, least)."""
    magnitude = reference.abs().clamp_min(max(least, 2.0**-126))
    return (got.double() - reference).abs() / torch.exp2(torch.floor(torch.log2(magnitude)) - 23)


def check(name, arguments, limit, least, mps):
    if name in BY_MPMATH:
        arguments = [a[::8] for a in arguments]
    got = function(name)(*[a.to(mps) for a in arguments]).cpu()
    reference = exact(name, arguments)
    plain = reference.isfinite() & (reference.abs() < 3e38) & ((reference.abs() > 2.0**-126) | (reference == 0))
    assert plain.sum() > len(got) // 2
    errors = ulps(got, reference, least)[plain]
    worst = int(errors.nan_to_num(nan=INF).argmax())
    where = [a[plain][worst].item() for a in arguments]
    assert errors[worst] <= limit, f"{name}{tuple(where)}: {got[plain][worst]} for {reference[plain][worst]}"


@pytest.mark.parametrize("row", table(4), ids=lambda row: f"{row[0]}({row[1]})")
def test_accuracy_of_one_argument(row, mps):
    name, domain, limit, least = row
    check(name, [samples(*interval(domain), seed=1)], float(limit), float(least or 0), mps)


@pytest.mark.parametrize("row", table(5), ids=lambda row: f"{row[0]}({row[1]}; {row[2]})")
def test_accuracy_of_two_arguments(row, mps):
    name, first, second, limit, least = row
    a, b = samples(*interval(first), seed=1), samples(*interval(second), seed=2)
    b = b[torch.randperm(len(b), generator=torch.Generator().manual_seed(3))]
    if "polynomial" in name:
        b = b.floor()
    check(name, [a, b], float(limit), float(least or 0), mps)


def same(got, expected, signed_zeros=True):
    """Equal to 1e-5, with the same NaNs, infinities and signs of zero."""
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-30, equal_nan=True)
    zeros = (expected == 0) & signed_zeros
    assert torch.equal(got.signbit()[zeros], expected.signbit()[zeros])


# Where the CPU's own float32 has lost the phase of a large argument (sinc of an integer is 0), or the sign of zero.
UNLIKE_THE_CPU = {
    "sinc": (1.0, -1.0, 2.0, -2.0, 100.0, -100.0, 3e38, -3e38),
    "erfinv": (-0.0,),
    "special.bessel_j0": (3e38, -3e38),
    "special.bessel_j1": (3e38, -3e38, -0.0),
    "special.bessel_y0": (3e38,),
    "special.bessel_y1": (3e38,),
    "special.airy_ai": (3e38, -3e38),
    "special.i1": (-0.0,),
    "special.i1e": (-0.0,),
    "special.entr": (-0.0,),
}


@pytest.mark.parametrize("name", sorted({row[0] for row in table(4)}))
def test_special_values_of_one_argument(name, mps):
    skip = {str(v) for v in UNLIKE_THE_CPU.get(name, ())}
    x = torch.tensor([v for v in SPECIAL if str(v) not in skip])
    same(function(name)(x.to(mps)).cpu(), function(name)(x))


@pytest.mark.parametrize("name", PAIRWISE)
def test_special_values_of_two_arguments(name, mps):
    a, b = torch.meshgrid(torch.tensor(SPECIAL), torch.tensor(SPECIAL), indexing="ij")
    if name in ("fmod", "remainder", "floor_divide"):  # the CPU gives NaN for finite operands very far apart
        near = ~(a.isfinite() & b.isfinite() & ((a / b).abs() > 1e20) & (b != 0))
        a, b = a[near], b[near]
    # Which of two zeros is the larger is anybody's choice on the CPU.
    signed_zeros = name not in ("maximum", "fmin")
    same(function(name)(a.to(mps), b.to(mps)).cpu(), function(name)(a, b), signed_zeros)


def edge_values(dtype):
    info = torch.iinfo(dtype)
    values = {info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 8, 15, 31, 32, 63, 64, 100}
    if dtype != torch.uint8:
        values |= {-1, -2, -3, -7, -8, -31, -32, -64, -100}
    return torch.tensor(sorted(v for v in values if info.min <= v <= info.max), dtype=dtype)


def truncated(a, b):
    return torch.div(a, b, rounding_mode="trunc")


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("f", [torch.floor_divide, truncated, torch.remainder, torch.fmod], ids=lambda f: f.__name__)
def test_integer_division(f, dtype, mps):
    a, b = torch.meshgrid(edge_values(dtype), edge_values(dtype), indexing="ij")
    lowest = torch.iinfo(dtype).min
    defined = (b != 0) & ~((a == lowest) & (b == -1) & (lowest < 0))
    got = f(a.to(mps), b.to(mps)).cpu()
    assert torch.equal(got[defined], f(a[defined], b[defined]))
    assert torch.all(got[b == 0] == 0)
    if lowest < 0:
        wrapped = lowest if f in (torch.floor_divide, truncated) else 0
        assert torch.all(got[(a == lowest) & (b == -1)] == wrapped)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("f", SHIFTS_AND_DIVISORS, ids=lambda f: f.__name__)
def test_integer_edges(f, dtype, mps):
    a, b = torch.meshgrid(edge_values(dtype), edge_values(dtype), indexing="ij")
    if f in (torch.gcd, torch.lcm):  # the CPU's |MIN| is MIN, and its remainder by -1 traps
        kept = (a != torch.iinfo(dtype).min) & (b != torch.iinfo(dtype).min)
        a, b = a[kept], b[kept]
    assert torch.equal(f(a.to(mps), b.to(mps)).cpu(), f(a, b))


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_polygamma(n, mps):
    x = torch.cat((samples(0.05, 30, seed=4), samples(-3.9, -0.1, seed=5)))
    got, reference = torch.polygamma(n, x.to(mps)).cpu(), torch.polygamma(n, x.double())
    assert ulps(got, reference, 0.0)[x > 2].max() <= 5
    torch.testing.assert_close(got.double(), reference, rtol=2e-4, atol=2e-5)


def test_rounding_to_decimals(mps):
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.675, -1234.5678, 1e9])
    for decimals in (-2, 0, 1, 2, 3):
        assert torch.equal(torch.round(x.to(mps), decimals=decimals).cpu(), torch.round(x, decimals=decimals))


def test_multivariate_gamma_into_out(mps):
    x = torch.linspace(2, 9, 30)
    out = torch.empty(30, device=mps)
    torch.special.multigammaln(x.to(mps), 3, out=out)
    torch.testing.assert_close(out.cpu(), torch.special.multigammaln(x, 3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("exponents", [torch.int32, torch.int64, torch.int8, torch.uint8])
def test_ldexp_by_integers_is_exact(dtype, exponents, mps):
    x = torch.cat((torch.randn(200), torch.tensor([INF, -INF, NAN, 0.0, -0.0]))).to(dtype)
    powers = torch.randint(0 if exponents == torch.uint8 else -30, 30, x.shape).to(exponents)
    expected = (x.double() * 2.0 ** powers.double()).to(dtype)
    torch.testing.assert_close(torch.ldexp(x.to(mps), powers.to(mps)).cpu(), expected, rtol=0, atol=0, equal_nan=True)


def test_ldexp_of_every_kind(mps, flushes):
    x = torch.tensor([1.5, -3.0, 2.0**-140], requires_grad=True)
    far = torch.tensor([[300, -300, 250], [2**40, -(2**40), 1]])
    expected = torch.tensor([[INF, -0.0, 2.0**110], [INF, -0.0, 2.0**-139]])
    if flushes:
        expected[:, 2] = 0.0
    assert torch.equal(torch.ldexp(x.detach().to(mps), far.to(mps)).cpu(), expected)
    torch.ldexp(x.to(mps), torch.tensor([1, 2, 3], device=mps)).sum().backward()
    assert torch.equal(x.grad, torch.tensor([2.0, 4.0, 8.0]))
    whole = torch.tensor([1, 2], device=mps)
    for exponent in (whole, torch.tensor(2), torch.tensor(1.5)):  # of the CPU, too
        torch.testing.assert_close(torch.ldexp(whole, exponent).cpu(), torch.ldexp(whole.cpu(), exponent.cpu()))
    for number in (torch.tensor(2.5), torch.tensor(3), torch.tensor(1 + 2j)):  # of the CPU as well
        torch.testing.assert_close(torch.ldexp(number, whole).cpu(), torch.ldexp(number, whole.cpu()))
    y = torch.ones(2, device=mps)
    assert torch.equal(y.ldexp_(whole).cpu(), torch.tensor([2.0, 4.0]))
    with pytest.raises(RuntimeError, match="ldexp can't be cast to the desired output type Int"):
        torch.ldexp(y, whole, out=torch.ones(2, dtype=torch.int32, device=mps))


@pytest.mark.parametrize("op", [torch.igamma, torch.igammac])
def test_incomplete_gamma_in_every_way_to_a_result(op, mps):
    a = torch.exp(torch.linspace(-9, 13, 401))
    ratios = torch.tensor([1e-3, 0.1, 0.4, 0.499, 0.501, 0.7, 0.9, 0.99, 1, 1.01, 1.1, 1.4, 1.42, 1.499, 1.501, 3, 20])
    a, x = (t.flatten() for t in torch.meshgrid(a, ratios, indexing="ij"))
    x = torch.cat([a * x, torch.linspace(1e-6, 1.2, a.numel())])
    a = torch.cat([a, torch.linspace(1.3, 1e-6, a.numel())])
    got = op(a.to(mps), x.to(mps)).cpu().double()
    # Q is a small difference where x is near 1.1 and a near 0.
    torch.testing.assert_close(got, op(a.double(), x.double()), rtol=3e-6, atol=1e-36)


@pytest.mark.parametrize("op", [torch.igamma, torch.igammac])
def test_incomplete_gamma_at_the_ends(op, mps, flushes):
    inf = torch.inf
    ends = torch.tensor(
        [0, -0.0, 1e-39, 0.5, 1, 8, 20, 21, 200, 201, 1e5, 1.1e5, 1e6, 1e20, 2.5e38, 3.4e38, inf, -inf, -1, -1e-40]
    )
    if flushes:
        ends[(ends != 0) & (ends.abs() < torch.finfo(torch.float32).tiny)] = 0.5
    a, x = (t.flatten() for t in torch.meshgrid(ends, ends, indexing="ij"))
    got = op(a.to(mps), x.to(mps)).cpu()
    wanted = op(a.double(), x.double()).float()
    torch.testing.assert_close(got, wanted, rtol=3e-6, atol=1e-36, equal_nan=True)
    nan = torch.tensor([torch.nan] * 3 + [0.5])
    assert op(nan.to(mps), torch.tensor([0.5, 1, 2, torch.nan]).to(mps)).isnan().all()


@pytest.mark.parametrize("name, middle, spread, length, limit", table(5, header="scan"))
def test_long_scans(name, middle, spread, length, limit, mps):
    generator = torch.Generator().manual_seed(1)
    x = float(middle) + (torch.rand(int(length), generator=generator) * 2 - 1) * float(spread)
    expected = getattr(x.double(), name)(0)
    error = (getattr(x.to(mps), name)(0).cpu().double() - expected).abs().max() / expected.abs().max()
    assert error <= float(limit)


NORMS = {
    "layer_norm": lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b),
    "rms_norm": lambda x, w, b: F.rms_norm(x, x.shape[1:], w),
    "group_norm": lambda x, w, b: F.group_norm(x, 4, w, b),
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "instance_norm": lambda x, w, b: F.instance_norm(x, None, None, w, b),
    "var": lambda x, w, b: x.var(1),
    "std": lambda x, w, b: x.std(1),
    "var_mean": lambda x, w, b: torch.cat(torch.var_mean(x, 1)),
}


@pytest.mark.parametrize("name, shape, mean, limits", [(*r[:3], r[3:]) for r in table(7, header="norm")])
def test_norms_of_long_rows(name, shape, mean, limits, mps):
    generator = torch.Generator().manual_seed(1)
    shape = [int(n) for n in shape.split(" x ")]
    x = torch.randn(shape, generator=generator) + float(mean)
    channels = shape[1:] if name in ("layer_norm", "rms_norm") else shape[1:2]
    weight, bias = (torch.randn(channels, generator=generator) + about for about in (1.0, 0.0))

    def results(device, dtype):
        inputs = [t.to(device, dtype).requires_grad_() for t in (x, weight, bias)]
        out = NORMS[name](*inputs)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(device, dtype)
        return [out, *torch.autograd.grad(out, inputs, grad, allow_unused=True)]

    for got, expected, limit in zip(results(mps, torch.float32), results("cpu", torch.float64), limits, strict=True):
        assert (expected is None) == (limit == "")
        if limit:
            assert (got.cpu().double() - expected).abs().max() / expected.abs().max() <= float(limit)
