"""The steps of random graphs (random_graphs.py): each draws its operands and adds one operation, or nothing."""

from __future__ import annotations

import torch
from random_graphs import ROUNDING, Drawing, Value

# Texts of functions whose derivative is at most the number.
UNARY = {
    "torch.sin({0})": 1, "torch.cos({0})": 1, "torch.tanh({0})": 1, "torch.sigmoid({0})": 1, "F.silu({0})": 1.1,
    "F.gelu({0})": 1.2, "torch.exp({0}.clamp(max=2))": 7.4, "torch.log1p({0}.abs())": 1, "torch.sqrt(1 + {0}.abs())": 1,
    "torch.rsqrt(1 + {0} * {0})": 1, "torch.erf({0})": 1.2, "torch.atan({0})": 1, "F.softplus({0})": 1,
    "F.leaky_relu({0}, 0.1)": 1, "F.elu({0})": 1, "({0} * 0.5 + 1)": 1, "({0} / 3)": 1, "(2 - {0})": 1,
}  # fmt: skip
EXACT_UNARY = ("(-{0})", "{0}.abs()", "torch.relu({0})", "{0}.clamp(-1, 2)", "{0}.clone()", "{0}.contiguous()")
INTEGER_UNARY = (
    "({0} + 3)", "({0} * 5)", "({0} // 3)", "({0} % 4)", "({0} & 6)", "({0} | 1)", "({0} ^ 3)", "({0} << 2)",
    "({0} >> 1)", "(~{0})", "{0}.abs()", "{0}.clamp(1, 5)", "(-{0})", "torch.sign({0})", "{0}.square()",
)  # fmt: skip
REDUCTIONS = ("amax", "amin", "mean", "sum", "var", "softmax", "logsumexp", "cumsum", "norm")
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")


def is_float(v: Value) -> bool:
    return v.is_float


def is_exact(v: Value) -> bool:
    return v.error == 0.0


def is_integer(v: Value) -> bool:
    return not v.is_float and v.tensor.dtype != torch.bool


def unary(d: Drawing) -> None:
    if v := d.pick(is_float):
        text, slope = d.random.choice(list(UNARY.items()))
        d.add(text, slope * v.error + ROUNDING[v.tensor.dtype] * max(v.most, 1.0) * 3, v)


def exact_unary(d: Drawing) -> None:
    if v := d.pick(is_float):
        d.add(d.random.choice(EXACT_UNARY), v.error, v)


def integer_unary(d: Drawing) -> None:
    if v := d.pick(is_integer):
        d.add(d.random.choice(INTEGER_UNARY), 0.0, v)


def binary(d: Drawing) -> None:
    a = d.pick(is_float)
    b = a and d.fitting(a)
    if not b:
        return
    text = d.random.choice((
        "({0} + {1})", "({0} - {1})", "({0} * {1})", "({0} / (1 + {1}.abs()))", "torch.lerp({0}, {1}, 0.3)",
        "torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "torch.addcmul({0}, {1}, {0})",
    ))  # fmt: skip
    error = (a.error + b.error) * max(1.0, 2 * a.most, 2 * b.most)
    d.add(text, max(error, ROUNDING[a.tensor.dtype] * max(a.most, b.most, 1.0) ** 2), a, b)


def integer_binary(d: Drawing) -> None:
    a = d.pick(lambda v: not v.is_float)
    b = a and d.fitting(a, lambda v: not v.is_float)
    if b:
        sign = d.random.choice(("+", "*", "-", "&", "|", "^"))
        texts = (f"({{0}} {sign} {{1}})", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})")
        d.add(d.random.choice(texts), 0.0, a, b)


def comparison(d: Drawing) -> None:
    a = d.pick(is_exact)
    b = a and d.fitting(a, is_exact)
    if b:
        d.add(f"({{0}} {d.random.choice(COMPARISONS)} {{1}})", 0.0, a, b)


