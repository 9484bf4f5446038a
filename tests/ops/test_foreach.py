"""Operators over lists of tensors (torch._foreach_*) against the CPU, and where they must go tensor by tensor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from anymps_codegen.pointwise import read_rows  # noqa: E402
from anymps_codegen.schema import pytorch_schema  # noqa: E402

pytestmark = pytest.mark.usefixtures("mps", "no_fallback")

ROWS = read_rows(Path(__file__).resolve().parents[2] / "csrc" / "ops" / "pointwise.yaml", pytorch_schema())
BASES = sorted({base for row in ROWS for base in row.foreach or []})
SHAPES = [(), (1,), (33,), (0,), (70, 80), (2, 3, 4), (5000,), (3, 1)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def overloads(base: str) -> list:
    packets = [getattr(torch.ops.aten, name) for name in (base, base + "_") if hasattr(torch.ops.aten, name)]
    found = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    return [f for f in found if not any(a.is_out for a in f._schema.arguments)]


CASES = [f for base in BASES for f in overloads(base)]


def lists(seed: int, dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.rand(s, generator=generator).add_(0.1).to(dtypes[i % len(dtypes)]) for i, s in enumerate(SHAPES)]
    made[4] = made[4].t()
    return made


def arguments(function, dtypes: list[torch.dtype]) -> dict:
    values: dict = {"Tensor": torch.tensor(0.7), "number": 0.7}
    made = {}
    for k, argument in enumerate(function._schema.arguments):
        kind = str(argument.type)
        if kind == "List[Tensor]":
            made[argument.name] = lists(k, dtypes)
        elif kind == "List[number]":
            made[argument.name] = [0.25 + 0.1 * i for i in range(len(SHAPES))]
        elif argument.name == "scalars":
            made[argument.name] = torch.linspace(0.2, 0.9, len(SHAPES))
        else:
            made[argument.name] = values[kind]
    return made


def moved(value):
    """The same on the device, with the same strides; packed scalars stay."""
    if isinstance(value, list):
        return [v.to("mps") if isinstance(v, torch.Tensor) else v for v in value]
    return value.to("mps") if isinstance(value, torch.Tensor) and value.dim() == 0 else value


def compare(got: list, expected: list) -> None:
    for a, e in zip(got, expected, strict=True):
        # The CPU rounds numbers to 16 bits before it adds them: an error of the operands, not of the result.
        tolerance = {torch.float32: (1e-5, 1e-6), torch.float16: (2e-3, 2e-3), torch.bfloat16: (2e-2, 2e-2)}
        rtol, atol = tolerance.get(e.dtype, (None, None))
        torch.testing.assert_close(a.cpu(), e, equal_nan=True, rtol=rtol, atol=atol)


def run(function, kwargs: dict) -> list:
    result = function(**kwargs)
    return kwargs["self"] if result is None else result


@pytest.mark.parametrize("function", CASES, ids=str)
@pytest.mark.parametrize("dtypes", [DTYPES[:1], DTYPES], ids=["float32", "each its own"])
def test_against_the_cpu(function, dtypes):
    kwargs = arguments(function, dtypes)
    on_device = {name: moved(value) for name, value in kwargs.items()}
    compare(run(function, on_device), run(function, kwargs))


@pytest.mark.parametrize("order", [1, 2, float("inf"), 0, 3, -1])
def test_norm(order):
    tensors = [t for t in lists(0, DTYPES) if t.numel() or order not in (float("inf"), -1)] + [
        torch.full((3,), float("nan"))
    ]
    got, expected = torch._foreach_norm(moved(tensors), order), torch._foreach_norm(tensors, order)
    for a, e in zip(got, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=2e-3 if e.dtype != torch.float32 else 1e-5, atol=0, equal_nan=True)


def test_norm_of_many_and_of_a_long_one():
    tensors = [torch.full((300_000,), 2.0), *[torch.full((i % 7 + 1,), float(i)) for i in range(5000)]]
    got = torch.stack(torch._foreach_norm(moved(tensors))).cpu()
    torch.testing.assert_close(got, torch.stack(torch._foreach_norm(tensors)))


def test_zero_and_copy():
    for dtypes in (DTYPES[:1], DTYPES, [torch.int32, torch.float32]):
        a, b = lists(0, dtypes), lists(1, DTYPES)
        x, y = moved(a), moved(b)
        torch._foreach_copy_(x, y)
        torch._foreach_copy_(a, b)
        compare(x, a)
        torch._foreach_zero_(x)
        assert all(not t.any() for t in x)


def test_numbers_and_kinds_that_change_the_dtype():
    ints, bools = [torch.arange(5), torch.arange(3, dtype=torch.uint8)], [torch.tensor([True, False])]
    for tensors in (ints, bools, [torch.randn(3, dtype=torch.complex64)]):
        for f in (torch._foreach_add, torch._foreach_mul, torch._foreach_div, torch._foreach_pow):
            compare(f(moved(tensors), 2.5), f(tensors, 2.5))
    compare(torch._foreach_add(moved([torch.ones(3)]), 1j), torch._foreach_add([torch.ones(3)], 1j))
    halves = [torch.ones(4).half()]
    compare(torch._foreach_add(moved(halves), moved([torch.ones(4)])), torch._foreach_add(halves, [torch.ones(4)]))
    compare(torch._foreach_add(moved(halves), moved([torch.ones(1)])), torch._foreach_add(halves, [torch.ones(1)]))


def test_entries_that_depend_on_each_other():
    """One tensor twice, and results that a later entry reads: as if entries ran in order."""
    for make in (lambda t: ([t, t], [t * 2, t * 3]), lambda t: ([t, t + 1], None)):
        results = []
        for device in ("cpu", "mps"):
            first, second = make(torch.arange(4.0, device=device))
            torch._foreach_add_(first, second if second is not None else [first[1], first[0]])
            results.append([t.cpu() for t in first])
        compare(results[1], results[0])


@pytest.mark.parametrize(
    "name", ["_foreach_add_", "_foreach_mul_", "_foreach_copy_", "_foreach_lerp_", "_foreach_addcmul_"]
)
def test_an_entry_that_overlaps_its_operand_in_part_is_refused(name, raises_as_on_the_cpu):
    def case(ones):
        x, y = ones(10), ones(9)
        operands = {"_foreach_lerp_": ([x[:-1]], [y]), "_foreach_addcmul_": ([y], [x[:-1]])}
        getattr(torch, name)([x[1:]], *operands.get(name, ([x[:-1]],)))

    raises_as_on_the_cpu(case)


def test_entries_that_overlap_others_in_part():
    """As if entries ran in order: results that overlap each other, and operands of one that another writes."""
    for results, operands in (((0, 4, 8), (9, 9, 9)), ((0, 6, 12), (4, 10, 16)), ((6, 0, 12), (10, 16, 3))):
        base = torch.arange(22.0)
        device = base.to("mps")
        for x in (base, device):
            torch._foreach_add_([x[r : r + 6] for r in results], [x[o : o + 6].clone() for o in operands])
        assert torch.equal(device.cpu(), base)
        if any(abs(r - o) < 6 for r, o in zip(results, operands)):
            continue
        for x in (base, device):
            torch._foreach_mul_([x[r : r + 6] for r in results], [x[o : o + 6] for o in operands])
        assert torch.equal(device.cpu(), base)


def test_truth_values_as_numbers(raises_as_on_the_cpu):
    for name in ("_foreach_sub", "_foreach_sub_"):
        raises_as_on_the_cpu(lambda ones, name=name: getattr(torch, name)([ones(3)], True))
        raises_as_on_the_cpu(lambda ones, name=name: getattr(torch, name)([ones(3), ones(2)], [1.0, True]))
    for f in (torch._foreach_add, torch._foreach_mul, torch._foreach_div):
        compare(f([torch.ones(3, device="mps")], True), f([torch.ones(3)], True))


def test_layouts():
    base = torch.randn(6, 10)
    views = [base[:, ::2], base.t(), base[1:3], base[0].expand(4, 10)]
    compare(torch._foreach_exp([v.to("mps") for v in views]), [v.exp() for v in views])
    device = base.to("mps")
    parts = [device[:2], device[2:4, ::2], device[4:]]
    torch._foreach_mul_(parts, 3)
    expected = base.clone()
    torch._foreach_mul_([expected[:2], expected[2:4, ::2], expected[4:]], 3)
    assert torch.equal(device.cpu(), expected)
    compare(torch._foreach_add([device], [device.t().contiguous().t()]), [expected + expected])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_address_and_length(dtype):
    """Aligned pieces of a buffer travel in words of four elements; what lies between pieces stays."""
    expected = torch.randn(200_000).to(dtype)
    device, begin = expected.to("mps"), 0
    pieces = []
    for length in (1, 3, 4, 5, 7, 64, 8191, 8192, 8193, 70_001):
        for gap in (0, 1, 2, 3):
            begin = begin + (-begin) % 4 + gap
            if begin + length <= len(expected):
                pieces.append(slice(begin, begin + length))
                begin += length
    assert len(pieces) > 30
    torch._foreach_mul_([device[p] for p in pieces], 3)
    torch._foreach_mul_([expected[p] for p in pieces], 3)
    assert torch.equal(device.cpu(), expected)


def test_errors():
    ones = [torch.ones(2, device="mps")]
    with pytest.raises(RuntimeError, match="Tensor list must have at least one tensor"):
        torch._foreach_add([], 1)
    with pytest.raises(RuntimeError, match="Tensor lists must have the same number of tensors, got 1 and 2"):
        torch._foreach_add(ones, ones * 2)
    with pytest.raises(RuntimeError, match="same number of elements as scalar list"):
        torch._foreach_add(ones, [1.0, 2.0])


def test_gradients():
    for device in ("cpu", "mps"):
        leaves = [t.to(device).requires_grad_() for t in (torch.arange(3.0), torch.ones(2, 2))]
        out = torch._foreach_mul(torch._foreach_exp(leaves), leaves)
        grads = torch.autograd.grad([t.sum() for t in out], leaves)
        compare([g.cpu() for g in grads], [(t.exp() * (1 + t)).detach().cpu() for t in leaves])


def test_clip_grad_norm():
    models = []
    for device in ("cpu", "mps"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Linear(50, 3))
        x = torch.randn(8, 40)
        model = model.to(device)
        (model(x.to(device)) ** 2).sum().backward()
        grads = [p.grad for p in model.parameters()]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (0.5 / (norm + 1e-6)).clamp(max=1.0))
        models.append((norm.cpu(), [p.grad.cpu() for p in model.parameters()]))
    torch.testing.assert_close(models[1][0], models[0][0])
    compare(models[1][1], models[0][1])
