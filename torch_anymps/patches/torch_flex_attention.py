"""torch.compile would lower flex attention on mps to Metal source: its definition in plain operators is traced."""

import functools

WHY = "torch.compile traces flex_attention on mps as plain operators, which fuse, instead of a Metal template."
TARGETS = ("torch._higher_order_ops.flex_attention",)


def apply(module, replace):
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    operator = module.flex_attention
    table = operator.python_key_table
    traced = _with_mps(table[FunctionalTensorMode], module.sdpa_dense)
    replace(operator, "python_key_table", {**table, FunctionalTensorMode: traced})


def _with_mps(original, plain):
    """What ahead-of-time tracing calls. plain: the operator's definition, by the names of its own arguments."""

    @functools.wraps(original)
    def functionalized(mode, query, *args, **kwargs):
        if query.device.type != "mps":
            return original(mode, query, *args, **kwargs)
        with mode:
            return plain(query, *args, **kwargs)

    return functionalized
