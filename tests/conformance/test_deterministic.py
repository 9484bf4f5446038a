"""torch.use_deterministic_algorithms: the table of docs/determinism.md, row by row, and memory that it fills."""

import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "determinism.md").read_text()
TABLE = {row: outcome for row, outcome in re.findall(r"^\| (.+?) \| (deterministic|raises)\b", PAGE, re.MULTILINE)}
COUNT = 20000
ALERT = "does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms\\(True"


@pytest.fixture(autouse=True)
def deterministic(mps):
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def rand(*shape):
    """Numbers of many sizes, whose sums depend on their order."""
    return torch.randn(shape) * 10 ** torch.empty(shape).uniform_(-3, 3)


def few(*shape):
    return torch.randint(-5, 5, shape)


def places(*shape):
    return torch.randint(0, 5, shape)


def gradient(function, *arguments):
    """Of the first argument, for random gradients of the result."""
    torch.manual_seed(1)
    weight = torch.randn(())

    def call(first, *others):
        first = first.detach().requires_grad_()
        result = function(first, *others)
        numbers = torch.arange(result.numel(), device=result.device).view(result.shape)
        result.backward(((numbers * 7919 % 1013 / 1013) ** 3 * weight.item()).to(result.dtype))
        return first.grad

    return call, arguments


def unpool(spatial):
    return getattr(F, f"max_unpool{spatial}d"), (
        torch.rand((1, 1) + (4,) * spatial),
        torch.zeros((1, 1) + (4,) * spatial).long(),
        2,
    )


def fractional(spatial):
    pool = getattr(F, f"fractional_max_pool{spatial}d")
    samples = torch.full((2, 3, spatial), 0.4)
    return gradient(lambda x, s: pool(x, 3, output_size=5, _random_samples=s), rand(2, 3, *(9,) * spatial), samples)


def grid_sample(spatial):
    grid = torch.rand(1, 300, *(1,) * (spatial - 1), spatial) * 0.1
    return gradient(lambda x, g: F.grid_sample(x, g, align_corners=False), rand(1, 2, *(6,) * spatial), grid)


# A function and its arguments, whose tensors go to the device.
CASES = {
    "`index_put_(accumulate=False)`": lambda: (
        lambda x, i, j, v: x.clone().index_put_((i, j), v),
        (rand(10, 10, 3), few(COUNT), few(COUNT), rand(COUNT, 3)),
    ),
    "`index_put_(accumulate=True)`": lambda: (
        lambda x, i, j, v: x.clone().index_put_((i, j), v, accumulate=True),
        (rand(10, 10, 3), few(COUNT), few(COUNT), rand(COUNT, 3)),
    ),
    "`index_put_` of an expanded tensor": lambda: (
        lambda x, i, v: x.clone().expand(4, 10).index_put_((i,), v),
        (rand(1, 10), torch.tensor([1, 2]), rand(2, 10)),
    ),
    "`put_(accumulate=False)`": lambda: (lambda x, i, v: x.clone().put_(i, v), (rand(20), few(COUNT), rand(COUNT))),
    "`put_(accumulate=True)`": lambda: (
        lambda x, i, v: x.clone().put_(i, v, accumulate=True),
        (rand(4, 5), few(COUNT), rand(COUNT)),
    ),
    "`max_unpool1d`": lambda: unpool(1),
    "`max_unpool2d`": lambda: unpool(2),
    "`max_unpool3d`": lambda: unpool(3),
    "`scatter`": lambda: (lambda x, i, v: x.scatter(1, i, v), (rand(3, 5), places(3, COUNT), rand(3, COUNT))),
    "`scatter_add`": lambda: (lambda x, i, v: x.scatter_add(0, i, v), (rand(5, 3), places(COUNT, 3), rand(COUNT, 3))),
    "`scatter_reduce(prod)`": lambda: (
        lambda x, i, v: x.scatter_reduce(0, i, v, "prod"),
        (torch.rand(5), places(200), torch.rand(200) + 0.5),
    ),
    "`scatter_reduce(mean)`": lambda: (
        lambda x, i, v: x.scatter_reduce(0, i, v, "mean"),
        (rand(5), places(COUNT), rand(COUNT)),
    ),
    "`index_add`": lambda: (lambda x, i, v: x.index_add(1, i, v), (rand(3, 5), places(COUNT), rand(3, COUNT))),
    "`index_copy`": lambda: (lambda x, i, v: x.index_copy(0, i, v), (rand(5), places(COUNT), rand(COUNT))),
    "`bincount(weights)`": lambda: (torch.bincount, (places(COUNT), rand(COUNT))),
    "`fractional_max_pool2d` gradient": lambda: fractional(2),
    "`fractional_max_pool3d` gradient": lambda: fractional(3),
    "`grid_sample` gradient, 4-d": lambda: grid_sample(2),
    "`grid_sample` gradient, 5-d": lambda: grid_sample(3),
    "`embedding` gradient": lambda: gradient(lambda w, i: F.embedding(i, w), rand(5, 3), places(COUNT)),
    "`embedding_bag(max)` gradient": lambda: gradient(
        lambda w, i: F.embedding_bag(i, w, mode="max"), rand(5, 3), places(500, 2)
    ),
    "`gather` gradient": lambda: gradient(lambda x, i: x.gather(0, i), rand(5, 3), places(COUNT, 3)),
    "indexing gradient": lambda: gradient(lambda x, i: x[:, i], rand(2, 5, 3), few(COUNT)),
    "`take` gradient": lambda: gradient(torch.take, rand(5), places(COUNT)),
    "`scaled_dot_product_attention` gradient": lambda: gradient(
        F.scaled_dot_product_attention, torch.randn(1, 2, 70, 16).half(), *torch.randn(2, 1, 2, 300, 16).half()
    ),
}


