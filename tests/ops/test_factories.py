"""Tensors from nothing, views of them, and storages that change."""

import pytest
import torch
from both_devices import same_outcome

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [0, 1, 3])
def test_full(dtype, value):
    for shape in [(), (0,), (1,), (7,), (3, 0, 2), (5, 33), (70_001,)]:
        made = torch.full(shape, value, dtype=dtype, device="mps")
        assert made.device == torch.device("mps:0")
        assert torch.equal(made.cpu(), torch.full(shape, value, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_full_of_extreme_values(dtype):
    if dtype.is_complex:
        values = [complex(-1.5, 2), complex(float("nan"), float("-inf"))]
    elif dtype.is_floating_point:
        info = torch.finfo(dtype)
        values = [-2.5, info.max, info.min, info.tiny, -0.0, float("inf"), float("-inf"), float("nan")]
    else:
        values = [True] if dtype == torch.bool else [torch.iinfo(dtype).max, torch.iinfo(dtype).min]
    for value in values:
        for view in (slice(None), slice(1, None, 2)):
            cpu, mps = torch.zeros(9, dtype=dtype), torch.zeros(9, dtype=dtype, device="mps")
            cpu[view].fill_(value)
            mps[view].fill_(value)
            assert torch.equal(mps.cpu().view(torch.uint8), cpu.view(torch.uint8)), value


def test_fill_keeps_to_its_view():
    for make in (lambda t: t[1:4, ::2], lambda t: t.t()[2:5], lambda t: t[:, 3], lambda t: t[2:3, 2:3]):
        cpu, mps = torch.zeros(6, 7), torch.zeros(6, 7, device="mps")
        make(cpu).fill_(-2.5)
        make(mps).fill_(-2.5)
        assert torch.equal(mps.cpu(), cpu)
        make(cpu).zero_()
        make(mps).zero_()
        assert torch.equal(mps.cpu(), cpu)


def test_fill_with_a_tensor():
    x = torch.zeros(4, device="mps")
    assert x.fill_(torch.tensor(3.0, device="mps")).tolist() == [3.0] * 4
    assert x.fill_(torch.tensor(5)).tolist() == [5.0] * 4
    x[2] = 7
    assert x.fill_(x[2]).tolist() == [7.0] * 4
    with pytest.raises(RuntimeError, match="fill_ only supports 0-dimension value tensor"):
        x.fill_(torch.ones(1, device="mps"))


def test_fill_of_one_half_may_be_infinite():
    """More of them raise; assignments to an element or by a mask fill one, but by a mask from 2.15 on."""

    def masked(x, value):
        x[torch.tensor([False, True], device=x.device)] = value
        return x

    for dtype in (torch.float16, torch.bfloat16):
        for value in (1e5, -1e300, 2**60, True, float("nan")):
            cpu, mps = (torch.ones(2, dtype=dtype, device=device) for device in ("cpu", "mps"))
            for x in (cpu, mps):
                x[0] = value
                if torch.__version__ < "2.15":
                    masked(x, -value)
            torch.testing.assert_close(mps.cpu(), cpu, rtol=0, atol=0, equal_nan=True)
            same_outcome(lambda d, t=dtype, v=-value: masked(torch.ones(2, dtype=t, device=d), v))


@pytest.mark.parametrize(("dtype", "value"), [(torch.int8, 300), (torch.float16, 1e9), (torch.uint8, -600)])
def test_fill_refuses_what_does_not_fit(dtype, value):
    with pytest.raises(RuntimeError) as on_cpu:
        torch.empty(3, dtype=dtype).fill_(value)
    with pytest.raises(RuntimeError) as on_mps:
        torch.empty(3, dtype=dtype, device="mps").fill_(value)
    assert str(on_mps.value) == str(on_cpu.value)


def test_float64_is_refused_in_apples_words():
    message = (
        "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
        "Please use float32 instead."
    )
    for make in (
        lambda: torch.ones(2, dtype=torch.float64, device="mps"),
        lambda: torch.tensor([1.0], dtype=torch.float64, device="mps"),
        lambda: torch.ones(2, dtype=torch.float64).to("mps"),
        lambda: torch.ones(2, device="mps").double(),
        lambda: torch.ones(2, device="mps").sum(dtype=torch.float64),
        lambda: torch.empty_strided((2,), (1,), dtype=torch.float64, device="mps"),
    ):
        with pytest.raises(TypeError) as error:
            make()
        assert message in str(error.value)
    with pytest.raises(TypeError, match="Trying to convert ComplexDouble to the MPS backend"):
        torch.ones(2, dtype=torch.complex128, device="mps")


def test_empty_refuses():
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(3, device="mps", pin_memory=True)
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device="mps")


def test_memory_formats():
    for shape, memory_format in [((2, 3, 4, 5), torch.channels_last), ((2, 3, 4, 5, 6), torch.channels_last_3d)]:
        made = torch.empty(shape, memory_format=memory_format, device="mps")
        assert made.stride() == torch.empty(shape, memory_format=memory_format).stride()


def test_deterministic_memory_is_filled():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(5, device="mps").cpu().isnan().all()
        assert torch.empty(5, dtype=torch.int16, device="mps").tolist() == [32767] * 5
        assert torch.empty(2, dtype=torch.bool, device="mps").tolist() == [True, True]
        assert torch.empty(2, dtype=torch.uint8, device="mps").tolist() == [255] * 2
        assert torch.zeros(2, device="mps").resize_(4)[2:].cpu().isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_item(dtype):
    for value in (0, 1, 100):
        expected = torch.full((), value, dtype=dtype).item()
        got = torch.full((3,), value, dtype=dtype, device="mps")[2].item()
        assert got == expected and type(got) is type(expected)


def test_resize_keeps_values():
    x = torch.arange(6.0, device="mps")
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    x.resize_(10)
    assert x.shape == (10,) and x[:6].tolist() == [0, 1, 2, 3, 4, 5]
    y = torch.empty(0, device="mps").resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="negative dimension"):
        x.resize_(-1)


