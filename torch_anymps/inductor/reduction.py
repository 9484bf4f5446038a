"""Reductions of generated kernels, in terms of shaders/lib/inductor_reduce.slang."""

from __future__ import annotations

import torch
from torch._inductor.codegen.common import CSEVariable
from torch._inductor.virtualized import V

from .dtypes import REGISTER, operand, register_type, wrapped

F32 = torch.float32
FLOAT_SUM = "Sum<float>"


class Reductions:
    """The part of a kernel that turns Inductor's reductions into accumulators of a loop and their combination."""

    def reduction(self, dtype, src_dtype, reduction_type, value):
        key = (src_dtype, reduction_type, value)
        if key in self.cse.reduction_cache:
            return self.cse.reduction_cache[key]
        result = self._reduction(dtype, src_dtype, reduction_type, value)
        self.cse.reduction_cache[key] = result
        self.results.update(result if isinstance(result, tuple) else (result,))
        return result

    def _reduction(self, dtype, src_dtype, reduction_type, value):
        n = next(self.ids)
        acc = f"acc{n}"
        values = value if isinstance(value, tuple) else (value,)
        if reduction_type in ("welford_reduce", "welford_combine"):
            return self._moments(acc, reduction_type, values)
        if reduction_type == "online_softmax_reduce":
            return self._softmax(acc, values)
        if reduction_type in ("argmax", "argmin"):
            return self._first(acc, dtype, reduction_type, *values)
        kind, combine = _combination(dtype, src_dtype, reduction_type, values[0])
        self.phase.prologue.append(f"{kind} {acc} = {combine}.identity();")
        if combine == FLOAT_SUM:
            self.phase.sums.append(acc)
        self.compute.writeline(f"{acc} = {combine}.combine({acc}, {operand(values[0], kind)});")
        self.phase.epilogue.append(f"{acc} = {self._of_row(combine, acc)};")
        return self._result(wrapped(acc, dtype) if kind == REGISTER[dtype] else f"{REGISTER[dtype]}({acc})", dtype)

    def _first(self, acc, dtype, reduction_type, value, index=None):
        """The index of a row's largest or smallest value: the one that is given with it, or that along the row."""
        index = index or next(t for t in self.range_trees if t.is_reduction).name
        kind = "float" if register_type(value) == "float" else "int64_t"
        combine = f"First<{kind}, {int(reduction_type == 'argmin')}>"
        self.phase.prologue.append(f"Located<{kind}> {acc} = {combine}.identity();")
        located = f"{combine}.of({operand(value, kind)}, uint({index}))"
        self.compute.writeline(f"{acc} = {combine}.combine({acc}, {located});")
        self.phase.epilogue.append(f"{acc} = {self._of_row(combine, acc)};")
        return self._result(f"{REGISTER[dtype]}({acc}.index)", dtype)

    def _moments(self, acc, reduction_type, values):
        """(mean, sum of squared differences from it, count)."""
        v = [operand(x, "float") for x in values]
        if reduction_type == "welford_reduce":
            self.phase.prologue.append(f"Welford {acc} = Welford.none();")
            self.compute.writeline(f"{acc}.add({v[0]});")
            mine = f"{acc}.moments()"
        else:
            self.phase.prologue.append(f"Moments {acc} = MergeMoments.identity();")
            self.compute.writeline(f"{acc} = Moments.merge({acc}, moments_of({', '.join(v)}));")
            mine = acc
        self.phase.epilogue.append(f"let {acc}_row = {self._of_row('MergeMoments', mine)};")
        return tuple(self._result(f"{acc}_row.{part}", F32) for part in ("mean()", "squares", "count"))

    def _softmax(self, acc, values):
        """(largest value, sum of exponentials of the distances from it), of values or, with two, of such pairs."""
        v = [operand(x, "float") for x in values]
        self.phase.prologue.append(f"OnlineSoftmax {acc} = MergeSoftmax.identity();")
        self.compute.writeline(f"{acc}.add({', '.join(v)});")
        self.phase.epilogue.append(f"let {acc}_row = {self._of_row('MergeSoftmax', acc)};")
        return tuple(self._result(f"{acc}_row.{part}", F32) for part in ("largest", "sum"))

    def _of_row(self, combine: str, value: str) -> str:
        if self.partial_sums is not None:
            return f"team_reduce<{combine}>({value}, kThreadsPerRow, turn)"
        return f"row_reduce<{combine}>({value}, kThreadsPerRow, kColumns)"

    def _result(self, text: str, dtype: torch.dtype) -> CSEVariable:
        var = self.cse.newvar(dtype=dtype)
        self.phase.epilogue.append(f"let {var} = {text};")
        return var

    def store_reduction(self, name, index, value):
        prior, self.inside_reduction = self.inside_reduction, False
        try:
            self.store(name, index, value)
        finally:
            self.inside_reduction = prior

    def partial_accumulate(self, name, reduction_type, value, extra_meta):
        """A term of a column's sum (mix_order.py), of which each workgroup stores its part."""
        sums = self.partial_sums.pointers
        self.compute.writeline(f"if (inside) columns{len(sums)}[n] += {operand(value, 'float')};")
        sums.append(self.args.output(name))

    def scan(self, dtypes, combine_fn, values):
        raise NotImplementedError("scans in generated kernels")

    def sort(self, dtypes, values, stable, descending):
        raise NotImplementedError("sorts in generated kernels")


def _combination(dtype, src_dtype, reduction_type, value) -> tuple[str, str]:
    """The type of an accumulator, and its combination."""
    kind = register_type(value) or REGISTER[src_dtype]
    if reduction_type in ("sum", "prod"):
        kind = REGISTER[dtype] if kind != "float" else kind
        kind = "int" if kind == "bool" else kind
        return kind, f"{'Sum' if reduction_type == 'sum' else 'Product'}<{kind}>"
    if reduction_type == "any":
        return "bool", "Maximum<bool>"
    if reduction_type in ("max", "min"):
        name = "Maximum" if reduction_type == "max" else "Minimum"
        if kind == "float" and not V.kernel.is_single_operation:
            return kind, "MaxF32" if reduction_type == "max" else "MinF32"
        return kind, f"{name}<{kind}>"
    if reduction_type == "xor_sum":
        kind = "int" if kind == "bool" else kind
        return kind, f"ExclusiveOr<{kind}>"
    raise NotImplementedError(f"reduction {reduction_type}")
