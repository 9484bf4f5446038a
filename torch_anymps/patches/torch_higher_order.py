"""Higher-order operators pass autocast of mps on to the operators inside, as they do that of other devices."""

WHY = "torch.cond, scan and other higher-order operators run within autocast of mps, as within that of other devices."
TARGETS = ("torch",)
KEYS = "_HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS"


def apply(module, replace):
    ops, key = module._ops, module._C.DispatchKey.AutocastMPS
    if key in getattr(ops, KEYS):
        return
    replace(ops, KEYS, [*getattr(ops, KEYS), key])  # for operators that are yet to be made
    for operator in ops._higher_order_ops.values():
        replace(operator, "non_fallthrough_keys", operator.non_fallthrough_keys.remove(key))