def test_set():
    x = torch.arange(12.0, device="mps")
    y = torch.empty(0, device="mps")
    y.set_(x, 2, (2, 3), (5, 1))
    assert y.tolist() == [[2, 3, 4], [7, 8, 9]]
    assert y.set_(x).is_set_to(x)
    y.set_(x.untyped_storage())
    assert y.shape == (12,) and y.data_ptr() == x.data_ptr()
    assert y.set_().numel() == 0
    assert y.device.type == "mps"
    with pytest.raises(RuntimeError, match="different device"):
        y.set_(torch.ones(3))


def test_views_share_memory():
    x = torch.arange(24.0, device="mps")
    v = x.view(2, 3, 4)
    assert v.data_ptr() == x.data_ptr()
    assert v.transpose(0, 2)[1, 2, 1].item() == 21
    assert x.as_strided((2, 2), (3, 1), 4).tolist() == [[4, 5], [7, 8]]
    assert x.unfold(0, 4, 8).tolist() == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]
    v[1, 2, 3] = -1
    assert x[23].item() == -1
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        v.transpose(0, 1).view(24)


def test_complex_views():
    x = torch.zeros(3, dtype=torch.complex64, device="mps")
    torch.view_as_real(x)[:, 1] = 2
    assert x.tolist() == [2j] * 3
    assert x.imag.tolist() == [2.0] * 3
    assert torch.view_as_complex(torch.ones(2, 2, device="mps")).tolist() == [1 + 1j] * 2


def test_zero_tensors():
    x = torch.tensor([-2.0, 3.0], device="mps", requires_grad=True)
    (x.sign() * x).sum().backward()
    assert x.grad.tolist() == [-1.0, 1.0]
    zero = torch._efficientzerotensor((3,), device="mps")
    assert (zero + torch.ones(3, device="mps")).tolist() == [1.0] * 3


NUMBERS = [t for t in DTYPES if t not in (torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64)]


def same(factory, *args, **options):
    """The same factory on both devices; floats within one unit in the last place."""
    cpu, mps = factory(*args, **options), factory(*args, **options, device="mps")
    assert mps.device.type == "mps" and mps.dtype == cpu.dtype and mps.shape == cpu.shape
    eps = torch.finfo(cpu.dtype).eps if cpu.is_floating_point() else 0
    torch.testing.assert_close(mps.cpu(), cpu, rtol=eps, atol=1e-12 if eps else 0, equal_nan=True)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_arange(dtype):
    for start, end, step in [(0, 5, 1), (3, 3, 1), (100, -20, -7), (1, 120, 2), (0, 100, 1)]:
        if (start >= 0 and step > 0) or dtype != torch.uint8:
            same(torch.arange, start, end, step, dtype=dtype)
    same(torch.arange, 7)
    same(torch.arange, 0.5, 7, 1.5)
    same(torch.arange, 0.5, 7, 1.5, dtype=dtype)


