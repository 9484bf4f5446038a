"""softmax, log_softmax and their gradients against the CPU."""

import pytest
import torch
import torch.nn.functional as F
from compare import SOFTMAX as TOLERANCE
from compare import SOFTMAX_GRADIENT, close

SHAPES = ((), (1,), (5,), (3, 4), (6, 33), (2, 3, 8), (7, 300), (2, 1031), (4, 3, 5, 7), (64, 4), (1, 1))
OPS = (torch.softmax, torch.log_softmax)


def check(actual, expected, tolerance=TOLERANCE):
    close(actual, expected, tolerance)


def growth(grad, dim):
    """A row's gradients hold the sum of what comes in, whose rounding grows with the sum of the magnitudes."""
    return max(1, grad.float().abs().sum(dim).max().item() / 512) if grad.numel() else 1


def compare(op, x, grad, dim, layout=lambda t: t):
    """Forward and gradient of op over dim, of layout(x)."""
    results = []
    for device in ("cpu", "mps"):
        leaf = x.to(device).requires_grad_()
        out = op(layout(leaf), dim)
        (gradient,) = torch.autograd.grad(out, leaf, grad.to(device))
        results.append((out.detach(), gradient))
    (expected, expected_gradient), (actual, actual_gradient) = results
    check(actual, expected)
    check(actual_gradient, expected_gradient, SOFTMAX_GRADIENT[x.dtype] * growth(grad, dim))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_shapes(op, dtype):
    for shape in SHAPES:
        x, grad = torch.randn(shape).to(dtype) * 3, torch.randn(shape).to(dtype)
        for dim in range(max(1, len(shape))):
            compare(op, x, grad, dim)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rows_of_words(op, dtype):
    """Rows of 16-bit elements that lanes of a GPU keep as words, some with infinities and NaN."""
    for rows, size in ((1, 8), (37, 40), (9, 128), (101, 264), (10, 512)):
        x = (torch.randn(rows, size) * 3).to(dtype)
        if rows > 8:
            x[1], x[2, 3], x[3, 5], x[4, :7] = -torch.inf, torch.nan, torch.inf, -torch.inf
        check(op(x.to("mps"), 1), op(x, 1))
        check(op(x.to("mps").flatten()[size:].view(-1, size), 1), op(x[1:], 1))


@pytest.mark.parametrize("op", OPS)
def test_strides(op):
    x = torch.randn(6, 5, 8)
    layouts = [
        lambda t: t.transpose(0, 2),
        lambda t: t[1:, :, ::2],
        lambda t: t[:, 1],
        lambda t: t[:1].expand(4, -1, -1),
        lambda t: t.flatten()[3:],
    ]
    for layout in layouts:
        for dim in range(layout(x).dim()):
            grad = torch.randn(layout(x).shape)
            compare(op, x, grad, dim, layout)
            compare(op, x, grad.transpose(0, -1).contiguous().transpose(0, -1), dim, layout)


@pytest.mark.parametrize("op", OPS)
def test_long_rows(op):
    for shape, dim in (((2, 100_000), 1), ((50_257, 3), 0), ((3, 50_257), 1), ((70_000, 3), 1)):
        x = torch.randn(shape)
        check(op(x.to("mps"), dim), op(x.double(), dim).float())


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_long_rows_at_any_address(op, dtype):
    """Rows whose beginnings are no multiples of 16 bytes apart, of tensors that begin at any element."""
    for size in (2049, 5003, 8196):
        for offset in (0, 1, 3):
            x = torch.randn(offset + 5 * size).to(dtype) * 3
            compare(op, x, torch.randn(5, size).to(dtype), 1, lambda t, o=offset, s=size: t[o:].view(5, s))
    x = torch.full((5, 4097), -float("inf"), dtype=dtype)
    x[1, 4096], x[2] = 1.0, float("nan")
    x[3:] = torch.randn(2, 4097)
    x[3, 700], x[4, 700] = float("inf"), float("nan")
    check(op(x.to("mps"), 1), op(x, 1))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("extra", [-5, 0, 3, 4096])
