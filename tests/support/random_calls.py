"""Random calls of operators: what to call, on which shapes, strides, offsets, dtypes and values.

A call is made from its seed alone. `OPERATORS` is the table: a row has the dtypes that it takes and a function that
draws its arguments from a `Draw`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from op_db_support import whole_storage
from random_bounds import rounding_of_product, roundings_of_product, roundings_of_running_sum
from random_draw import ALL, BOOL, COMPLEX, FLOATS, INTEGERS, MOST, REAL, SIZES, Draw
from torch.testing._internal.common_device_type import tol, toleranceOverride
from torch.testing._internal.opinfo.core import SampleInput


@dataclass(frozen=True)
class Operator:
    """A row of the table; what run_op of op_db_support asks of an operator."""

    name: str
    dtypes: tuple
    draw: Callable  # (Draw, dtype) -> (input, args, kwargs)
    function: Callable
    tolerance: tuple[float, float] | None = None  # relative and absolute, where sums in another order need it
    bound: Callable | None = None  # (SampleInput) -> the tolerance of one call, where it follows from its arguments

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def get_decorators(self, *_):
        if self.tolerance is None:
            return []
        relative, absolute = self.tolerance
        return [toleranceOverride(dict.fromkeys(FLOATS, tol(atol=absolute, rtol=relative)))]


OPERATORS: list[Operator] = []


def add(name: str, dtypes, draw, function=None, tolerance=None, bound=None) -> None:
    if function is None:
        function = torch
        for part in name.split("."):
            function = getattr(function, part)
    OPERATORS.append(Operator(name, tuple(dtypes), draw, function, tolerance, bound))


def several(names: str, dtypes, draw) -> None:
    for name in names.split():
        add(name, dtypes, draw)


# --- pointwise ------------------------------------------------------------------------------------------------------
def one(d: Draw, dtype):
    return d.tensor(d.shape(), dtype), (), {}


def two(d: Draw, dtype):
    shape = d.shape()
    other = dtype if d.random.random() < 0.7 else d.choice((torch.float32, torch.float16, torch.int64, torch.uint8))
    if dtype not in FLOATS:
        other = dtype  # a float beside an integer is another operator for shifts and bits
    operands = [d.tensor(shape, dtype), d.tensor(d.broadcast(shape), other)]
    d.random.shuffle(operands)
    return operands[0], (operands[1],), {}


def nonzero_divisor(d: Draw, dtype):
    left, (right,), _ = two(d, dtype)
    if not right.is_floating_point():
        right = torch.where(right == 0, torch.ones_like(right), right)
    return left, (right,), {}


def in_place(d: Draw, dtype):
    shape = d.shape()
    return d.tensor(shape, dtype, writable=True), (d.tensor(d.broadcast(shape), dtype),), {}


def into_out(d: Draw, dtype):
    shape = d.shape()
    return d.tensor(shape, dtype), (d.tensor(d.broadcast(shape), dtype), d.tensor(shape, dtype, writable=True)), {}


def three(d: Draw, dtype):
    shape = d.shape()
    return d.tensor(shape, dtype), (d.tensor(d.broadcast(shape), dtype), d.tensor(d.broadcast(shape), dtype)), {}


def positive(d: Draw, dtype):
    return d.tensor(d.shape(), dtype).abs() + 0.5, (), {}


def unit(d: Draw, dtype):
    # No subnormal numbers: some devices flush them, and the logarithm of 0 is another number.
    return d.tensor(d.shape(), dtype).sigmoid().clamp_min(torch.finfo(dtype).tiny), (), {}


def to_88(d: Draw, dtype):
    """Where the CPU's vector code is right: its sinh and cosh are infinite from 88.8 on, 0.6 too early."""
    x = d.tensor(d.shape(), dtype)
    return torch.where(x.isinf(), x, x.clamp(-88, 88)), (), {}


def moderate(d: Draw, dtype):
    """Where the CPU's gelu is a number: it makes NaN of infinity and of the largest ones."""
    x = d.tensor(d.shape(), dtype)
    whole_storage(x).clamp_(-1e4, 1e4)
    return x, (), {}