def test_arange_of_many_and_extreme_floats():
    for start, end, step in [(0, 1, 1e-5), (-1, 1, 1 / 3 * 1e-4), (1e-30, 1e-28, 3e-31), (-1e38, 3e38, 1.7e37)]:
        exact = torch.arange(start, end, step, dtype=torch.float64)
        made = torch.arange(start, end, step, device="mps").cpu()
        torch.testing.assert_close(made, exact.float(), rtol=1e-7, atol=1e-12 * max(abs(start), abs(end)))
    same(torch.arange, 2**62, 2**62 + 10)
    same(torch.arange, -(2**63), -(2**63) + 5)
    same(torch.arange, 2**24 - 4, 2**24 + 9, dtype=torch.float32)


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_arange_out_and_errors():
    base = torch.zeros(4, 6, device="mps")
    torch.arange(4, out=base[:, 2])
    assert base[:, 2].tolist() == [0, 1, 2, 3] and base.sum().item() == 6
    two = torch.zeros(3, 2, device="mps").t()
    torch.arange(6, out=two)
    assert two.tolist() == [[0, 1, 2], [3, 4, 5]]
    for arguments in [(0, 5, 0), (0, 5, -1), (float("nan"), 5, 1), (0, float("inf"), 1)]:
        for f in (torch.arange, torch.range):
            with pytest.raises(RuntimeError) as on_cpu:
                f(*arguments, dtype=torch.float32)
            with pytest.raises(RuntimeError) as on_mps:
                f(*arguments, dtype=torch.float32, device="mps")
            assert str(on_mps.value) == str(on_cpu.value)


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_range(dtype):
    same(torch.range, 0, 10, dtype=dtype)
    same(torch.range, 1, 100, 3, dtype=dtype)


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.complex64], ids=str)
def test_linspace(dtype):
    for start, end in [(0, 10), (3, 50), (50, 3), (7, 7)]:
        for steps in (0, 1, 2, 4, 6, 11, 100, 1001):
            if dtype.is_floating_point or dtype.is_complex:  # the CPU's step is rounded to the dtype
                made = torch.linspace(start, end, steps, dtype=dtype, device="mps").cpu()
                double = torch.complex128 if dtype.is_complex else torch.float64
                exact = torch.linspace(start, end, steps, dtype=double).to(dtype)
                torch.testing.assert_close(made, exact, rtol=2e-7, atol=0)
            else:
                same(torch.linspace, start, end, steps, dtype=dtype)
    made = torch.linspace(-1, 1, 100_001, device="mps")
    assert made[0].item() == -1 and made[-1].item() == 1 and abs(made[50_000].item()) < 1e-12
    with pytest.raises(RuntimeError, match="number of steps must be non-negative"):
        torch.linspace(0, 1, -1, device="mps")


def test_linspace_between_unlike_ends():
    for start, end, dtype in [(2, 1e30, torch.float32), (-1e30, 3e-5, torch.float32), (1e-6, 3e4, torch.float16)]:
        for steps in (2, 3, 8):
            same(torch.linspace, start, end, steps, dtype=dtype)
    same(torch.linspace, 3, -3, 7, dtype=torch.uint8)  # -3 wraps
    for start, end, dtype in [(0, 255, torch.int8), (-300, 0, torch.uint8), (0, 2**40, torch.int32)]:
        outcomes = []
        for device in ("cpu", "mps"):
            with pytest.raises(RuntimeError) as error:
                torch.linspace(start, end, 4, dtype=dtype, device=device)
            outcomes.append(str(error.value))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.complex64], ids=str)
@pytest.mark.parametrize("base", [10, 2, 1.1, 0.25, 1, 123456.789])
def test_logspace(base, dtype):
    """Floats are the rounded exact powers (the CPU's ends are rounded to the type), integers the CPU's."""
    for start, end in [(0, 3), (2, 0), (1, 1), (-3, 4), (0.1, 2.7)]:
        for steps in (0, 1, 2, 4, 7, 31, 300):
            if dtype.is_floating_point or dtype.is_complex:
                made = torch.logspace(start, end, steps, base, dtype=dtype, device="mps").cpu()
                exact = torch.logspace(start, end, steps, base, dtype=torch.complex128)
                exact = torch.view_as_real(exact.to(dtype)) if dtype.is_complex else exact.real.to(dtype)
                made = torch.view_as_real(made) if dtype.is_complex else made
                torch.testing.assert_close(made, exact, rtol=torch.finfo(dtype).eps, atol=0)
            elif start >= 0 and base in (10, 2):
                same(torch.logspace, start, end, steps, base, dtype=dtype)


