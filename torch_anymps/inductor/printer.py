"""Index expressions of Inductor as Slang."""

from __future__ import annotations

from sympy.printing.precedence import PRECEDENCE
from torch.utils._sympy.printers import ExprPrinter


class SlangPrinter(ExprPrinter):
    """Integers are of one width, that of the kernel's indices; a division of what is not negative is exact by `/`."""

    def _print_FloorDiv(self, expr):
        dividend, divisor = expr.args
        x, d = self.doprint(dividend), self.doprint(divisor)
        if not expr.is_integer:
            return f"floor(({x}) / ({d}))"
        return f"(({x}) / ({d}))" if dividend.is_nonnegative else f"floor_div({x}, {d})"

    def _print_ModularIndexing(self, expr):
        dividend, divisor, modulus = expr.args
        x = self.doprint(dividend)
        if divisor != 1:
            d = self.doprint(divisor)
            x = f"(({x}) / ({d}))" if dividend.is_nonnegative else f"floor_div({x}, {d})"
        m = self.doprint(modulus)
        return f"(({x}) % ({m}))" if dividend.is_nonnegative else f"floor_mod({x}, {m})"

    def _print_PythonMod(self, expr):
        a, b = (self.doprint(x) for x in expr.args)
        return f"(({a}) % ({b}))" if expr.args[0].is_nonnegative else f"floor_mod({a}, {b})"

    def _print_Not(self, expr):
        return f"!({self._print(expr.args[0])})"

    def _print_And(self, expr):
        return "(" + " && ".join(f"({self._print(a)})" for a in expr.args) + ")"

    def _print_Or(self, expr):
        return "(" + " || ".join(f"({self._print(a)})" for a in expr.args) + ")"

    def _chain(self, expr, function):
        text = self._print(expr.args[0])
        for arg in expr.args[1:]:
            text = f"{function}({text}, {self._print(arg)})"
        return text

    def _print_Min(self, expr):
        return self._chain(expr, "min")

    def _print_Max(self, expr):
        return self._chain(expr, "max")

    def _call(self, expr, function, convert="{}"):
        return f"{function}({', '.join(convert.format(self._print(a)) for a in expr.args)})"

    def _print_Abs(self, expr):
        return self._call(expr, "abs")

    def _print_Where(self, expr):
        c, p, q = (self.parenthesize(arg, PRECEDENCE["Atom"] - 0.5) for arg in expr.args)
        return f"({c} ? {p} : {q})"

    def _print_Float(self, expr):
        return str(int(expr)) if expr.is_integer else f"{float(expr)!r}f"

    def _print_ToFloat(self, expr):
        return self._call(expr, "float")

    def _print_IntTrueDiv(self, expr):
        return self._call(expr, "m::div", "float({})")

    def _print_FloatTrueDiv(self, expr):
        return self._call(expr, "m::div")

    def _print_FloorToInt(self, expr):
        return f"int({self._call(expr, 'floor')})"

    def _print_CeilToInt(self, expr):
        return f"int({self._call(expr, 'ceil')})"

    def _print_TruncToInt(self, expr):
        return f"int({self._call(expr, 'trunc')})"

    def _print_RoundToInt(self, expr):
        return f"int({self._call(expr, 'rint')})"

    def _print_RoundDecimal(self, expr):
        a, digits = expr.args
        return f"m::round_decimals({self._print(a)}, {digits})"

    def _print_TruncToFloat(self, expr):
        return self._call(expr, "trunc")

    _print_floor = _print_FloorToInt
    _print_ceiling = _print_CeilToInt

    def _print_PowByNatural(self, expr):
        return self._call(expr, "m::pow")

    def _print_FloatPow(self, expr):
        return self._call(expr, "m::pow", "float({})")

    def _print_Infinity(self, expr):
        return "m::kInfinity"

    def _print_NegativeInfinity(self, expr):
        return "(-m::kInfinity)"

    def _print_NaN(self, expr):
        return "m::kNaN"

    def _print_BooleanTrue(self, expr):
        return "true"

    def _print_BooleanFalse(self, expr):
        return "false"


for _name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2", "exp", "log"):
    setattr(
        SlangPrinter,
        f"_print_OpaqueUnaryFn_{_name}",
        lambda self, expr, name=f"m::{_name}": self._call(expr, name, "float({})"),
    )
