"""Rows of pointwise.yaml whose operators Inductor would call as they are: fused instead, by the row alone."""

from __future__ import annotations

import functools
from numbers import Number

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from .dtypes import REGISTER
from .rows import ROW, arithmetic_of, of_result, rows

# Their rows are shorter than PyTorch's decompositions, and give what eager kernels give: sinc of 3e38 is no NaN.
PREFERRED = (torch.ops.aten.gelu.default, torch.ops.aten.gelu_backward.default, torch.ops.aten.sinc.default)
registered: list[torch._ops.OpOverload] = []  # by register_rows


def register_rows() -> None:
    """Gives every operator with a row, and with neither a lowering nor a decomposition, a lowering."""
    from torch._inductor import decomposition, lowering

    variants: dict = {}
    for row in rows().values():
        for op in _functional_overloads(row):
            variants.setdefault(op, []).append(row)
    for op, of_op in variants.items():
        has_lowering = op in lowering.lowerings and op not in lowering.fallbacks
        if op not in PREFERRED and (op in decomposition.decompositions or has_lowering):
            continue
        call = lowering.lowerings.get(op) or lowering.fallback_handler(op, add_to_fallback_set=False)
        lowering.register_lowering(op, type_promotion_kind=None)(_lowering(op, of_op, call))
        lowering.needs_realized_inputs.discard(op)  # a call realizes them itself
        registered.append(op)


def floor_division(original):
    """Of floats by the row: 1.0 // 0.1 is 9, and the floor of the quotient, which Inductor's own takes, is 10."""

    from torch._inductor import ir

    def is_float(x):
        return isinstance(x, float) or (isinstance(x, ir.IRNode) and x.get_dtype().is_floating_point)

    @functools.wraps(original)
    def div(a, b, rounding_mode=None):
        of_row = rounding_mode == "floor" and (is_float(a) or is_float(b))
        fused = of_row and _fused(rows()["div_mode_floor"], {"self": a, "other": b})
        return fused or original(a, b, rounding_mode=rounding_mode)

    return div


def _functional_overloads(row: dict) -> list[torch._ops.OpOverload]:
    """Those that give one new tensor, have the row's names of arguments, and are no composite of others."""
    packets = {name.partition(".")[0] for name in row["ops"]}
    names = {*row["inputs"], *row["scalars"], *row["choice"]}
    if any(len(texts) != 1 for texts in row["expr"].values()):
        return []
    found = []
    for packet in (getattr(torch.ops.aten, name, None) for name in sorted(packets)):
        for op in (getattr(packet, name) for name in (packet.overloads() if packet is not None else ())):
            schema = op._schema
            is_functional = not schema.is_mutable and len(schema.returns) == 1
            if is_functional and names == {a.name for a in schema.arguments} and _has_kernel_of_its_own(op.name()):
                found.append(op)
    return found


def _has_kernel_of_its_own(name: str) -> bool:
    """False for composites, which are gone before Inductor, and for overloads of TorchScript's numbers."""
    dispatcher = torch._C
    if not dispatcher._dispatch_has_kernel(name):
        return False
    return not dispatcher._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")


def _lowering(op, variants: list[dict], call):
    arguments = op._schema.arguments

    @functools.wraps(call)
    def lowered(*args, **kwargs):
        given = {a.name: a.default_value for a in arguments if a.has_default_value()}
        given.update(zip((a.name for a in arguments), args))
        given.update(kwargs)
        row = next((r for r in variants if all(given[k] == v for k, v in r["choice"].items())), None)
        return (row and _fused(row, given)) or call(*args, **kwargs)

    return lowered


def _fused(row: dict, given: dict):
    """The row of a loop, or None where it has to be called: on other devices, and for what a loop has no type for."""
    from torch._inductor import ir, lowering

    operands, scalars = [given[name] for name in row["inputs"]], [given[name] for name in row["scalars"]]
    tensors = [x for x in operands if isinstance(x, ir.IRNode)]
    known = all(isinstance(x, (ir.IRNode, Number)) for x in operands) and all(isinstance(x, Number) for x in scalars)
    if not tensors or not known or any(x.get_device().type != "mps" for x in tensors):
        return None
    kind = PROMOTION.INT_TO_FLOAT if "float" in row["rule"].split("_") else PROMOTION.DEFAULT
    dtype = lowering.get_promoted_dtype(*operands, type_promotion_kind=kind)
    try:
        arithmetic_of(row, REGISTER[dtype])
    except (KeyError, NotImplementedError):
        return None
    tensors = lowering.broadcast_tensors(*(lowering.to_dtype(x, dtype) for x in tensors))
    loaders = [x.make_loader() for x in tensors]
    result = of_result(row, dtype)

    def element(index):
        from torch._inductor.virtualized import ops

        loaded = iter(loaders)
        values = [next(loaded)(index) if isinstance(x, ir.IRNode) else ops.constant(x, dtype) for x in operands]
        values += [ops.constant(x, torch.int64 if isinstance(x, int) else torch.float32) for x in scalars]
        return ops.inline_asm_elementwise(*values, asm=row["name"], constraints=ROW, dtype=result)

    device, ranges = tensors[0].get_device(), tensors[0].get_size()
    return ir.Pointwise.create(device=device, dtype=result, inner_fn=element, ranges=list(ranges))