def test_logspace_of_whole_numbers_and_signs():
    same(torch.logspace, 0, 18, 19, dtype=torch.int64)
    same(torch.logspace, 0, 33, 34, 3, dtype=torch.int64)
    same(torch.logspace, 0, 4, 5, dtype=torch.uint8)  # wraps as the CPU's do
    same(torch.logspace, 0, 30, 4, dtype=torch.int32)  # what does not fit is the smallest number
    same(torch.logspace, 0, 20, 21, -3, dtype=torch.int64)
    same(torch.logspace, -2, 2, 9, -2.5)  # NaN between whole exponents
    same(torch.logspace, -3, 3, 7, 0)
    same(torch.logspace, -3, 3, 7, float("inf"))
    same(torch.logspace, -37, 38, 76)
    made = torch.logspace(1 + 1j, 2 - 3j, 7, device="mps", dtype=torch.complex64).cpu()
    torch.testing.assert_close(made, torch.logspace(1 + 1j, 2 - 3j, 7, dtype=torch.complex128).to(made.dtype))
    into = torch.empty(3, 2, device="mps").t()
    torch.logspace(0, 5, 6, out=into)
    assert into.tolist() == [[1, 10, 100], [1000, 10000, 100000]]
    for arguments in [(0, 2, -1), (0, 300, 3, 10, torch.int8), (0, 2, 3, 10, torch.bool), (0, 1e6, 3, 2, torch.half)]:
        outcomes = []
        for device in ("cpu", "mps"):
            with pytest.raises((RuntimeError, NotImplementedError)) as error:
                numbers, dtype = (*arguments, 10)[:4], arguments[4] if len(arguments) > 4 else None
                torch.logspace(*numbers, dtype=dtype, device=device)
            outcomes.append((error.type, str(error.value)))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("dtype", [*NUMBERS, torch.bool, torch.complex64], ids=str)
def test_eye(dtype):
    for shape in [(0,), (1,), (5,), (3, 7), (7, 3), (0, 4)]:
        assert torch.equal(torch.eye(*shape, dtype=dtype, device="mps").cpu(), torch.eye(*shape, dtype=dtype))


@pytest.mark.parametrize("make", [torch.tril_indices, torch.triu_indices])
def test_triangle_indices(make):
    for rows, columns in [(0, 3), (3, 0), (1, 1), (5, 5), (3, 8), (8, 3), (300, 211)]:
        for offset in (-400, -8, -3, -1, 0, 1, 2, 7, 400):
            assert torch.equal(make(rows, columns, offset, device="mps").cpu(), make(rows, columns, offset))
    assert torch.equal(make(9, 4, dtype=torch.int32, device="mps").cpu(), make(9, 4, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="row must be non-negative"):
        make(-1, 3, device="mps")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64], ids=str)
@pytest.mark.parametrize(("dim", "size", "step"), [(0, 3, 1), (1, 2, 3), (2, 4, 2), (-1, 1, 5), (1, 5, 5), (0, 2, 3)])
def test_unfold_backward(dtype, dim, size, step):
    windows = torch.randn(4, 5, 9, dtype=dtype).unfold(dim, size, step)
    expected = torch.ops.aten.unfold_backward(windows, [4, 5, 9], dim, size, step)
    made = torch.ops.aten.unfold_backward(windows.to("mps"), [4, 5, 9], dim, size, step)
    torch.testing.assert_close(made.cpu(), expected)


@pytest.mark.parametrize(("gradient", "sizes", "dim"), [((1, 6, 10), (7, 20), 1), ((3, 6, 1, 10), (3, 20, 4), 1)])
def test_unfold_backward_of_one_for_many(gradient, sizes, dim):
    """istft hands over the gradient of one row for a batch of them."""
    x = torch.randn(gradient)
    expected = torch.ops.aten.unfold_backward(x, sizes, dim, 10, 2)
    torch.testing.assert_close(torch.ops.aten.unfold_backward(x.to("mps"), sizes, dim, 10, 2).cpu(), expected)
    with pytest.raises(RuntimeError, match="must match the existing size"):
        torch.ops.aten.unfold_backward(torch.ones(2, 6, 10, device="mps"), (9, 20), 1, 10, 2)


def test_unfold_backward_of_few():
    x = torch.tensor(3.0, device="mps", requires_grad=True)
    assert torch.autograd.grad(x.unfold(0, 1, 1).sum(), x)[0].item() == 1
    x = torch.zeros(0, 4, device="mps", requires_grad=True)
    assert torch.autograd.grad(x.unfold(1, 2, 2).sum(), x)[0].shape == (0, 4)


def test_equal():
    x = torch.arange(6.0, device="mps").view(2, 3)
    assert torch.equal(x, x.clone())
    assert torch.equal(x, x.t().contiguous().t())
    assert not torch.equal(x, x + 1)
    assert not torch.equal(x, x.view(3, 2))
    assert torch.equal(x[:0], x[:0])
    assert not torch.equal(x / 0, x / 0)
    with pytest.raises(RuntimeError, match="different devices|same device"):
        torch.equal(x, x.cpu())


def test_pinned_memory_says_so(mps):
    """FSDP pins again, and loses what it had, where is_pinned() denies it."""
    x = torch.arange(6.0).pin_memory()
    assert x.is_pinned() and x[3:].is_pinned() and x.pin_memory().data_ptr() == x.data_ptr()
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert not torch.empty(4).is_pinned() and not x.clone().is_pinned()
    assert torch.equal(x.to(mps, non_blocking=True).cpu(), torch.arange(6.0))
