"""What PyTorch's own lowerings and decompositions compute wrong, on every device, and torch_anymps corrects."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import compiled_agrees
from op_db_compare import tensors_in
from torch._inductor.utils import fresh_cache

pytestmark = pytest.mark.usefixtures("slang")


def test_gradients_of_averages_over_parts_of_windows(mps):
    def function(x):
        return F.avg_pool2d(x[0], (2, 3), (3, 2), (1, 0), ceil_mode=True), F.avg_pool3d(x, (2, 1, 3), 2, ceil_mode=True)

    compiled_agrees(function, torch.randn(1, 2, 3, 7, 5, requires_grad=True), backward=True)


@pytest.mark.parametrize("dynamic", (None, True))
def test_positions_of_maxima_are_never_those_of_the_padding(mps, dynamic):
    def function(x):
        return F.max_pool2d(x, 3, 2, 1, return_indices=True), F.max_pool3d(x[None], 3, 2, 1, return_indices=True)

    x = torch.randn(2, 7, 6)
    x[0], x[1, :3] = -torch.inf, -torch.inf
    compiled_agrees(function, x.requires_grad_(), dynamic=dynamic, backward=True)


def test_samples_of_fractional_pooling_are_those_of_their_dimension(mps):
    def function(x, samples):
        return F.fractional_max_pool3d(x, 2, output_size=(3, 4, 2), _random_samples=samples, return_indices=True)

    x = torch.randn(2, 3, 7, 9, 5, requires_grad=True)
    compiled_agrees(function, x, torch.rand(2, 3, 3), backward=True)


@pytest.mark.parametrize("training", (False, True))
def test_labels_end_before_the_first_negative_one(mps, training):
    def function(x, labels):
        return F.multilabel_margin_loss(x, labels, reduction="none"), F.multilabel_margin_loss(x[0], labels[0])

    labels = torch.tensor([[3, 0, -1, 1, 2], [1, -1, 0, 0, 0], [-1, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    with torch.inference_mode(not training):
        compiled_agrees(function, torch.randn(4, 5, requires_grad=training), labels, backward=training)


def test_kernels_read_parts_of_tensors_of_the_cpu(mps):
    def function(x, s):
        return torch.where(x > 0, s[0], s[1]) * (s[1] * 2 + s[0]).sin(), x * s[:1].sum()

    x, s = torch.randn(5), torch.randn(3)
    for got, want in zip(torch.compile(function)(x.to(mps), s), function(x, s), strict=True):
        torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize(
    "function",
    (
        lambda x, i, s, number: (x.long() + i, x * s),
        lambda x, i, s, number: x * number + number,
        lambda x, i, s, number: (x * s, s + 1, torch.ones(3) + 1),
    ),
    ids=("dtypes", "doubles", "returned"),
)
def test_replays_get_numbers_of_the_cpu(mps, function):
    """They keep their dtypes, differ in the sign of zero, may be doubles, as Python's are, and be returned there."""
    compiled = torch.compile(function, mode="reduce-overhead", dynamic=True)
    for i, s, number in [(2, 0.5, 2.5)] * 3 + [(2, 0.0, 0.0), (3, -0.0, -0.0), (4, 1.5, 3.5)] * 3:
        x, i, s = torch.randn(5), torch.tensor(i), torch.tensor(s)
        got, want = tensors_in(compiled(x.to(mps), i, s, number)), tensors_in(function(x, i, s, number))
        assert [t.device for t in got] == [t.device for t in tensors_in(function(x.to(mps), i, s, number))]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.cpu(), b)
            assert not a.is_floating_point() or torch.equal(a.cpu().signbit(), b.signbit())


def test_bits_of_dynamic_numbers_are_integers(mps):
    def function(x, i, number):
        return i + (number & 6), i * ((number | 1) + 2), i[: number ^ 3], x + (number & 5), x - (number ^ 1) / 3

    compiled_agrees(function, torch.randn(9), torch.arange(9), 5, dynamic=True)


def test_dynamic_strides_without_an_order(mps):
    """The gradient of a convolution in channels-last, whose sizes are quotients."""

    def function(x, inner, outer):
        return torch.conv2d(torch.conv2d(x, inner, padding=1, groups=2), outer, stride=2, padding=1)

    x, inner, outer = torch.randn(2, 4, 6, 5), torch.randn(4, 2, 3, 3), torch.randn(4, 4, 3, 3)
    inner = inner.to(memory_format=torch.channels_last)
    inputs = (t.requires_grad_() for t in (x, inner, outer))
    compiled_agrees(function, *inputs, dynamic=True, backward=True, tolerance=1e-3)


def test_powers_of_integers_and_dynamic_numbers(mps):
    def function(i, number):
        return i**number, number**i, *torch._foreach_pow([i, i + 1], number)

    compiled_agrees(function, torch.arange(5), 3, dynamic=True)


@pytest.mark.parametrize("dynamic", (None, True))
def test_rows_in_random_order(mps, dynamic):
    def function(x, y):
        order = torch.randperm(x.shape[0], device=x.device)
        return order, x[order] * 2, y[order], y[torch.randperm(x.shape[0], device=x.device)[:7]]

    x, y = torch.randn(50, 3, device=mps), torch.arange(50, device=mps)
    order, rows, numbers, some = torch.compile(function, dynamic=dynamic, fullgraph=True)(x, y)
    assert order.sort().values.equal(y) and numbers.equal(order) and rows.equal(x[order] * 2)
    assert some.shape == (7,) and some.unique().numel() == 7