UNARY = (
    "abs neg sign ceil floor round trunc frac sqrt rsqrt exp expm1 log log1p log2 log10 exp2 sin cos tan asin acos "
    "atan sinh cosh tanh asinh acosh atanh sigmoid erf erfc reciprocal square relu sinc nan_to_num deg2rad sgn "
    "nn.functional.gelu nn.functional.silu nn.functional.softplus nn.functional.mish nn.functional.hardswish "
    "nn.functional.hardsigmoid nn.functional.elu nn.functional.celu nn.functional.selu nn.functional.leaky_relu "
    "nn.functional.logsigmoid nn.functional.softsign nn.functional.relu6 nn.functional.tanhshrink"
)
for name in UNARY.split():
    add(name, FLOATS, {"sinh": to_88, "cosh": to_88, "nn.functional.gelu": moderate}.get(name, one))
several("abs neg sign square relu clone isnan logical_not sgn positive", INTEGERS, one)
several("isnan isinf isfinite signbit logical_not isposinf isneginf", FLOATS, one)
several("lgamma digamma i0", (torch.float32,), positive)
add("logit", (torch.float32,), unit)
add("erfinv", (torch.float32,), unit)
several("add sub mul maximum minimum fmax fmin eq ne lt le gt ge logical_and logical_or logical_xor", REAL, two)
several("add mul eq ne maximum minimum logical_and logical_or bitwise_and bitwise_or bitwise_xor", BOOL, two)
several("div atan2 copysign hypot logaddexp nextafter xlogy", FLOATS, two)
several("div fmod remainder floor_divide", REAL, nonzero_divisor)
several("bitwise_and bitwise_or bitwise_xor", INTEGERS, two)
add("pow", FLOATS, two)
for name in ("add_", "mul_", "sub_", "copy_"):
    method = getattr(torch.Tensor, name)
    add(name, ALL if name == "copy_" else REAL, in_place, lambda x, y, m=method: whole_storage(m(x, y)))
for name in ("add", "mul", "maximum", "atan2"):
    function = getattr(torch, name)
    kinds = FLOATS if name == "atan2" else REAL
    add(f"{name}(out=)", kinds, into_out, lambda x, y, o, f=function: whole_storage(f(x, y, out=o)))
add("addcmul", REAL, three, bound=rounding_of_product)
add("addcdiv", FLOATS, three)
add("lerp", FLOATS, three)
add("clamp", REAL, three)
add("where", ALL, three, lambda x, y, z: torch.where(x.bool(), y, z))


# --- copies and conversions -----------------------------------------------------------------------------------------
def converted(d: Draw, dtype):
    x = d.tensor(d.shape(), dtype)
    if dtype in FLOATS:
        x = torch.nan_to_num(x, 0.0, 100.0, -100.0).clamp(-100, 100)
    kind = d.choice([k for k in (*ALL, *COMPLEX) if k != torch.uint8 or dtype not in FLOATS])
    return x, (kind,), {}


add("contiguous", ALL, one, lambda x: x.contiguous())
add("to", (*ALL, *COMPLEX), converted, lambda x, kind: x.to(kind))
add("flip", ALL, lambda d, k: (d.tensor(d.shape(1), k), (), {}), lambda x: x.flip([0, -1] if x.dim() > 1 else [0]))
add("roll", ALL, lambda d, k: (d.tensor(d.shape(1), k), (d.integer(-40, 40), 0), {}))