def on(device, arguments):
    return [a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments]


def test_the_table_and_the_cases_are_the_same():
    assert set(TABLE) == set(CASES)
    assert set(TABLE.values()) == {"deterministic", "raises"}


@pytest.mark.parametrize("row", [row for row, outcome in TABLE.items() if outcome == "deterministic"])
def test_results_are_the_same_every_time(row):
    function, arguments = CASES[row]()
    there = on("mps", arguments)
    first, *others = [function(*there).cpu() for _ in range(5)]
    for other in others:
        assert torch.equal(first, other)
    wanted = function(*arguments)
    scale = wanted.abs().max().item()
    tolerance = 2e-3 if wanted.dtype == torch.half else 2e-6
    torch.testing.assert_close(first, wanted, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("count", [3000, 70_000])
def test_sums_in_one_dimension(count):
    """Few elements are added in the CPU's order, many where they are sorted."""
    x, index, source = rand(500), torch.randint(0, 500, (count,)), rand(count)
    wanted = x.scatter_add(0, index, source)
    first, *others = [x.to("mps").scatter_add(0, index.to("mps"), source.to("mps")).cpu() for _ in range(3)]
    assert all(torch.equal(first, other) for other in others)
    if count == 3000:
        assert torch.equal(first, wanted)
    torch.testing.assert_close(first, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("row", [row for row, outcome in TABLE.items() if outcome == "raises"])
def test_what_has_no_order_raises(row):
    function, arguments = CASES[row]()
    there = on("mps", arguments)
    with pytest.raises(RuntimeError, match=ALERT), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Use of index_put_ on expanded tensors")
        function(*there)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match=ALERT):
        function(*there)
    torch.use_deterministic_algorithms(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Use of index_put_ on expanded tensors")
        function(*there)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool]
)
def test_index_put_shapes(accumulate, dtype):
    """Adjacent and separate indices, broadcasts, strides, views and empty indices, beside the CPU."""
    x = torch.randint(0, 5, (4, 5, 6, 7)).to(dtype)
    i, j = torch.randint(-4, 4, (3, 1)), torch.randint(0, 4, (40,))
    for view in (x, x.permute(2, 3, 0, 1), x[..., ::2], x[:, 1:]):
        for index in ([i, j], [None, i, j], [i, None, j], [None, None, None, j], [i[:0]], [torch.tensor(2)]):
            there = [k if k is None else k.to("mps") for k in index]
            shape = torch.ops.aten.index(view, index).shape
            for value in (torch.randint(0, 5, shape).to(dtype), torch.ones((), dtype=dtype)):
                wanted = torch.ops.aten.index_put_(view.clone(), index, value, accumulate)
                got = torch.ops.aten.index_put_(view.to("mps"), there, value.to("mps"), accumulate)
                torch.testing.assert_close(got.cpu(), wanted, rtol=1e-2 if dtype == torch.bfloat16 else 0, atol=0)


@pytest.mark.parametrize("index", [5, -6])
@pytest.mark.parametrize("accumulate", [False, True])
def test_an_index_out_of_range_raises(index, accumulate):
    i = torch.tensor([0, 1, index, 1], device="mps")
    for call in (
        lambda: torch.zeros(5, device="mps").index_put_((i,), torch.rand(4, device="mps"), accumulate),
        lambda: torch.zeros(5, 9, device="mps").index_put_((i, i), torch.rand(4, device="mps"), accumulate),
        lambda: torch.zeros(5, device="mps").put_(i, torch.rand(4, device="mps"), accumulate=True),
    ):
        call()
        with pytest.raises(torch.AcceleratorError, match="put_"):
            torch.mps.synchronize()


DTYPES = [torch.float32, torch.half, torch.bfloat16, torch.complex64, torch.int64, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_new_memory_is_filled_as_on_the_cpu(dtype):
    def made(device):
        yield torch.empty(5, 3, dtype=dtype, device=device)
        yield torch.empty_strided((3, 2), (1, 4), dtype=dtype, device=device)
        yield torch.empty_like(torch.zeros(4, 2, dtype=dtype, device=device).t())
        yield torch.zeros(2, dtype=dtype, device=device).resize_(7)
        yield torch.zeros(6, dtype=dtype, device=device)[:2].resize_(3, 4)

    for got, wanted in zip(made("mps"), made("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=0, atol=0, equal_nan=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        ones = torch.ones(64, dtype=dtype, device="mps")
        assert torch.equal(ones.resize_(32).resize_(64).cpu(), torch.ones(64, dtype=dtype))
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
