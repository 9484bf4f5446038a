"""Numbers of Python in the key of torch.compile's cache of traced graphs."""

import functools

WHY = "torch.compile's cache tells x * s + x // s of two floats s apart, where PyTorch gives the graph of the first."
TARGETS = ("torch._functorch._aot_autograd.autograd_cache",)


def apply(module, replace):
    pickler = module.AOTAutogradCachePickler
    replace(pickler, "_reduce_tensor_subclass", _with_numbers(pickler._reduce_tensor_subclass))


def _with_numbers(original):
    """A float that a dynamic graph is given is a tensor there, whose number tracing may yet fix: x // s does."""

    @functools.wraps(original)
    def reduce_tensor_subclass(self, tensor):
        import torch

        build, arguments = original(self, tensor)
        number = getattr(tensor, "item_memo", None)
        if isinstance(number, torch.SymFloat) and number.node.has_hint():
            arguments = ((*arguments, float(number.node.hint)),)
        return build, arguments

    return reduce_tensor_subclass