def parts(d: Draw, dtype):
    shape = d.shape(1, 4, limit=MOST // 4)
    dim = d.integer(0, len(shape) - 1)
    tensors = []
    for _ in range(d.integer(1, 4)):
        sizes = list(shape)
        sizes[dim] = d.choice([s for s in SIZES if s <= 33])
        tensors.append(d.tensor(sizes, dtype))
    return tensors, (dim,), {}


add("cat", ALL, parts)
add("tril", ALL, lambda d, k: (d.tensor(d.shape(2), k), (d.integer(-4, 4),), {}))
add("triu", ALL, lambda d, k: (d.tensor(d.shape(2), k), (d.integer(-4, 4),), {}))


# --- reductions and scans -------------------------------------------------------------------------------------------
def along(d: Draw, dtype, empty: bool = True):
    shape = d.shape(1, 5, empty)
    return d.tensor(shape, dtype), (d.integer(-len(shape), len(shape) - 1),), {}


def factors(d: Draw, dtype):
    """Along a dimension. The CPU carries a product on in double: it comes back from beyond the largest float."""
    x, (dim,), _ = along(d, dtype)
    if dtype.is_floating_point:
        bound = (torch.finfo(dtype).max / 4) ** (1 / max(1, x.shape[dim]))
        whole_storage(x).clamp_(-bound, bound)
    return x, (dim,), {}


def along_some(d: Draw, dtype, empty: bool = True):
    shape = d.shape(1, 5, empty)
    dims = d.random.sample(range(len(shape)), d.integer(1, len(shape)))
    return d.tensor(shape, dtype), (dims,), {"keepdim": d.choice((True, False))}


def along_some_not_empty(d: Draw, dtype):
    return along_some(d, dtype, empty=False)


def along_named(d: Draw, dtype):
    x, (dims,), keep = along_some(d, dtype, empty=False)
    return x, (), {"dim": dims, **keep}


def along_not_empty(d: Draw, dtype):
    return along(d, dtype, empty=False)


def without_negative_infinity(d: Draw, dtype):
    """inf - inf is NaN, which the CPU leaves out of the sum of its threads' sums."""
    x, dims, keep = along_some(d, dtype)
    if dtype.is_floating_point:
        whole_storage(x).masked_fill_(whole_storage(x).isneginf(), 0)
    return x, dims, keep


CANCELLING = (1e-4, 2e-2)  # up to 262,144 terms: the error is one of the sum of their magnitudes
add("sum", REAL, along_some, tolerance=CANCELLING)
add("nansum", REAL, without_negative_infinity, tolerance=CANCELLING)
several("mean logsumexp", FLOATS, along_some)
for name in ("var", "std"):  # the CPU carries means and squares on in double
    add(name, FLOATS, along_named, tolerance=(1e-5, 1e-5))
add("linalg.vector_norm", FLOATS, along_named)
several("amax amin", ALL, along_some_not_empty)
several("argmax argmin", REAL, along_not_empty)
add("count_nonzero", ALL, lambda d, k: along_some(d, k)[:2] + ({},))
several("all any", ALL, along)
add("prod", REAL, factors, bound=roundings_of_product)
several("max min", ALL, along_not_empty)
add("cumsum", REAL, along, bound=roundings_of_running_sum)
add("cumprod", REAL, factors, bound=roundings_of_product)
several("cummax cummin", REAL, along)
several("softmax log_softmax", FLOATS, along)
add("sort", ALL, along, lambda x, dim: torch.sort(x, dim=dim, stable=True))
add("topk", REAL, along_not_empty, lambda x, dim: torch.topk(x, max(1, x.size(dim) // 3), dim=dim).values)
add("sum()", (*ALL, *COMPLEX), one, torch.sum, tolerance=CANCELLING)


# --- indexing -------------------------------------------------------------------------------------------------------
def by_index(d: Draw, dtype):
    shape = d.shape(1, 4, empty=False)
    dim = d.integer(0, len(shape) - 1)
    return d.tensor(shape, dtype), (dim, d.indices([d.choice(SIZES)], shape[dim])), {}


def by_element(d: Draw, dtype):
    shape = d.shape(1, 4, empty=False)
    dim = d.integer(0, len(shape) - 1)
    picked = list(shape)
    picked[dim] = d.choice((1, 2, 31, 33))
    return d.tensor(shape, dtype), (dim, d.indices(picked, shape[dim])), {}


def whole(x: torch.Tensor, most: int) -> torch.Tensor:
    """Whole numbers of at most that magnitude; infinities and NaN as they are."""
    if x.dtype.is_floating_point:
        numbers = whole_storage(x)
        numbers.copy_(torch.where(numbers.isfinite(), numbers.round().clamp(-most, most), numbers))
    return x


def added_elements(d: Draw, dtype):
    """Up to 34 whole numbers of at most 4 each: no sum is rounded, so that all orders of halves give the same bits.

    The device adds halves in float32 and rounds once, or in any order; the CPU rounds after each addition.
    """
    x, (dim, index), _ = by_element(d, dtype)
    return whole(x.clone(), 4), (dim, index, whole(d.tensor(index.shape, dtype), 4)), {}


def masked(d: Draw, dtype):
    shape = d.shape()
    return d.tensor(shape, dtype), (d.tensor(d.broadcast(shape), torch.bool),), {}


add("index_select", ALL, by_index)
add("gather", ALL, by_element)
add("scatter_add", REAL, added_elements)
add("masked_fill", REAL, masked, lambda x, mask: x.masked_fill(mask, 3))
add("masked_select", ALL, masked)
add("nonzero", ALL, one)
add("x[mask]=", ALL, masked, lambda x, mask: whole_storage(x.clone().masked_fill_(mask, 1)))
add("x[i, j]", ALL, by_index, lambda x, dim, index: x.transpose(0, dim)[index.view(-1, 1), ..., None])
add("unique", REAL, one, lambda x: torch.unique(torch.nan_to_num(x), return_counts=True, return_inverse=True))


# --- products and networks ------------------------------------------------------------------------------------------
def small(d: Draw, shape, dtype):
    """A factor. The error of a sum that cancels is one of the magnitude of its terms, which tolerances do not see."""
    x = d.tensor(shape, dtype)
    if dtype.is_floating_point:
        numbers = whole_storage(x)
        numbers.copy_(torch.where(numbers.isfinite(), numbers.clamp(-2, 2), numbers))
    return x


def product(d: Draw, dtype):
    sizes = [s for s in SIZES if s <= 257]
    m, k, n = d.choice(sizes), d.choice(sizes), d.choice(sizes)
    return small(d, [m, k], dtype), (small(d, [k, n], dtype),), {}


def batched(d: Draw, dtype):
    b, m, k, n = (d.choice((0, 1, 2, 3, 5, 31, 33)) for _ in range(4))
    return small(d, [b, m, k], dtype), (small(d, [b, k, n], dtype),), {}


def vectors(d: Draw, dtype):
    m, k = d.choice(SIZES), d.choice(SIZES)
    return small(d, [m, k], dtype), (small(d, [k], dtype),), {}


def layer(d: Draw, dtype):
    rows, inputs, outputs = d.shape(0, 2, limit=512), d.choice(SIZES), d.choice(SIZES[1:])
    return small(d, [*rows, inputs], dtype), (small(d, [outputs, inputs], dtype), small(d, [outputs], dtype)), {}


def image(d: Draw, dtype, values=Draw.tensor):
    sizes = (1, 2, 3, 5, 8, 31, 32, 33)
    return values(d, [d.choice((1, 2, 3)), d.choice((1, 2, 3, 4, 8)), d.choice(sizes), d.choice(sizes)], dtype)


def convolution(d: Draw, dtype):
    x = image(d, dtype, small)
    window = [d.integer(1, min(3, n)) for n in x.shape[2:]]
    groups = d.choice([g for g in (1, 2, x.size(1)) if x.size(1) % g == 0])
    weight = small(d, [groups * d.choice((1, 2, 3)), x.size(1) // groups, *window], dtype)
    if dtype.is_floating_point:  # the CPU leaves out products of infinite and NaN weights with the padding
        whole_storage(weight).nan_to_num_(0.0).clamp_(-2, 2)
    return x, (weight,), {"stride": d.integer(1, 2), "padding": d.integer(0, 2), "groups": groups}


def pooled(d: Draw, dtype):
    x = image(d, dtype)
    window = d.integer(1, min(3, *x.shape[2:]))
    return x, (window, d.integer(1, 2), d.integer(0, window // 2)), {"ceil_mode": d.choice((True, False))}


def normalized(d: Draw, dtype):
    x = d.tensor(d.shape(1, 4, empty=False), dtype)
    return x, (x.shape[-1:],), {}


add("mm", (*FLOATS, torch.int64, torch.int32), product)
add("bmm", FLOATS, batched)
add("mv", FLOATS, vectors, tolerance=(3e-5, 1e-4))  # what mm has
add("nn.functional.linear", FLOATS, layer, tolerance=(3e-5, 1e-4))
add("nn.functional.conv2d", FLOATS, convolution)
add("nn.functional.max_pool2d", FLOATS, pooled)
add("nn.functional.avg_pool2d", FLOATS, pooled)
add("nn.functional.layer_norm", FLOATS, normalized)


@dataclass
class RandomCall:
    operator: Operator
    dtype: torch.dtype
    sample: SampleInput


def random_call(seed: int) -> RandomCall:
    draw = Draw(seed)
    operator = draw.choice(OPERATORS)
    dtype = draw.choice(operator.dtypes)
    value, args, kwargs = operator.draw(draw, dtype)
    sample = SampleInput(value, args=args, kwargs=kwargs)
    if operator.bound is not None:
        operator = replace(operator, tolerance=operator.bound(sample))
    return RandomCall(operator, dtype, sample)
