"""Inductor's scalar operations as Slang: rows of pointwise.yaml where there is one, a few texts of our own."""

from __future__ import annotations

import itertools
import math

import sympy
import torch
from torch._inductor.codegen.common import CSEVariable, IndentedBuffer, OpOverrides
from torch._inductor.utils import generate_assert, get_bounds_index_expr, sympy_index_symbol, sympy_subs
from torch._inductor.virtualized import V

from . import index_values
from .dtypes import NARROW, REGISTER, common_type, converted, integer_of, number, operand, register_type, wrapped
from .rows import ROW, expressions, rows

# Inductor's name -> the row's, where they differ.
_ROWS = {
    "truediv": "div",
    "div_rn": "div",
    "int_truediv": "div",
    "floordiv": "div_mode_floor",
    "truncdiv": "div_mode_trunc",
    "mod": "fmod",
    "gammainc": "igamma",
    "gammaincc": "igammac",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_ROUNDED = {torch.float16: "rounded_f16", torch.bfloat16: "rounded_bf16"}


class SlangOverrides(OpOverrides):
    """Texts of operations, for operands that are variables of a kernel (CSEVariable) or numbers."""

    @staticmethod
    def constant(value, dtype):
        var = V.kernel.cse.generate(V.kernel.compute, number(value, REGISTER[dtype]), dtype=dtype)
        var.literal = value
        return var

    @staticmethod
    def identity(x):
        return x

    @staticmethod
    def to_dtype(x, dtype, src_dtype=None, use_compute_types=True):
        """Values of 16 bits stay float in registers, as in Triton's kernels; casts to 16 bits round what is cast again.

        use_compute_types: False where eager's rounding is asked for at once.
        """
        is_variable = isinstance(x, CSEVariable)
        source = x.dtype if src_dtype is None and is_variable else src_dtype
        if is_variable and source == dtype == x.dtype and use_compute_types:
            return x
        if hasattr(x, "is_cast") and source in _ROUNDED:
            x = V.kernel.cse.generate(V.kernel.compute, f"{_ROUNDED[source]}({x})", dtype=source)
        text = converted(x, src_dtype, dtype)
        if dtype not in _ROUNDED:
            return text
        return _cast(text, dtype) if use_compute_types else f"{_ROUNDED[dtype]}({text})"

    @staticmethod
    def to_dtype_bitcast(x, dtype, src_dtype):
        if dtype == src_dtype:
            return str(x)
        if src_dtype.itemsize != dtype.itemsize:
            raise NotImplementedError(f"view({dtype}) of {src_dtype}: element sizes differ")
        as_bits = {torch.float16: "int(bits_f16({}))", torch.bfloat16: "int(bits_bf16({}))", torch.float32: "asint({})"}
        of_bits = {torch.float16: "of_bits_f16({})", torch.bfloat16: "of_bits_bf16({})", torch.float32: "asfloat({})"}
        bits = as_bits.get(src_dtype, "{}").format(operand(x, "int") if src_dtype == torch.bool else x)
        if dtype in of_bits:
            return of_bits[dtype].format(bits)
        return wrapped(f"{REGISTER[dtype]}({bits})", dtype) if dtype != torch.bool else f"({bits} != 0)"

    @staticmethod
    def trunc_to_int(x, dtype):
        return converted(x, None, dtype)

    @staticmethod
    def floor_to_int(x, dtype):
        return integer_of(f"m::floor({x})", dtype)

    @staticmethod
    def ceil_to_int(x, dtype):
        return integer_of(f"m::ceil({x})", dtype)

    @staticmethod
    def round_to_int(x, dtype):
        return integer_of(f"m::round({x})", dtype)

    @staticmethod
    def index_expr(expr, dtype):
        # Positions fit the kernel's index type; values made of sizes and other numbers of the graph need not, nor do
        # products of positions.
        index = V.kernel.rename_indexing(V.kernel.prepare_indexing(expr))
        given = set(V.kernel.args.sizevars.values())
        numbers = (s for s in index.free_symbols if s.name in given and s.is_integer)
        wide = {s: sympy.Symbol(f"{s}_wide", **s.assumptions0) for s in numbers}
        if not index_values.fits_index(index, V.kernel):
            positions = (s for s in index.free_symbols if s.name not in given)
            wide |= {s: sympy.Symbol(f"int64_t({s})", **s.assumptions0) for s in positions}
        text = V.kernel.kexpr(sympy_subs(index, wide))
        kind = REGISTER[dtype]
        text = wrapped(f"{kind}({text})", dtype)
        var = V.kernel.cse.generate(V.kernel.compute, text, bounds=get_bounds_index_expr(expr), dtype=dtype)
        if index.is_number:
            var.literal = float(index)
        return var

    value_expr = index_expr

    @staticmethod
    def masked(mask, body, other):
        """The value of a body where the mask holds: nothing of it is read elsewhere."""
        kernel = V.kernel
        scoped = IndentedBuffer()
        with kernel.swap_buffers(scoped), scoped.indent():
            # Equal bodies get equal names, so that the text finds the one that is there already.
            kernel.cse.iter_buffer_ids = itertools.count()
            kernel.cse.name_prefix += "_scoped"
            value = body()
        dtype = value.dtype if isinstance(value, CSEVariable) else None
        kind = register_type(value) or "float"
        key = f"{mask}:{scoped.getvalue()}:{value}:{other}"
        var = kernel.cse.try_get(key)
        if not var:
            var = kernel.cse.newvar(dtype=dtype)
            kernel.cse.put(key, var)
            out = kernel.compute
            out.writeline(f"{kind} {var} = {operand(other, kind)};")
            out.writeline(f"if ({mask})")
            out.writeline("{")
            with out.indent():
                out.splice(scoped)
                out.writeline(f"{var} = {operand(value, kind)};")
            out.writeline("}")
        return var

    @staticmethod
    def where(condition, a, b):
        kind = common_type(a, b)
        return f"select({operand(condition, 'bool')}, {operand(a, kind)}, {operand(b, kind)})"

    @staticmethod
    def logical_not(a):
        return f"(!{operand(a, 'bool')})"

    @staticmethod
    def bitwise_not(a):
        return f"(!{a})" if register_type(a) == "bool" else wrapped(f"(~{a})", a.dtype)

    @staticmethod
    def isnan(x):
        return f"m::is_nan({x})" if register_type(x) == "float" else "false"

    @staticmethod
    def isinf(x):
        return f"m::is_inf({x})" if register_type(x) == "float" else "false"

    @staticmethod
    def neg(x):
        return f"m::negated({x})" if register_type(x) == "float" else wrapped(f"(-{x})", x.dtype)

    @staticmethod
    def square(x):
        return _arithmetic("*", x, x)

    @staticmethod
    def fma(a, b, c):
        a, b, c = (operand(v, "float") for v in (a, b, c))
        return f"fma({a}, {b}, {c})"

    @staticmethod
    def mul_rn(a, b):
        return f"m::mul_exact({operand(a, 'float')}, {operand(b, 'float')})"

    @staticmethod
    def ndtr(x):
        return f"m::ndtr({operand(x, 'float')})"

    @staticmethod
    def ldexp(x, n):
        return f"m::scale({operand(x, 'float')}, {operand(n, 'int')})"

    @staticmethod
    def polygamma(n, x):
        return f"polygamma(int({n}), {operand(x, 'float')})"

    @staticmethod
    def frexp(x):
        kernel = V.kernel
        mantissa, exponent = expressions(rows()["frexp"], [x])
        return (
            kernel.cse.generate(kernel.compute, mantissa, dtype=x.dtype),
            kernel.cse.generate(kernel.compute, f"int({exponent})", dtype=torch.int32),
        )

    def indirect_indexing(self, var, size, check=True, wrap_neg=True):
        in_range = var.bounds.lower >= 0 and isinstance(size, sympy.Number) and var.bounds.upper < size
        if check and generate_assert(check) and not in_range:
            var = V.kernel.clamped(var, size)
        return sympy_index_symbol(str(var))

    @staticmethod
    def rand(seed, offset):
        return f"rand({seed}, int64_t({offset}))"

    @staticmethod
    def randn(seed, offset):
        return f"randn({seed}, int64_t({offset}))"

    @staticmethod
    def randint64(seed, offset, low, high):
        return f"randint64({seed}, int64_t({offset}), {operand(low, 'int64_t')}, {operand(high, 'int64_t')})"

    @staticmethod
    def inline_asm_elementwise(
        *inputs, asm, constraints=None, dtype=torch.float32, is_pure=True, pack=1, input_dtypes=None, **outputs
    ):
        """Inductor's way to any instruction of a device: here, to any row (row_lowering.py).

        outputs are the arguments of several outputs, which PyTorch 2.15 added and rows do not have.
        """
        row = rows().get(asm) if constraints == ROW else None
        if row is None:
            raise NotImplementedError("inline_asm_elementwise takes the assembly of NVIDIA's GPUs, which mps has not")
        count = len(row["inputs"])
        return expressions(row, list(inputs[:count]), list(inputs[count:]))[0]

    def load_seed(self, name, offset):
        # The place is an argument: dropouts of many layers are one kernel.
        return V.kernel.load(name, sympy_index_symbol(V.kernel.args.seed_offset("load_seed_offset", offset)))


def _cast(text: str, dtype: torch.dtype) -> CSEVariable:
    """A variable of 16 bits that is rounded where it is stored, or cast to another type."""
    kernel = V.kernel
    key = f"{dtype} {text}"
    var = kernel.cse.try_get(key)
    if var is None:
        var = kernel.cse.newvar(dtype=dtype)
        var.is_cast = True
        kernel.cse.put(key, var)
        kernel.compute.writeline(f"let {var} = {text};")
    return var


_EXACT = {"+": "m::add_exact", "-": "m::sub_exact", "*": "m::mul_exact"}


def literal(value) -> float | None:
    """The number that an operand is, where the text says it: a driver computes with it while it compiles."""
    return getattr(value, "literal", None) if isinstance(value, CSEVariable) else value


def _float_arithmetic(sign: str, a, b) -> str:
    """One rounding each, as in eager mode.

    Compilers take x - x and x * bool(c) for 0 where c is false, which they are not for infinities and NaN, x + c - c
    for x, and x + 0 for x where it is -0.
    """
    x, y = operand(a, "float"), operand(b, "float")
    if sign != "*" and literal(a) == 0 and literal(b) is None:
        x, y = y if sign == "+" else f"m::negated({y})", literal(a)
    elif sign != "*" and literal(b) == 0 and literal(a) is None:
        y = literal(b) if sign == "+" else -float(literal(b))
    else:
        return f"{_EXACT[sign]}({x}, {y})"
    return f"plus_zero({x})" if math.copysign(1, y) > 0 else x


def _arithmetic(sign: str, a, b) -> str:
    kind = common_type(a, b)
    if kind == "bool":
        return f"({operand(a, 'bool')} {'||' if sign == '+' else '&&'} {operand(b, 'bool')})"
    if kind == "float":
        return _float_arithmetic(sign, a, b)
    dtypes = [v.dtype for v in (a, b) if isinstance(v, CSEVariable)]
    text = f"({operand(a, kind)} {sign} {operand(b, kind)})"
    narrow = kind == "int" and dtypes and all(d in NARROW for d in dtypes)
    return wrapped(text, torch.promote_types(dtypes[0], dtypes[-1])) if narrow else text


def _logical(sign: str):
    return staticmethod(lambda a, b: f"({operand(a, 'bool')} {sign} {operand(b, 'bool')})")


def _bitwise(sign: str, of_bools: str):
    def text(a, b):
        kind = common_type(a, b)
        return f"({operand(a, kind)} {of_bools if kind == 'bool' else sign} {operand(b, kind)})"

    return staticmethod(text)


# Inductor's names of what has a faster form in lib/inductor_fast.slang.
_FAST = {
    "exp": "exp",
    "int_truediv": "div",
    "maximum": "maximum",
    "minimum": "minimum",
    "ndtr": "ndtr",
    "reciprocal": "reciprocal",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "truediv": "div",
}


def _or_fast(name: str, exact):
    """The text of an operation on floats; the exact one in kernels of a single operation, to the bit as eager."""

    def text(*operands):
        integers = name in ("maximum", "minimum") and common_type(*operands) != "float"
        # A driver that computes a quotient with 0 while it compiles may give anything.
        folded = _FAST[name] in ("div", "reciprocal") and any(literal(x) == 0 for x in operands)
        if V.kernel.is_single_operation or integers or folded:
            return exact(*operands)
        return f"fast::{_FAST[name]}({', '.join(operand(x, 'float') for x in operands)})"

    return staticmethod(text)


def _from_row(row: dict):
    return lambda *operands: expressions(row, list(operands))[0]


for _name, _sign in (("add", "+"), ("sub", "-"), ("mul", "*")):
    setattr(SlangOverrides, _name, staticmethod(lambda a, b, sign=_sign: _arithmetic(sign, a, b)))
for _name, _sign in (("logical_and", "&&"), ("logical_or", "||"), ("logical_xor", "!=")):
    setattr(SlangOverrides, _name, _logical(_sign))
for _name, _sign, _bools in (("and", "&", "&&"), ("or", "|", "||"), ("xor", "^", "!=")):
    for _full in {f"bitwise_{_name}", "xor" if _name == "xor" else f"{_name}_"}:
        setattr(SlangOverrides, _full, _bitwise(_sign, _bools))


def install_rows() -> None:
    """Gives SlangOverrides every operation of Inductor that has a row and no text above. Idempotent."""
    from torch._inductor.ops_handler import OpsHandler

    table = rows()
    if "exp" in vars(SlangOverrides):
        return
    for name in (n for n in dir(OpsHandler) if not n.startswith("_")):
        own = vars(SlangOverrides).get(name)
        if own is not None:
            if _FAST.get(name):
                setattr(SlangOverrides, name, _or_fast(name, own.__func__))
            continue
        wanted = _ROWS.get(name, name)
        row = table.get(wanted) or table.get(f"special_{wanted}")
        if row is not None and not row["scalars"]:
            exact = _from_row(row)
            setattr(SlangOverrides, name, _or_fast(name, exact) if _FAST.get(name) else staticmethod(exact))
