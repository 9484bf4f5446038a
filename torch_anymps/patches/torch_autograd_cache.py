"""Numbers of Python, and inputs that share memory, in the key of torch.compile's cache of traced graphs."""

import functools

WHY = (
    "torch.compile's cache tells two floats s of x * s + x // s apart, and arguments that are views of one tensor from "
    "others, where PyTorch gives the graph of the first."
)
TARGETS = ("torch._functorch._aot_autograd.autograd_cache",)


def apply(module, replace):
    pickler = module.AOTAutogradCachePickler
    replace(module.AOTAutogradCacheDetails, "__init__", _with_shared_memory(module.AOTAutogradCacheDetails.__init__))
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


def _with_shared_memory(original):
    """Traced graphs take one base of inputs that share memory, of which some are written, and their offsets in it."""

    @functools.wraps(original)
    def initialize(self, gm, example_inputs, *args, **kwargs):
        import torch

        original(self, gm, example_inputs, *args, **kwargs)
        places: dict[int, list] = {}
        for i, x in enumerate(example_inputs):
            if isinstance(x, torch.Tensor) and torch._C._has_storage(x):
                places.setdefault(x.untyped_storage()._cdata, []).append((i, str(x.storage_offset())))
        self.shared_memory = [shared for shared in places.values() if len(shared) > 1]

    return initialize
