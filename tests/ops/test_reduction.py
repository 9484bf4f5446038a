"""Reductions against the CPU: shapes, strides, dtypes, special values, errors."""

import functools
import warnings

import pytest
import torch
from compare import REDUCED as TOLERANCE
from compare import close

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)

SUMS = ("sum", "nansum", "mean", "prod")
EXTREMES = ("amax", "amin", "max", "min", "argmax", "argmin", "aminmax")
SPREADS = ("var", "std", "var_mean", "std_mean")
COUNTS = ("any", "all", "count_nonzero")
ONE_DIM = ("prod", "max", "min", "argmax", "argmin", "aminmax")  # take a single dimension
SHAPES = (
    (),
    (1,),
    (7,),
    (3, 4),
    (5, 7, 11),
    (64, 128),
    (2, 3, 1, 5),
    (40, 3),
    (3, 40),
    (1025,),
    (33, 1024),
    (16, 8, 4, 4),
)
LAYOUTS = {
    "transposed": lambda t: t.transpose(0, -1),
    "permuted": lambda t: t.permute(1, 2, 0),
    "sliced": lambda t: t[1:, :, ::2],
    "row": lambda t: t[:, 1],
    "expanded": lambda t: t[:1].expand(4, -1, -1),
    "offset": lambda t: t.flatten()[3:],
}