def _exchanged(x, y):
    t = x.clone()
    x.copy_(y)
    y.copy_(t)


def _exchanged_transposed(x, y):
    t = x.t().clone()
    x.copy_(y)
    y.copy_(t.t())


def _passed_on(x, y):
    rows, other = x[1:].clone(), y.clone()
    x.copy_(other * 2)
    y[1:] = rows


@pytest.mark.parametrize("dynamic", (None, True))
@pytest.mark.parametrize("function", (_exchanged, _exchanged_transposed, _passed_on))
def test_inputs_get_what_others_were(mps, function, dynamic):
    compiled_agrees(function, torch.randn(4, 6), torch.randn(4, 6), dynamic=dynamic)


def _filled(x):
    x[0] = 3
    return x.clone()


def _filled_transposed(x):
    x.index_fill_(0, torch.tensor([1], device=x.device), 2)
    return x.t().clone(), x[0] + 1


def _written_with_a_result(x):
    y = x.index_fill(0, torch.tensor([1], device=x.device), 2)
    x.copy_(y)
    return y


@pytest.mark.parametrize("dynamic", (None, True))
@pytest.mark.parametrize("function", (_filled, _filled_transposed, _written_with_a_result))
def test_results_are_no_inputs_that_are_written(mps, function, dynamic):
    """PyTorch's pass that computes in place takes the input for the result of its clone."""
    compiled_agrees(function, torch.randn(4, 6), dynamic=dynamic)
    x = torch.randn(4, 6, device=mps)
    for result in tensors_in(torch.compile(function, dynamic=dynamic)(x)):
        assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def _rest_of_an_input(x):
    x.add_(1)
    return x[x.shape[0] // 2 :], x[1:].t(), x


def _rest_of_what_is_written(x):
    y = x * 2
    x.copy_(y)
    return y[x.shape[0] // 2 :], y, y[1:].t()


def _rest_of_two(x):
    rest, y = x[2:], x * 3
    rest.mul_(2)
    x[0] = y[0]
    y.add_(x)
    return rest.chunk(2, 0)[-1], y[1:], x.clone()[x.shape[0] // 2 :]


@pytest.mark.parametrize("dynamic", (None, True))
@pytest.mark.parametrize("backward", (False, True))
@pytest.mark.parametrize("function", (_rest_of_an_input, _rest_of_what_is_written, _rest_of_two))
def test_parts_of_inputs_that_are_written(mps, function, backward, dynamic):
    """AOTAutograd makes a view of the input by the offset of the graph's result, which a copy has not."""

    def applied(x, weight):
        return function(x * weight) if backward else function(x)

    x, weight = torch.randn(8, 6), torch.randn(6, requires_grad=backward)
    compiled_agrees(applied, x, weight, dynamic=dynamic, backward=backward)
    if backward:
        return
    x = x.to(mps)
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(function, dynamic=dynamic, mode=mode)
        for _ in range(3):
            ours, theirs = x.clone(), x.clone()
            for got, want in zip(compiled(ours), function(theirs), strict=True):
                torch.testing.assert_close(got, want)
                assert got.stride() == want.stride()
                is_view = want.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
                assert (got.untyped_storage().data_ptr() == ours.untyped_storage().data_ptr()) == is_view
            torch.testing.assert_close(ours, theirs)


def test_cached_graphs_differ_by_what_is_a_result(mps):
    def view(x):
        x.add_(1)
        return x

    def result(x):
        y = x + 1
        x.copy_(y)
        return y

    with fresh_cache():
        for function in (view, result):
            torch._dynamo.reset()  # what the cache has, it gives again
            x = torch.randn(4, 6, device=mps)
            assert (torch.compile(function)(x).data_ptr() == x.data_ptr()) == (function is view)


def test_draws_of_one_probability_have_the_dtype_of_their_argument(mps):
    def function(x):
        dropped = torch.func.vmap(lambda row: F.dropout(row, 0.5), randomness="different")(x)
        return torch.bernoulli(x.half(), 0.5), torch.bernoulli(x, 0.5).div_(0.5), dropped

    results = torch.compile(function, fullgraph=True)(torch.ones(40, 50, device=mps))
    assert [result.dtype for result in results] == [torch.float16, torch.float32, torch.float32]
    for result, most in zip(results, (1, 2, 2)):
        assert result.unique().tolist() == [0, most] and abs(result.float().mean().item() / most - 0.5) < 0.1


@pytest.mark.parametrize("sizes", ((2, 5, 2), (3, 6, 5), (1, 4, 4)))
@pytest.mark.parametrize("dynamic", (None, True))
def test_gradients_of_pools_without_a_batch(mps, sizes, dynamic):
    """The stride of their rows is 1 where they have one column, which is not that of channels."""

    def function(x):
        return F.max_pool2d(x, 2, 2), F.max_pool2d(x * 2, 2, 1, ceil_mode=True)

    compiled_agrees(function, torch.randn(sizes, requires_grad=True), backward=True, dynamic=dynamic)
