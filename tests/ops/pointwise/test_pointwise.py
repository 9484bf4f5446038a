"""Every operator of pointwise.yaml against the CPU: dtypes, special values, layouts, out=, in place, mixed operands.

The cases come from the table and PyTorch's schemas: a new row is tested without another line. Errors are the CPU's.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from compare import ROUNDED
from op_db_compare import map_tensors
from op_db_support import copied, whole_storage

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

from anymps_codegen.pointwise import read_rows  # noqa: E402
from anymps_codegen.schema import pytorch_schema  # noqa: E402

pytestmark = pytest.mark.usefixtures("mps", "no_fallback")

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
DTYPES = (*FLOATS, *INTEGERS, *UNSIGNED, torch.bool, torch.complex64)
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.0, -3.0, 1e-3, 100.0, -100.0)
KINDS = {"float": FLOATS, "int": INTEGERS, "uint": UNSIGNED, "bool": (torch.bool,), "complex": (torch.complex64,)}
# Scalar arguments by name; integers for integer tensors, their defaults where they are not named.
NUMBERS = {"value": 3, "other": 2, "threshold": 1, "weight": 0.3, "min": -1, "max": 1, "min_val": -1, "max_val": 1}
NUMBERS |= {"negative_slope": 0.1, "beta": 1.5, "lambd": 0.5, "alpha": 2, "scale": 1.5, "input_scale": 0.5, "n": 2}
NUMBERS |= {"eps": 0.01}
INTEGER_DIVISION = {"div_mode", "floor_divide", "remainder", "fmod"}
# Rows and operands for which the CPU's answer is not the one to have.
NAN_OPERAND = {"igamma", "igammac", "special_zeta", "hardswish_backward"}  # the CPU looks at the other operand first
# A NaN that the gradient is masked by: the CPU's vector code, its scalar code and CUDA differ.
NAN_OPERAND |= {"hardshrink_backward", "softshrink_backward", "hardtanh_backward", "elu_backward", "logit_backward"}
INFINITE_OPERAND = {"silu_backward", "mish_backward", "gelu", "gelu_backward", "polygamma"}  # inf * 0 in its formula
INFINITE_OPERAND |= NAN_OPERAND - {"special_zeta"}
HUGE_INTEGER = {"special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1", "special_airy_ai"}
HUGE_INTEGER |= {"special_zeta", "igamma", "igammac"}  # it loses the phase, or a sum overflows
COARSE = {"logit": 0.06}  # it rounds 1 - eps to 16 bits
COARSE |= {"special_chebyshev_polynomial": 1e-4}  # degree 10 near its zeros: terms of 1e3 cancel


@dataclass(frozen=True)
class Case:
    """An overload of an operator with one choice of its string or bool argument."""

    row: str
    op: str
    choice: tuple
    kinds: frozenset  # dtypes that the row computes in
    converts: bool

    @property
    def overload(self):
        return overload(self.op)

    def __str__(self) -> str:
        return "-".join([self.op, *(str(value) for _, value in self.choice)])


def overload(op: str):
    packet, _, name = op.partition(".")
    return getattr(getattr(torch.ops.aten, packet), name or "default")


def inputs_of(function) -> list:
    return [a for a in function._schema.arguments if not a.is_out]


def outs_of(function) -> list:
    return [a for a in function._schema.arguments if a.is_out]


def siblings(op: str) -> dict:
    """The functional, in-place and out overloads that take the same inputs as op."""
    signature = [(a.name, str(a.type)) for a in inputs_of(overload(op))]
    base = op.partition(".")[0].removesuffix("_")
    found = {}
    for kind, name in (("plain", base), ("inplace", base + "_")):
        packet = getattr(torch.ops.aten, name, None)
        for candidate in [getattr(packet, o) for o in packet.overloads()] if packet else []:
            if [(a.name, str(a.type)) for a in inputs_of(candidate)] == signature:
                found["out" if outs_of(candidate) else kind] = candidate
    return found


def cases() -> list[Case]:
    found = []
    for row in read_rows(ROOT / "csrc" / "ops" / "pointwise.yaml", pytorch_schema()):
        for op, value in itertools.product(row.ops, row.choices or [None]):
            names = {dtype for functor in row.functors for kind in functor.exprs for dtype in KINDS[kind]}
            choice = ((row.choice, value),) if row.choice else ()
            found.append(Case(row.name, op, choice, frozenset(names), "int" not in row.functors[0].exprs))
    return found


CASES = cases()


def special(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_complex:
        parts = (0.0, -0.0, 1.0, -0.5, 2.5)  # infinities: the CPU's vector code gives NaN where C does not
        values = [complex(a, b) for a, b in itertools.product(parts, parts)]
        return torch.tensor([*values, complex(NAN, NAN)], dtype=dtype)
    if dtype.is_floating_point:
        return torch.tensor(SPECIAL, dtype=dtype)
    info = torch.iinfo(dtype)
    values = [info.min, info.max, info.max - 1, 0, 1, 2, 3, 7, 100]
    return torch.tensor(values + [-1, -2, -7] * (info.min < 0), dtype=dtype)


def ordinary(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(count, generator=generator, dtype=torch.complex64 if dtype.is_complex else None).to(dtype)
    return torch.randint(0 if torch.iinfo(dtype).min == 0 else -20, 21, (count,), generator=generator).to(dtype)


def defined(case: Case, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The operands without those for which the CPU has no answer, or takes minutes."""
    for k, t in enumerate(tensors):
        if case.row in INTEGER_DIVISION and k == 1 and t.dtype in INTEGERS:  # the CPU traps
            t[(t == 0) | (t.long() == -1)] = 3
        if case.row in ("gcd", "lcm") and t.dtype in INTEGERS:  # |MIN| is MIN on the CPU, its remainder by -1 traps
            t[t == torch.iinfo(t.dtype).min] = 5
        if "polynomial" in case.row and k == 1:  # the degree
            t.copy_(ordinary(torch.int8, t.numel(), seed=k).clamp(0, 10).view(t.shape))
        if case.row == "pow" and t.dtype.is_complex and k == 0:  # 0 ** 0 is NaN in its vector code
            t[t == 0] = 0.5
        if case.row == "special_zeta" and t.dtype.is_floating_point:  # Cephes: NaN where the limit is 0, inf for NaN
            t.nan_to_num_(nan=1.5, posinf=9.0, neginf=-9.0).clamp_(0.5 if k else -9, 9)
        if t.dtype.is_floating_point:
            row = case.row.partition("-")[0]
            if row in NAN_OPERAND or "polynomial" in row:
                t.nan_to_num_(nan=0.75, posinf=INF, neginf=-INF)
            if row in INFINITE_OPERAND or "polynomial" in row:
                t.nan_to_num_(nan=NAN, posinf=1.25, neginf=-1.25)
        elif case.row in HUGE_INTEGER and t.dtype in INTEGERS:
            t.clamp_(max=50)
            t.clamp_(min=-50 if t.dtype.is_signed else 0)
    return tensors