def where(d: Drawing) -> None:
    mask = d.pick(lambda v: v.tensor.dtype == torch.bool)
    a = mask and d.fitting(mask)
    b = a and d.fitting(a, lambda v: v.tensor.dtype == a.tensor.dtype)
    if b:
        text = d.random.choice(("torch.where({0}, {1}, {2})", "{1}.masked_fill({0}, 2)", "torch.where({0}, {1}, 0)"))
        d.add(text, max(a.error, b.error), mask, a, b)


def conversion(d: Drawing) -> None:
    dtype = d.random.choice(("float32", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool"))
    to_float = getattr(torch, dtype).is_floating_point
    fits = lambda v: v.most <= 100 and not (dtype == "uint8" and v.tensor.min() < 0)
    if v := d.pick(lambda v: (to_float or is_exact(v)) and fits(v)):
        if to_float and (v.is_float or v.most > 100):
            d.add(f"{{0}}.to(torch.{dtype})", v.error + ROUNDING[getattr(torch, dtype)] * v.most, v)
        else:
            d.add(f"{{0}}.to(torch.{dtype})", 0.0, v)


def reduction(d: Drawing) -> None:
    v = d.pick(lambda v: v.is_float and v.tensor.dim() > 0)
    if not v:
        return
    kind, dim = d.random.choice(REDUCTIONS), d.random.randrange(v.tensor.dim())
    n = v.tensor.shape[dim]
    keep = d.random.choice(("", ", keepdim=True"))
    rounding = ROUNDING[v.tensor.dtype]
    if kind in ("softmax", "cumsum"):
        keep = ""
    if kind == "var" and n == 1 or kind == "norm" and v.most == 0:
        return
    slope = {"sum": n, "cumsum": n, "var": 8 * v.most, "norm": n**0.5}.get(kind, 2)
    own = slope * v.most if kind in ("sum", "cumsum", "var", "norm") else 4 * max(v.most, 1)
    exact = kind in ("amax", "amin")
    d.add(f"{{0}}.{kind}({dim}{keep})", v.error if exact else slope * v.error + rounding * own, v)


def integer_reduction(d: Drawing) -> None:
    v = d.pick(lambda v: v.tensor.dim() > 0 and is_exact(v))
    if not v:
        return
    dim = d.random.randrange(v.tensor.dim())
    kinds = ["argmax", "argmin"] if v.is_float else ["sum", "amax", "amin", "any", "all", "argmax", "cumsum", "prod"]
    kind = d.random.choice(kinds)
    d.add(f"{{0}}.{kind}({d.random.choice((dim, '')) if kind in ('argmax', 'sum', 'any') else dim})", 0.0, v)


def view(d: Drawing) -> None:
    v = d.pick(lambda v: v.tensor.dim() > 0)
    if not v:
        return
    r, rank = d.random, v.tensor.dim()
    i, j = r.randrange(rank), r.randrange(rank)
    n = v.tensor.shape[i]
    start = r.randrange(n)
    around = ":, " * i
    text = r.choice((
        f"{{0}}.transpose({i}, {j})", "{0}.flatten()", f"{{0}}[{around}::2]", f"{{0}}[{around}{start}]",
        f"{{0}}[{around}{start}:]", f"{{0}}.flip({i})", f"{{0}}.unsqueeze({i})", f"{{0}}.roll({start}, {i})",
        "{0}.squeeze()", f"{{0}}.unsqueeze({i}).expand({'-1, ' * i}3{', -1' * (rank - i)})",
        f"{{0}}.repeat_interleave(2, {i})",
        "{0}.diagonal(0, 0, -1)", f"{{0}}.unfold({i}, {max(n // 2, 1)}, 1)", f"torch.cat(({{0}}, {{0}}), {i})",
        f"torch.stack(({{0}}, {{0}}), {i})", f"{{0}}.movedim({i}, {j})", f"{{0}}.tril({start - 1})",
        f"{{0}}.triu({start})", "F.pad({0}, (1, 2))", "F.pad({0}, (-1, 3), value=1)", f"{{0}}.reshape(-1, {n})",
        f"{{0}}.narrow({i}, 0, {max(n // 2, 1)})",
    ))  # fmt: skip
    d.add(text, v.error, v)


def joined(d: Drawing) -> None:
    a = d.pick(lambda v: v.tensor.dim() > 0)
    b = a and d.pick(lambda v: v.tensor.shape == a.tensor.shape)
    if b:
        d.add(f"torch.cat(({{0}}, {{1}}), {d.random.randrange(a.tensor.dim())})", max(a.error, b.error), a, b)


def indexing(d: Drawing) -> None:
    v = d.pick(lambda v: v.tensor.dim() > 0)
    if not v:
        return
    dim = d.random.randrange(v.tensor.dim())
    n, count = v.tensor.shape[dim], d.random.choice((1, 4, 9))
    additions = ("scatter_add", "scatter_add_to_zeros", "index_add")
    kind = d.random.choice(("index_select", "index", "gather", "index_put", "setitem", *additions))
    sizes = list(v.tensor.shape) if kind.startswith(("gather", "scatter_add")) else [count]
    index = d.argument(torch.randint(-n if kind in ("index", "index_put") else 0, n, sizes, generator=d.generator))
    around = ":, " * dim
    sum_error = v.error * 20 + ROUNDING.get(v.tensor.dtype, 0.0) * v.most * 80
    text, error = {
        "index_select": (f"{{0}}.index_select({dim}, {{1}})", v.error),
        "index": (f"{{0}}[{around}{{1}}]", v.error),
        "gather": (f"{{0}}.gather({dim}, {{1}})", v.error),
        "scatter_add": (f"{{0}}.scatter_add({dim}, {{1}}, {{0}})", sum_error),
        "scatter_add_to_zeros": (f"torch.zeros_like({{0}}).scatter_add({dim}, {{1}}, {{0}})", sum_error),
        "index_put": ("{0}.index_put(({1},), torch.ones((), dtype={0}.dtype, device={0}.device))", v.error),
        "setitem": (f"{{0}}.index_fill({dim}, {{1}}, 3)", v.error),
        "index_add": (f"{{0}}.index_add({dim}, {{1}}, {{0}}.index_select({dim}, {{1}}))", sum_error),
    }[kind]
    if v.tensor.dtype == torch.bool and kind in additions:
        return
    d.add(text, error, v, index)


def made(d: Drawing) -> None:
    if v := d.pick(lambda v: v.tensor.dim() > 0):
        i = d.random.randrange(v.tensor.dim())
        text = d.random.choice((
            f"torch.arange({{0}}.shape[{i}], device={{0}}.device)", "torch.full_like({0}, 3)", "torch.zeros_like({0})",
            f"torch.eye({{0}}.shape[{i}], device={{0}}.device)",
            f"torch.linspace(0, 1, {{0}}.shape[{i}], device={{0}}.device)",
        ))  # fmt: skip
        d.add(text, 1e-6 if "linspace" in text else 0.0, v)


def changed_in_place(d: Drawing) -> None:
    v = d.pick(is_float)
    w = v and d.fitting(v, lambda w: w.tensor.dtype == v.tensor.dtype)
    if w:
        d.add("{0}.clone().add_({1})", v.error + w.error + ROUNDING[v.tensor.dtype] * max(v.most, w.most), v, w)


def product(d: Drawing) -> None:
    a = d.pick(lambda v: v.tensor.dtype == torch.float32 and v.tensor.dim() == 2)
    if a:
        n = a.tensor.shape[1]
        d.add("({0} @ {0}.t() / 16)", (2 * a.error * a.most + ROUNDING[torch.float32] * a.most**2) * n, a)


def new_input(d: Drawing) -> None:
    v = d.pick()
    d.input(list(v.tensor.shape), d.random.choice((v.tensor.dtype, torch.float32, torch.int64)))


STEPS = (
    unary, unary, unary, exact_unary, integer_unary, binary, binary, binary, integer_binary, comparison, where, where,
    conversion, reduction, reduction, integer_reduction, view, view, view, joined, indexing, indexing, made,
    changed_in_place, product, new_input,
)  # fmt: skip