@pytest.mark.parametrize("threads", [512, 1024])
def test_rows_about_as_long_as_threads_keep(op, threads, extra):
    """512 or 1,024 threads keep seven words of 16 bytes; rows with infinities and NaN on either side of that, too."""
    size, nan, inf = 4 * threads * 7 + extra, float("nan"), float("inf")
    x, grad = torch.randn(3 + 8 * size) * 3, torch.randn(3 + 8 * size)
    rows = x[3:].view(8, size)
    rows[1], rows[2, : size // 2], rows[3, size - 9 :] = -inf, -inf, -inf
    rows[4, 0], rows[5, size - 1], rows[6, size - 5] = nan, nan, inf
    leaf = x.to("mps").requires_grad_()
    out = op(leaf[3:].view(8, size), 1)
    (actual,) = torch.autograd.grad(out, leaf, grad[3:].view(8, size).to("mps"))
    leaf = x.double().requires_grad_()
    wide = op(leaf[3:].view(8, size), 1)
    (expected,) = torch.autograd.grad(wide, leaf, grad[3:].view(8, size).double())
    # A software driver's lane adds a whole row of 28,672 and more, as the CPU's does.
    check(out.detach(), wide.detach().float(), 2e-5)
    check(actual, expected.float(), 2e-5 * growth(grad[3:].view(8, size), 1))


@pytest.mark.parametrize("op", OPS)
def test_infinities(op):
    nan, inf = float("nan"), float("inf")
    rows = [[-inf, -inf, -inf], [-inf, 1.0, 2.0], [inf, 1.0, 2.0], [inf, inf, 0.0], [nan, 1.0, 2.0], [-inf, nan, 0.0]]
    rows += [[1e38, -1e38, 0.0], [3e38, 3e38, 3e38], [-200.0, 0.0, -90.0]]
    for row in rows:
        for repeat in (1, 4, 40):
            x = torch.tensor(row * repeat)
            for dtype in TOLERANCE:
                check(op(x.to(dtype).to("mps"), 0), op(x.to(dtype), 0))
                grid = torch.stack([x, x.flip(0)]).to(dtype)
                check(op(grid.to("mps"), 1), op(grid, 1))
                check(op(grid.t().contiguous().to("mps"), 0), op(grid.t().contiguous(), 0))


def test_masked_rows_keep_zeros():
    x = torch.randn(5, 40)
    x[:, 17:] = float("-inf")
    y = torch.softmax(x.to("mps"), 1).cpu()
    assert (y[:, 17:] == 0).all()
    torch.testing.assert_close(y.sum(1), torch.ones(5))


def test_dtypes():
    x = torch.randn(4, 9)
    for op in OPS:
        check(op(x.half().to("mps"), 1, dtype=torch.float32), op(x.half(), 1, dtype=torch.float32))
        check(op(torch.arange(6).to("mps"), 0, dtype=torch.float32), op(torch.arange(6), 0, dtype=torch.float32))
        out = torch.empty(9, 4, device="mps").t()
        op(x.to("mps"), 1, out=out)
        check(out, op(x, 1))
        for bad in (lambda t, op=op: op(t, 2), lambda t, op=op: op(t.to(torch.int64), 1)):
            with pytest.raises(Exception) as expected:
                bad(x)
            with pytest.raises(expected.type):
                bad(x.to("mps"))


def test_empty():
    for shape in ((0,), (0, 3), (3, 0)):
        for op in OPS:
            for dim in range(len(shape)):
                check(op(torch.empty(shape, device="mps"), dim), op(torch.empty(shape), dim))


def test_rapid_succession():
    x = torch.randn(2000, 12)
    on_device = x.to("mps")
    rows = [F.softmax(row, 0) for row in on_device]
    check(torch.stack(rows), F.softmax(x, 1))


@pytest.mark.parametrize("size", [70, 3000, 40000])
@pytest.mark.parametrize("op", [torch.softmax, torch.log_softmax, lambda x, dim: F.layer_norm(x, x.shape[dim:])])
def test_equal_elements_of_a_row_get_equal_results(mps, op, size):
    """Whichever thread has them: else argmax of the results would not be that of the row."""
    values = torch.randn(7) * 3
    order = torch.randint(0, 7, (4, size))
    results = op(values[order].to(mps), -1).cpu()
    for row, places in zip(results, order, strict=True):
        for value in range(7):
            assert row[places == value].unique().numel() <= 1
