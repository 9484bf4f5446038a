"""Fused element-wise work: dtypes, broadcasting, strides, views, dynamic sizes."""

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees, kernel_count

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def chain(a, b, c):
    y = F.gelu(a + b, approximate="tanh").mul(c.float()).clamp(-2, 3)
    return y * torch.where(a > 0, a * c, b).to(torch.float32).sigmoid()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("width", [300, 257, 1])
def test_chain_with_broadcasts_is_one_kernel(mps, width, dynamic):
    codes = compiled_agrees(
        chain, torch.randn(64, width), torch.randn(width), torch.randn(64, 1).half(), dynamic=dynamic
    )
    assert kernel_count(codes) == 1


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(mps, dtype):
    a, b = torch.randn(3, 40, 8).to(dtype), torch.randn(40, 8).to(dtype)
    compiled_agrees(lambda a, b: (a * b + 1).relu() - (a / (b.abs() + 1)).tanh() + F.silu(b), a, b)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(mps, dtype):
    a, b = torch.randint(-120, 120, (2, 64, 12)).to(dtype)
    compiled_agrees(
        lambda a, b: (a + b, a * b, a - b, -a, (a * b) // 3, a % 7, a & b, a | b, a ^ b, ~a, (a + b) > b, a.abs()),
        a,
        b,
    )


@pytest.mark.parametrize("order", [INTEGERS, INTEGERS[::-1]], ids=["narrow first", "wide first"])
def test_one_text_of_several_dtypes(mps, order):
    """What a conversion or a number is in the text of a kernel, it is for several dtypes, which wrap differently."""

    def function(keep, *numbers):
        converted = [keep.to(dtype) for dtype in order]
        yield from (-t for t in converted)
        yield from (~t for t in converted)
        yield from ((t - 1) < 0 for t in converted)
        yield from ((t + 100) > 0 for t in numbers)
        yield from ((t * 100) // 7 for t in numbers)

    numbers = [torch.arange(-64, 64).to(dtype) for dtype in order]
    compiled_agrees(lambda *tensors: list(function(*tensors)), torch.arange(128) % 3 > 0, *numbers)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_conversions(mps, dtype):
    values = torch.tensor([0.0, 1.5, -2.7, 100.0, -3.0, 0.25, 7.0, 2.0] * 8)
    source = values.abs() if dtype == torch.uint8 else values
    compiled_agrees(
        lambda t: [t.to(other) for other in (*FLOATS, torch.int16, torch.int32, torch.int64, torch.bool)],
        source.to(dtype),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_floor_division(mps, dtype):
    """Of floats it is what is left when the remainder is taken off: 9 of 1.0 // 0.1."""
    a = torch.tensor([1.0, 6.0, -1.0, float("inf"), 1.0, 0.0, -0.0, 5.0, -7.5], dtype=dtype)
    b = torch.tensor([0.1, 0.1, 0.1, 2.0, float("inf"), -1.0, 2.0, 0.0, 2.5], dtype=dtype)
    compiled_agrees(lambda a, b: (a // b, a.div(b, rounding_mode="floor"), a // 0.1, 6 // b, a % b), a, b)
    compiled_agrees(lambda i, b: (i // b, i // 0.1, i // 3, i.div(-3, rounding_mode="floor")), torch.arange(9), b)


@pytest.mark.parametrize("dtype", (torch.uint16, torch.uint32, torch.uint64))
def test_unsigned_quotients(mps, dtype):
    """Which eager operators lack, on the CPU too. The largest number is no -1."""
    largest = torch.iinfo(dtype).max
    a, b = [0, 5, largest, largest, largest - 2, largest // 3], [3, largest, largest, 1, largest - 1, 7]
    x, y = (torch.tensor(values, dtype=dtype, device=mps) for values in (a, b))

    def function(x, y):
        return x // y, x % y, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y), x < y, torch.maximum(x, y)

    quotients, rests = [m // n for m, n in zip(a, b)], [m % n for m, n in zip(a, b)]
    less, larger = [m < n for m, n in zip(a, b)], [max(m, n) for m, n in zip(a, b)]
    results = [result.tolist() for result in torch.compile(function, fullgraph=True)(x, y)]
    assert results == [quotients, rests, quotients, rests, less, larger]


@pytest.mark.parametrize("dtype", FLOATS)
def test_conversions_out_of_range(mps, dtype):
    """Narrow integers are cut out of 32 bits, in which what does not fit is the least number, as in eager code."""
    powers = [s * 2.0**k * 1.3 for k in range(0, 70, 3) for s in (1, -1)]
    values = torch.tensor([*powers, float("inf"), -float("inf"), float("nan")]).to(dtype)
    compiled_agrees(lambda t: [(t * 1).to(other) for other in (*INTEGERS, torch.uint16, torch.bool)], values)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_logic(mps, dtype):
    a, b = torch.randint(0, 2, (2, 33, 8)).to(dtype)
    compiled_agrees(
        lambda a, b: (a.logical_and(b), a.logical_or(b), a.logical_xor(b), ~a.bool(), torch.where(a > 0, b, a), a == b),
        a,
        b,
    )


UNARY = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "deg2rad",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
    "digamma",
    "sigmoid",
    "floor",
    "ceil",
    "trunc",
    "round",
    "frac",
    "sign",
    "reciprocal",
    "abs",
    "neg",
    "isnan",
]


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_give_eager_bits(mps, name):
    """One row of pointwise.yaml serves both."""
    x = torch.cat([torch.randn(500) * 3, torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1.0])])
    function = getattr(torch, name)
    eager = function(x.to(mps))
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: function(t), fullgraph=True)(x.to(mps))
    torch.testing.assert_close(compiled, eager, rtol=2e-6 if name == "frac" else 0, atol=0, equal_nan=True)
    zeros = eager == 0
    assert compiled[zeros].signbit().equal(eager[zeros].signbit())


def views(a, b):
    return torch.cat([a.permute(1, 0, 2).reshape(a.shape[1], -1), b.t()], 1).flip(0)[:, 1::2] * 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_views_and_cat(mps, dynamic):
    compiled_agrees(views, torch.randn(8, 16, 20), torch.randn(30, 16), dynamic=dynamic)


@pytest.mark.parametrize("shape", [(64, 96), (33, 57), (1, 5), (0, 4), (200, 3)])
def test_transposed(mps, shape):
    compiled_agrees(lambda a, b: (a.t() + b).contiguous() * 2, torch.randn(shape), torch.randn(shape[::-1]))


def test_padding_reads_nothing_outside(mps):
    compiled_agrees(lambda a: F.pad(a, (1, 2, 3, 0), value=2.5) * 2 + F.pad(a, (2, 1, 0, 3)), torch.randn(5, 9))


def test_in_place(mps):
    def step(p, g):
        p.mul_(0.9).add_(g, alpha=-0.1)
        return p.sum()

    compiled_agrees(step, torch.randn(100, 8), torch.randn(100, 8))


def test_offset_inputs(mps):
    base = torch.randn(1001, device=mps)
    compiled = torch.compile(lambda a: a * 2 + 1)
    for start in (0, 1, 2, 4):
        part = base[start : start + 640]
        torch.testing.assert_close(compiled(part), part * 2 + 1, rtol=0, atol=0)


def test_sizes_change(mps):
    compiled = torch.compile(lambda a, b: torch.softmax(a * b + 1, -1), dynamic=True)
    for rows, columns in ((3, 5), (64, 128), (1, 1), (17, 1000)):
        a, b = torch.randn(rows, columns), torch.randn(columns)
        got = compiled(a.to(mps), b.to(mps)).cpu()
        torch.testing.assert_close(got, torch.softmax(a * b + 1, -1), rtol=2e-5, atol=1e-6)


def test_numbers_of_python(mps):
    compiled_agrees(lambda a, s, n: a * s + n, torch.randn(9, 4), 0.3, 7, dynamic=True)


def test_bitcasts(mps):
    compiled_agrees(lambda a: (a.view(torch.int32) & 0x7F800000).view(torch.float32), torch.randn(64))
    compiled_agrees(lambda a: (a.view(torch.int16) ^ 1).view(torch.bfloat16), torch.randn(64).bfloat16())
    compiled_agrees(lambda a: (a.view(torch.int16) & -2).view(torch.float16), torch.randn(64).half())
    compiled_agrees(lambda a: a.view(torch.uint8) + 1, torch.randint(-128, 127, (64,), dtype=torch.int8))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_called_and_its_neighbours_are_fused(mps, dtype):
    def function(x):
        low = (x * 2 + 1).to(dtype)
        return low.t().float().sin() + 1, low

    assert kernel_count(compiled_agrees(lambda x: function(x)[0], torch.randn(6, 8))) == 2
    torch.testing.assert_close(
        torch.compile(function)(torch.arange(8.0, device=mps)[None])[1].float().cpu(),
        function(torch.arange(8.0)[None])[1].float(),
    )


def test_numbers_that_were_read_from_the_device(mps):
    """Tensor.item() within a graph: a float goes to kernels as a float, an integer as an integer."""

    def function(x, scale, count):
        filled = torch.zeros_like(x).fill_(scale.item())
        return filled * 2, x * scale.item() + count.item(), torch.full((7,), scale.item() / 3, device=x.device)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for dynamic in (None, True):
            compiled_agrees(function, torch.randn(40, 3), torch.tensor(0.4375), torch.tensor(-5), dynamic=dynamic)


@pytest.mark.parametrize("sizes", [(37, 74), (41, 123), (7, 49), (100, 10)])
def test_quotients_of_dynamic_sizes_are_exact(mps, sizes):
    """A quotient below 0.5 by a bit would take other elements of an image that is enlarged twice."""
    size, result = sizes
    compiled_agrees(
        lambda x: torch.ops.aten.upsample_nearest1d(x, [result], None), torch.randn(2, 3, size), dynamic=True
    )
    compiled_agrees(
        lambda x: torch.ops.aten.upsample_nearest2d(x, [result, 9], None), torch.randn(2, 3, size, 5), dynamic=True
    )


def test_nan_asserts_look_at_what_kernels_take_and_give(mps):
    with torch._inductor.config.patch(nan_asserts=True):
        compiled = torch.compile(lambda x: x.sin() + 1)
        compiled(torch.randn(50, device=mps))
        with pytest.raises(AssertionError):
            compiled(torch.full((50,), float("nan"), device=mps))


def test_exact_quotients_and_roots_stay_exact(mps):
    """GPUs divide to 2.5 ulp, and floor() of 2 - 1 ulp is 1: in fused kernels too."""
    b = torch.randint(1, 5000, (4096,))
    k = torch.randint(0, 4000, (4096,))

    def function(a, b, k):
        return (a / b).floor() + k * 0, (k * k).sqrt().floor() + 1, (1 / (1 / 2 ** (k % 30))) - 1

    compiled_agrees(function, (b * k).float(), b.float(), k.float(), tolerance=0.0)
    # Fused kernels may take subnormal numbers for zero.
    edges = torch.tensor([0.0, -0.0, 1.0, -2.5, 1e38, 2e-38, float("inf"), float("-inf"), float("nan")])
    compiled_agrees(lambda a, b: (a / b, (a * 1).sqrt(), 1 / b), edges.repeat(9), edges.repeat_interleave(9))


def test_numbers_beyond_32_bits(mps):
    """Integers of a graph are values as well as sizes: neither they nor their products are cut."""
    high = 3_000_000_000
    drawn = torch.compile(lambda high, n: torch.randint(high, (n,), device=mps), fullgraph=True, dynamic=True)
    for n in (1000, 5000):
        x = drawn(high, n)
        assert 0 <= x.min() < high // 100 and high - high // 100 < x.max() < high
    for number in (high, -high, 7):
        compiled_agrees(lambda x, number: (x + number, x * number // 3), torch.arange(5), number, dynamic=True)
    compiled_agrees(lambda x: x.sum() / (x.shape[0] ** 3 * x.shape[1]), torch.rand(2000, 3), dynamic=True)


def test_numbers_of_sizes_are_computed_in_float64(mps):
    """int(100 * 0.29) is 28 for a size, for a stride, and for a value; kernels have float32 alone."""

    def function(x, k):
        kept = x.t()[: int(x.shape[0] * 0.29)].t().contiguous()
        return kept[:, ::2] * 2, x[0] + int(k / 3), x[0] + round(-k / 7) // 2, x[0] + (k / 3 - (k - 1) / 3)

    compiled_agrees(function, torch.arange(10000).view(100, 100), 10**12 + 7, dynamic=True)


SPECIAL = (0.0, -0.0, 1.0, -2.5, float("inf"), -float("inf"), float("nan"), 3e38, 1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nothing_is_folded_that_special_values_forbid(mps, dtype):
    """x - x is not 0, nor x / x 1, nor 0.0 * x 0, of infinities and NaN."""
    compiled_agrees(
        lambda t: (t * 0.0, (t + 1) * torch.zeros_like(t), torch.lerp(t + 1, t, 0.0), t.abs() * -0.0),
        torch.tensor(SPECIAL).to(dtype),
    )
    compiled_agrees(
        lambda t: (
            t - t,
            (t + 1) - (t + 1),
            t * t - t * t,
            t / t - 1,
            1 - t / t,
            torch.isnan(t - t),
            torch.lerp(t, t, 0.5),
        ),
        torch.tensor(SPECIAL).to(dtype),
    )
    compiled_agrees(lambda t: (t.softmax(1), torch.exp(t - t.amax(1, True))), torch.tensor(SPECIAL).to(dtype)[:, None])
    compiled_agrees(lambda t: (t.softmax(0), t.log_softmax(0)), torch.tensor(-float("inf"), dtype=dtype))