def pairs(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    """Vectors of one length: every pair of special values of the first two operands, then ordinary values."""
    count, values = len(tensors_wanted(case)), special(dtype)
    n = len(values)
    grid = torch.arange(n * n if count > 1 else n)
    picks = [grid // n if count > 1 else grid, grid % n, 7 * grid % n, 5 * grid % n]
    fill = 69 + (1 + len(grid)) % 2
    columns = [torch.cat((values[picks[k]], ordinary(dtype, fill, seed=k))) for k in range(count)]
    return defined(case, columns)


def number(argument, dtype: torch.dtype):
    """A value for an argument that is no tensor."""
    value = NUMBERS.get(argument.name, argument.default_value)
    if (
        isinstance(value, float)
        and not (dtype.is_floating_point or dtype.is_complex)
        and "number" in str(argument.type)
    ):
        return 1
    return bool(value) if dtype == torch.bool and str(argument.type) == "number" else value


def tensors_wanted(case: Case) -> list[str]:
    return [a.name for a in inputs_of(case.overload) if "Tensor" in str(a.type)]


def arguments(case: Case, tensors: list) -> dict:
    dtype = next((t.dtype for t in tensors if t.is_floating_point() or t.is_complex()), tensors[0].dtype)
    found = {a.name: number(a, dtype) for a in inputs_of(case.overload)} | dict(case.choice)
    return found | dict(zip(tensors_wanted(case), tensors))


def outcome(function, kwargs: dict):
    """What a call returns, or the type and words of what it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(**kwargs)
    except Exception as error:  # noqa: BLE001 - the type is compared
        words = re.sub(r"\b(mps|cpu)(:0)?\b", "DEVICE", str(error), flags=re.IGNORECASE)
        return type(error), re.sub(r'^"\w+" not implemented', '"a kernel" not implemented', words)


def on_device(kwargs: dict) -> dict:
    storages: dict = {}
    return map_tensors(kwargs, lambda t: copied(t, torch.device("mps"), storages))


def same(actual, expected, where: str) -> None:
    if isinstance(expected, tuple) and isinstance(expected[0], type):
        more = expected[0] is NotImplementedError and isinstance(actual, torch.Tensor)  # than the CPU has
        assert more or actual == expected, where
        return
    assert isinstance(actual, torch.Tensor), f"{where}: {actual} for a tensor"
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, where
    rtol = max(ROUNDED.get(expected.dtype, 1e-5), next((t for name, t in COARSE.items() if where.startswith(name)), 0))
    torch.testing.assert_close(
        actual.cpu(), expected, rtol=rtol, atol=1e-5, equal_nan=True, check_stride=False, msg=lambda m: f"{where}: {m}"
    )


def check(case: Case, tensors: list[torch.Tensor], kind: str, where: str) -> None:
    function = siblings(case.op).get(kind)
    if function is None:
        return
    kwargs = arguments(case, tensors)
    moved = on_device(kwargs)
    same(outcome(function, moved), outcome(function, kwargs), where)


def chosen_dtypes(case: Case) -> list[torch.dtype]:
    """The first dtype of each kind that the CPU computes the operator in."""
    function = next(iter(siblings(case.op).values()))
    found = []
    for kind in (FLOATS[:1], INTEGERS[:1], (torch.bool,), (torch.complex64,)):
        tensors = [ordinary(kind[0], 2, seed=k) for k in range(len(tensors_wanted(case)))]
        kwargs = arguments(case, defined(case, tensors))
        kwargs |= {a.name: torch.empty(0, dtype=kind[0]) for a in outs_of(function)}
        if isinstance(outcome(function, kwargs), torch.Tensor):
            found.append(kind[0])
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_dtype_with_special_values(case):
    for dtype in DTYPES:
        # Where integers are converted first, as by copy_, one integer dtype will do.
        if dtype in case.kinds or not case.converts or dtype in (torch.int32, torch.bool):
            check(case, pairs(case, dtype), "plain", f"{case} of {dtype}")


# name: the k-th operand, from a function that makes a dense tensor of a shape.
LAYOUTS = {f"{n} elements": lambda make, k, n=n: make(n) for n in (1, 2, 31, 32, 33, 34, 255, 256, 257, 0)}
LAYOUTS |= {
    "0-d": lambda make, k: make(),
    "offset": lambda make, k: make(301)[1 + k :][:256],
    "sliced": lambda make, k: make(7, 21)[2:5, 1::2],
    "transposed": lambda make, k: make(10, 6).t() if k % 2 == 0 else make(6, 10),
    "expanded": lambda make, k: make(6, 1).expand(6, 10) if k % 2 == 0 else make(6, 10),
    "broadcast": lambda make, k: make(7, 1, 6) if k == 0 else make(3, 6),
    "channels last": lambda make, k: make(2, 4, 3, 6).contiguous(memory_format=torch.channels_last),
    "0-d second": lambda make, k: make(34) if k == 0 else make(),
    "0-d first": lambda make, k: make() if k == 0 else make(34),
}


# These see all layouts and mixtures; other rows, which share their kernels' loads and stores, see a few.
THOROUGH = {"neg.out", "add.out", "maximum.out", "addcmul.out", "lerp.Tensor_out", "eq.Tensor_out", "logit", "isnan"}
THOROUGH |= {"bitwise_and.Tensor_out", "leaky_relu_backward.grad_input", "clamp_min.out"}
A_FEW = ("257 elements", "sliced", "expanded")


def some(case: Case, everything, few=A_FEW) -> tuple:
    return tuple(everything) if case.op in THOROUGH else few


def laid_out(case: Case, dtypes: list[torch.dtype], layout: str) -> list[torch.Tensor]:
    def make(k, *shape):
        return defined(case, [ordinary(dtypes[j], math.prod(shape), seed=k).view(shape) for j in range(k + 1)])[k]

    return [LAYOUTS[layout](lambda *shape, k=k: make(k, *shape), k) for k in range(len(dtypes))]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layouts(case):
    for dtype, layout in itertools.product(chosen_dtypes(case), some(case, LAYOUTS)):
        tensors = laid_out(case, [dtype] * len(tensors_wanted(case)), layout)
        check(case, tensors, "plain", f"{case} of {dtype}, {layout}")


def garbage(shape, dtype: torch.dtype) -> torch.Tensor:
    """Memory whose every byte is 0xff: NaN, -1, the greatest number."""
    size = torch.empty((), dtype=dtype).element_size()
    return torch.full((math.prod(shape) * size,), 255, dtype=torch.uint8).view(dtype).view(shape)


# name: an out argument for a result of 64 elements, and its whole memory.
OUTS = {
    "too small": lambda dtype: garbage((3,), dtype),
    "too large": lambda dtype: garbage((5, 40), dtype),
    "strided": lambda dtype: garbage((64, 3), dtype)[:, 1],
    "int8": lambda dtype: garbage((64,), torch.int8),
    "bool": lambda dtype: torch.ones(64, dtype=torch.bool),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_out(case):
    function = siblings(case.op).get("out")
    if function is None:
        pytest.skip("the operator has no out overload")
    for dtype, out in itertools.product(chosen_dtypes(case), some(case, OUTS, ("too small", "strided", "int8"))):
        where = f"{case} of {dtype}, out {out}"
        if (case.op, out) == ("gelu.out", "strided"):  # the CPU writes beside it
            continue
        if (case.op, dtype, out) == ("add.out", torch.bool, "int8"):  # off the CPU alpha is checked against out's dtype
            continue
        kwargs = arguments(case, laid_out(case, [dtype] * len(tensors_wanted(case)), "256 elements"))
        kwargs = map_tensors(kwargs, lambda t: t[:64])
        kwargs[outs_of(function)[0].name] = OUTS[out](dtype)
        moved = on_device(kwargs)
        expected = outcome(function, kwargs)
        same(outcome(function, moved), expected, where)
        if isinstance(expected, torch.Tensor):
            same(moved[outs_of(function)[0].name], expected, where)
            same(
                whole_storage(moved[outs_of(function)[0].name]),
                whole_storage(expected),
                f"{where}, the memory around it",
            )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_in_place(case):
    function = siblings(case.op).get("inplace")
    if function is None:
        pytest.skip("the operator has no in-place overload")
    for dtype in chosen_dtypes(case):
        for layout in some(case, ("257 elements", "transposed", "0-d", "expanded", "broadcast", "sliced"), ("sliced",)):
            kwargs = arguments(case, laid_out(case, [dtype] * len(tensors_wanted(case)), layout))
            moved = on_device(kwargs)
            where = f"{case} of {dtype} in place, {layout}"
            expected = outcome(function, kwargs)
            same(outcome(function, moved), expected, where)
            if isinstance(expected, torch.Tensor):
                same(whole_storage(moved["self"]), whole_storage(kwargs["self"]), f"{where}, the memory around it")


MIXED = [(torch.float32, torch.float16), (torch.int32, torch.float32), (torch.float16, torch.bfloat16)]
MIXED += [(torch.int64, torch.uint8), (torch.bool, torch.int32), (torch.float32, torch.complex64)]


def mixed_dtypes(case: Case):
    count = len(tensors_wanted(case))
    for pair in some(case, MIXED, tuple(MIXED[:2])):
        yield from dict.fromkeys(tuple(pair[k == j] for k in range(count)) for j in range(count))


# Mixed dtypes that autograd never hands to them: another rounding of half, the result's dtype, the words of a refusal.
NEVER_MIXED = {"gelu_backward", "hardtanh_backward", "_prelu_kernel"}


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if len(tensors_wanted(c)) > 1 and c.op.partition(".")[0] not in NEVER_MIXED],
    ids=str,
)
def test_mixed_dtypes(case):
    for dtypes in mixed_dtypes(case):
        for layout in some(case, ("34 elements", "0-d second", "0-d first"), ("34 elements",)):
            tensors = laid_out(case, list(dtypes), layout)
            for kind in some(case, ("plain", "inplace"), ("plain",)):
                check(case, tensors, kind, f"{case} of {dtypes}, {layout}, {kind}")


@pytest.mark.parametrize("case", [c for c in CASES if len(tensors_wanted(c)) > 1], ids=str)
def test_numbers_on_the_host(case):
    """A 0-d tensor on the CPU is an operand like a number."""
    function = siblings(case.op).get("plain")
    others = some(case, (torch.float64, torch.float32, torch.int64, torch.bool), (torch.float64,))
    for dtype, other in itertools.product(chosen_dtypes(case)[: len(others)], others):
        tensors = laid_out(case, [dtype] * len(tensors_wanted(case)), "33 elements")
        number = torch.tensor(3.3).to(other)
        for k in range(len(tensors)):
            kwargs = arguments(case, [*tensors[:k], number, *tensors[k + 1 :]])
            name = tensors_wanted(case)[k]
            actual = outcome(function, on_device(kwargs | {name: None}) | {name: number})
            if not isinstance(actual, torch.Tensor) and actual[0] in (RuntimeError, NotImplementedError, TypeError):
                continue  # PyTorch's own check of devices refuses it for many operators, on every accelerator
            same(actual, outcome(function, kwargs), f"{case} of {dtype}, {other} on the CPU at {k}")


def test_poles_have_the_sign_of_the_cpu():
    """Overflow on the way to a pole, and the zero of either sign."""
    x, q = torch.tensor([200.0, 100.0, 61.0, 99.0]), torch.tensor([-0.5, 0.001, -0.25, -0.1])
    actual = torch.special.zeta(x.to("mps"), q.to("mps")).cpu()
    torch.testing.assert_close(actual, torch.special.zeta(x, q), rtol=1e-5, atol=0)
    p, slope = torch.tensor([-0.0, 0.0, 1.0, 0.5]), torch.tensor([1.0, 1.0, -1.0, 1.0])
    gradient = torch.ops.aten.logit_backward
    for eps in (None, 0.0, 1e-3, 0.7):
        torch.testing.assert_close(gradient(slope.to("mps"), p.to("mps"), eps).cpu(), gradient(slope, p, eps))
