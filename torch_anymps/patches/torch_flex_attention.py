"""flex_attention on mps: its definition in plain operators is traced, of gradients, too; autocast reaches it."""

import functools

WHY = (
    "torch.compile traces flex_attention on mps as plain operators, which fuse, instead of a Metal template; "
    "its gradients are computed instead of refused, and autocast casts its arguments."
)
TARGETS = ("torch._higher_order_ops.flex_attention", "torch.nn.attention.flex_attention")


def apply(module, replace):
    if module.__name__ == "torch.nn.attention.flex_attention":
        replace(module, "_validate_device", _but_mps(module._validate_device))
        return
    from torch._C import DispatchKey
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    operator, key = module.flex_attention, DispatchKey.AutocastMPS
    replace(operator.py_kernels, key, _without(key, module._flex_attention_autocast_impl))
    replace(operator, "non_fallthrough_keys", operator.non_fallthrough_keys.add(key))
    definitions = {
        module.flex_attention: module.sdpa_dense,
        module.flex_attention_backward: module.sdpa_dense_backward,
    }
    for operator, plain in definitions.items():
        table = operator.python_key_table
        traced = _with_mps(table[FunctionalTensorMode], plain)
        replace(operator, "python_key_table", {**table, FunctionalTensorMode: traced})


def _without(key, autocast):
    """autocast: casts to the dtype of the device's autocast and calls the operator without that of other devices."""
    from torch._C import DispatchKeySet, _ExcludeDispatchKeyGuard

    @functools.wraps(autocast)
    def cast(*args):
        with _ExcludeDispatchKeyGuard(DispatchKeySet(key)):
            return autocast(*args)

    return cast


def _but_mps(original):
    """The check of devices, which refuses tensors of mps that need gradients."""

    @functools.wraps(original)
    def validate(query, key, value):
        if query.device.type != "mps":
            original(query, key, value)

    return validate


def _with_mps(original, plain):
    """What ahead-of-time tracing calls. plain: the operator's definition, by the names of its own arguments."""

    @functools.wraps(original)
    def functionalized(mode, query, *args, **kwargs):
        if query.device.type != "mps":
            return original(mode, query, *args, **kwargs)
        with mode:
            return plain(query, *args, **kwargs)

    return functionalized