def values(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed + len(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.3
    low, high = (0, 255) if dtype == torch.uint8 else (-100, 100)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


@pytest.mark.filterwarnings("ignore:_aminmax is deprecated")
def test_the_old_name_of_aminmax(mps, raises_as_on_the_cpu):
    x = values((5, 7), torch.float32)
    for call in (torch._aminmax, lambda t: torch._aminmax(t, 1), lambda t: torch._aminmax(t, 0, keepdim=True)):
        check(call(x.to(mps)), call(x))
    raises_as_on_the_cpu(lambda ones: torch._aminmax(ones(0, 3), 0))
    raises_as_on_the_cpu(lambda ones: torch._aminmax(ones(0, 3)))


def tensors(result):
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def check(actual, expected, tolerance=2e-5):
    for a, e in zip(tensors(actual), tensors(expected), strict=True):
        close(a, e, tolerance)


def compare(op, x, tolerance=2e-5, **arguments):
    """Runs op on both devices; where the CPU raises, mps must raise the same kind of error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = op(x, **arguments)
        except Exception as error:
            with pytest.raises(type(error)):
                op(x.to("mps"), **arguments)
            return
        check(op(x.to("mps"), **arguments), expected, tolerance)


def dims_of(name, ndim):
    dims = [None, *range(ndim)]
    if ndim > 1 and name not in ONE_DIM:
        dims += [(0, ndim - 1), tuple(range(ndim - 1))]
    return dims


def run_all_dims(name, x, tolerance=2e-5):
    op = getattr(torch, name)
    for dim in dims_of(name, x.dim()):
        if dim is None:
            compare(op, x, tolerance)
            continue
        compare(op, x, tolerance, dim=dim)
        if name != "count_nonzero":
            compare(op, x, tolerance, dim=dim, keepdim=True)


@pytest.mark.parametrize("name", SUMS + EXTREMES + SPREADS + COUNTS)
def test_shapes(name):
    for shape in SHAPES:
        run_all_dims(name, values(shape, torch.float32))


@pytest.mark.parametrize("name", SUMS + EXTREMES + SPREADS + COUNTS)
@pytest.mark.parametrize("dtype", FLOATS[1:] + INTEGERS, ids=str)
def test_dtypes(name, dtype):
    x = values((6, 5, 4), dtype)
    if name == "prod" and not dtype.is_floating_point:
        x = x % 3 - 1 if dtype not in (torch.uint8, torch.bool) else x
    run_all_dims(name, x, TOLERANCE.get(dtype, 0))


@pytest.mark.parametrize("name", SUMS + EXTREMES + SPREADS + COUNTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(name, layout):
    x = values((6, 5, 8), torch.float32)
    expected_input, actual_input = LAYOUTS[layout](x), LAYOUTS[layout](x.to("mps"))
    op = getattr(torch, name)
    for dim in [d for d in dims_of(name, expected_input.dim()) if d is not None]:
        check(op(actual_input, dim=dim), op(expected_input, dim=dim))


@pytest.mark.parametrize("order", [0, -41.0, 41.0, float("inf")])
def test_norms_of_one_element_are_magnitudes(order):
    x = torch.tensor([[0.01, -40.0, 0.0, 2.0]])
    for dim in (0, (0,)):
        check(torch.linalg.vector_norm(x.to("mps"), order, dim), torch.linalg.vector_norm(x, order, dim))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, float("inf"), float("-inf")])
@pytest.mark.parametrize("dim", [None, 0, 1, (0, 2), ()])
def test_norms(order, dim):
    x = values((6, 5, 8), torch.float32)
    for keepdim in (False, True):
        op = functools.partial(torch.linalg.vector_norm, ord=order, dim=dim, keepdim=keepdim)
        check(op(x.to("mps")), op(x))
        check(op(x.half().to("mps")), op(x.half()), 3e-3)
        check(op(x.half().to("mps"), dtype=torch.float32), op(x.half(), dtype=torch.float32))
    if dim != ():
        check(torch.norm(x.to("mps"), p=order, dim=dim), torch.norm(x, p=order, dim=dim))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int32])
@pytest.mark.parametrize("name", ["sum", "nansum", "mean", "prod"])
def test_result_dtype(name, dtype):
    for x in (values((5, 6), torch.float32) * 0.5, values((5, 6), torch.int32) % 3, values((5, 6), torch.bool)):
        compare(functools.partial(getattr(torch, name), dtype=dtype), x, 3e-3)
        compare(functools.partial(getattr(torch, name), dtype=dtype), x, 3e-3, dim=1)


def test_sum_to_bool_counts_any_nonzero():
    x = torch.tensor([[0.5, -0.5], [0.0, 0.0]])
    check(torch.sum(x.to("mps"), 1, dtype=torch.bool), torch.sum(x, 1, dtype=torch.bool))


@pytest.mark.parametrize("name", SUMS + EXTREMES + SPREADS + COUNTS)
@pytest.mark.parametrize("shape,dim", [((0,), None), ((0,), 0), ((3, 0), 0), ((3, 0), 1), ((0, 3), 0), ((0, 3), 1)])
def test_empty(name, shape, dim):
    arguments = {} if dim is None else {"dim": dim}
    compare(getattr(torch, name), torch.empty(shape), **arguments)
    compare(getattr(torch, name), torch.empty(shape, dtype=torch.int64), **arguments)


@pytest.mark.parametrize("name", SUMS + EXTREMES + SPREADS + COUNTS)
def test_special_values(name):
    nan, inf = float("nan"), float("inf")
    for row in (
        [nan, 1, 2],
        [1, nan, nan],
        [inf, 1, -inf],
        [-inf, -inf],
        [inf, nan],
        [0.0, -0.0],
        [nan, nan],
        [5, 5, 1, 5],
    ):
        compare(getattr(torch, name), torch.tensor(row))
        compare(getattr(torch, name), torch.tensor([row, row[::-1]]), dim=1)
        compare(getattr(torch, name), torch.tensor([row, row[::-1]]), dim=0)


@pytest.mark.parametrize("shape,dim", [((3_000_000,), 0), ((1_000_000, 3), 0), ((3, 1_000_000), 1), ((70_000, 4), 1)])
@pytest.mark.parametrize("name", ["sum", "amax", "argmax", "var"])
def test_large(name, shape, dim):
    x = values(shape, torch.float32)
    expected = getattr(x if name == "argmax" else x.double(), name)(dim)
    actual = getattr(x.to("mps"), name)(dim).cpu()
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=2e-3 if name == "sum" else 1e-5)


@pytest.mark.parametrize("name", ["mean", "amax", "argmin", "var", "all"])
def test_many_short_rows(name):
    """Few lanes of a GPU share such a row."""
    for rows, size in ((16_400, 3), (16_400, 49), (16_401, 64), (20_000, 101), (4_100, 300), (4_100, 72)):
        x = values((rows, size), torch.float32)
        check(getattr(x.to("mps"), name)(1), getattr(x, name)(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_sums_of_columns_of_words(dtype):
    """As gradients of biases are: few and many rows, columns that fill no workgroup, rows of a longer tensor."""
    for shape in ((255, 8), (256, 8), (1000, 264), (4099, 24), (300, 1040), (16, 65, 776), (20_000, 16)):
        x = torch.randn(shape).to(dtype)
        dims = list(range(len(shape) - 1))
        for cpu, moved in ((x, x.to("mps")), (x[..., 8:], x.to("mps")[..., 8:])):
            expected, size = cpu.double().sum(dims), cpu.double().abs().sum(dims)
            for out, epsilon in ((torch.float32, 1e-6), (dtype, torch.finfo(dtype).eps + 1e-6)):
                error = (moved.sum(dims, dtype=out).cpu().double() - expected).abs()
                assert (error <= epsilon * size + 1e-12).all(), (shape, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_sums_of_planes_in_words(dtype):
    """As gradients of biases of small images: a word reaches into the next channel."""
    for shape in ((1, 8, 3, 3), (5, 16, 7, 7), (40, 24, 5, 3), (9, 16, 129), (3, 6, 7, 7), (2000, 8, 11, 11)):
        x = torch.randn(shape).to(dtype)
        dims = [d for d in range(x.dim()) if d != 1]
        expected, size = x.double().sum(dims), x.double().abs().sum(dims)
        for out, epsilon in ((torch.float32, 1e-6), (dtype, torch.finfo(dtype).eps + 1e-6)):
            error = (x.to("mps").sum(dims, dtype=out).cpu().double() - expected).abs()
            assert (error <= epsilon * size + 1e-12).all(), (shape, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_short_rows_in_words(dtype):
    """As means of small planes: a word of 16 bytes reaches into the next row, or is one row."""
    for rows, size in ((16_400, 49), (16_400, 4), (16_384, 128), (20_000, 9), (16_408, 77), (16_384, 8), (16_385, 9)):
        x = torch.randn(rows, size).to(dtype)
        for name in ("sum", "mean"):
            expected, scale = getattr(x.double(), name)(1), getattr(x.double().abs(), name)(1)
            error = (getattr(x.to("mps"), name)(1).cpu().double() - expected).abs()
            assert (error <= (torch.finfo(dtype).eps + 1e-6) * scale).all(), (rows, size, name)


def test_sum_keeps_its_digits():
    for count in (1 << 22, 1 << 24):
        x = torch.full((count,), 0.1)  # one long chain of float32 additions is wrong by a few percent here
        assert x.to("mps").sum().item() == pytest.approx(x.double().sum().item(), rel=1.5e-6)


def test_variance_far_from_zero():
    x = torch.randn(8, 100_000, generator=torch.Generator().manual_seed(3)) + 1e4
    var, mean = torch.var_mean(x.to("mps"), 1)
    torch.testing.assert_close(var.cpu().double(), x.double().var(1), rtol=1e-4, atol=0)
    torch.testing.assert_close(mean.cpu().double(), x.double().mean(1), rtol=1e-6, atol=0)
    far = torch.tensor([[1e30, -1e30, 0.0, 2e30], [torch.inf, 1.0, 2.0, 3.0]])  # infinite and NaN
    torch.testing.assert_close(far.to("mps").var(1).cpu(), far.var(1), equal_nan=True)


def test_variance_of_none_with_a_negative_correction():
    x = torch.empty(0, 3, device="mps")
    assert torch.var_mean(x, 0, correction=-1)[0].isnan().all()
    assert torch.std(x, correction=-2).isnan()
    assert torch.var(torch.ones(2, device="mps"), correction=-1).item() == 0


def test_argmax_beyond_the_integers_of_float32():
    x = torch.zeros(2**24 + 2, dtype=torch.uint8)
    x[2**24 + 1] = 1
    assert x.to("mps").argmax().item() == 2**24 + 1


def test_ties_take_the_first():
    x = torch.zeros(3, 5000)
    for op in (torch.argmax, torch.argmin):
        check(op(x.to("mps"), dim=1), op(x, dim=1))
        check(op(x.t().to("mps"), dim=0), op(x.t(), dim=0))


def test_out():
    x = values((4, 6), torch.float32)
    for name in ("sum", "mean", "amax", "argmax", "var", "any"):
        op = getattr(torch, name)
        expected = op(x, dim=1)
        out = torch.empty(12, dtype=expected.dtype, device="mps")[::3]
        assert op(x.to("mps"), dim=1, out=out) is out
        check(out, expected)
        resized = torch.empty(0, dtype=expected.dtype, device="mps")
        op(x.to("mps"), dim=1, out=resized)
        check(resized, expected)


def test_rapid_succession():
    x = torch.arange(10_000 * 8, dtype=torch.float32).view(10_000, 8).to("mps")
    sums = [row.sum() for row in x.unbind(0)]
    expected = torch.arange(10_000 * 8, dtype=torch.float64).view(10_000, 8).sum(1)
    torch.testing.assert_close(torch.stack(sums).cpu().double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SUMS + EXTREMES + SPREADS + COUNTS)
def test_complex(name):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(6, 5, 4, dtype=torch.complex64, generator=generator)
    run_all_dims(name, x)
    run_all_dims(name, torch.zeros(3, 2, dtype=torch.complex64))
    if name in ("sum", "mean", "prod"):
        real = values((4, 5), torch.float32)
        check(
            getattr(torch, name)(real.to("mps"), 1, dtype=torch.complex64),
            getattr(torch, name)(real, 1, dtype=torch.complex64),
        )


def test_norms_of_complex_numbers():
    x = torch.randn(6, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(6))
    for order in (0, 1, 2, 3, float("inf"), float("-inf")):
        check(torch.linalg.vector_norm(x.to("mps"), order, 1), torch.linalg.vector_norm(x, order, 1))


def test_logsumexp():
    for x in (
        values((5, 7), torch.float32),
        values((5, 7), torch.int32),
        torch.tensor([[float("-inf")] * 3, [1, 2, 3.0]]),
    ):
        for dim in (0, 1, (0, 1)):
            check(torch.logsumexp(x.to("mps"), dim), torch.logsumexp(x, dim))


def test_trace():
    for dtype in (torch.float32, torch.int32):
        x = values((5, 7), dtype)
        check(torch.trace(x.to("mps")), torch.trace(x))


def test_errors():
    x = torch.ones(2, 3)
    cases = [
        lambda t: t.sum(5),
        lambda t: t.sum((0, 0)),
        lambda t: t.to(torch.int64).mean(),
        lambda t: t.to(torch.int64).var(),
        lambda t: t[:0].max(),
        lambda t: t[:0].amax(0),
        lambda t: t[:0].argmax(),
        lambda t: torch.trace(t[0]),
        lambda t: torch.linalg.vector_norm(t.to(torch.int64)),
        lambda t: torch.linalg.vector_norm(t[:0], ord=float("-inf")),
        lambda t: t.to(torch.uint64).amax(),
        lambda t: t.max(3),
    ]
    for case in cases:
        with pytest.raises(Exception) as expected:
            case(x)
        with pytest.raises(expected.type) as actual:
            case(x.to("mps"))
        words = [str(e.value).split("\n")[0].replace('_cpu"', '"') for e in (expected, actual)]
        assert words[0] == words[1] or "not implemented for" in words[0]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_hash_tensor(dtype, mps):
    inputs = [values(shape, dtype) for shape in ((5, 7), (3000,), (4, 300), (2, 3, 1, 5))]
    for x in (inputs[0], inputs[1], inputs[2].t(), inputs[3][1:]):
        device = x.to(mps)
        pairs = [(torch.hash_tensor(device), torch.hash_tensor(x))]
        for dim in range(x.dim()):
            pairs.append((torch.hash_tensor(device, dim, keepdim=True), torch.hash_tensor(x, dim, keepdim=True)))
        for actual, expected in pairs:
            assert actual.dtype == expected.dtype == torch.uint64
            assert torch.equal(actual.cpu().view(torch.int64), expected.view(torch.int64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_hash_of_every_half_number(dtype, mps, software):
    x = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype).view(-1, 1)
    actual, expected = (torch.hash_tensor(t, 1).view(torch.int64).cpu() for t in (x.to(mps), x))
    if not software:
        # NVIDIA's GPUs make one NaN of all when they widen a half.
        nan = x.isnan().view(-1)
        assert actual[nan].view(torch.float64).isnan().all()
        actual, expected = actual[~nan], expected[~nan]
    assert torch.equal(actual, expected)


def test_hash_tensor_errors(raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda ones: torch.hash_tensor(ones(3), mode=1))
    raises_as_on_the_cpu(lambda ones: torch.hash_tensor(ones(0)))
    raises_as_on_the_cpu(lambda ones: torch.hash_tensor(ones(3, 0), 1))


def test_norms_and_medians_of_nothing(raises_as_on_the_cpu, mps):
    for order in (float("inf"), -float("inf"), -1.5):
        raises_as_on_the_cpu(lambda ones, p=order: torch.ops.aten.norm.Scalar(ones(0), p))
        raises_as_on_the_cpu(lambda ones, p=order: torch.ops.aten.norm.ScalarOpt_dim(ones(3, 0), p, [-1]))
    assert torch.norm(torch.ones(3, 0, device=mps), 2, dim=1).tolist() == [0, 0, 0]
    for dtype in (torch.int8, torch.int32, torch.int64, torch.uint8):
        for function in (torch.median, torch.nanmedian):
            assert (
                function(torch.ones(0, dtype=dtype, device=mps)).item() == function(torch.ones(0, dtype=dtype)).item()
            )
    raises_as_on_the_cpu(lambda ones: ones(3).to(torch.complex64).cummax(0))
    raises_as_on_the_cpu(lambda ones: ones(3).to(torch.complex64).cummin(0))
