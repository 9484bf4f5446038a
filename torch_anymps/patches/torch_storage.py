"""Storages on mps: making, copying and sharing them, where PyTorch knows less of mps than of cpu and cuda."""

import types

WHY = (
    "torch.UntypedStorage(n, device='mps') makes a storage, which resize_ resizes; copy.deepcopy keeps views views; "
    "sharing says it cannot."
)
TARGETS = ("torch",)

CANNOT_SHARE = (
    "Cannot share an MPS storage between processes: its memory belongs to the Vulkan device of this process. "
    "Share or send tensor.cpu(), and move it to the device in the other process."
)


def apply(module, replace):
    from multiprocessing.reduction import ForkingPickler

    torch = module
    storage = torch.UntypedStorage
    replace(storage, "__new__", staticmethod(_new(torch)))
    replace(torch.Tensor, "__deepcopy__", _without_mps(torch.Tensor.__deepcopy__))
    replace(storage, "resize_", _resize(torch, storage.resize_))
    replace(storage, "byteswap", _swapping_on_the_cpu(storage.byteswap))
    replace(storage, "share_memory_", _refusing_mps(storage.share_memory_))
    replace(storage, "is_shared", _never_on_mps(storage.is_shared))
    # What a Queue and a Pipe do to a storage. PyTorch's own would send an empty one as one of the CPU's.
    reducers = ForkingPickler._extra_reducers
    replace(ForkingPickler, "_extra_reducers", {**reducers, storage: _refusing_mps(reducers[storage])})


def _new(torch):
    """The constructor of builds without Apple's backend refuses device="mps" in C."""
    plain_new = torch._C.StorageBase.__new__

    def new(cls, *args, device=None, **kwargs):
        if device is None or torch.device(device).type != "mps":
            return plain_new(cls, *args, **kwargs) if device is None else plain_new(cls, *args, device=device, **kwargs)
        if kwargs or len(args) > 1:
            return plain_new(cls, *args, device=device, **kwargs)  # raises PyTorch's own error
        content = args[0] if args else 0
        if isinstance(content, int):
            tensor = torch.empty(content, dtype=torch.uint8, device=device)
        else:
            tensor = torch.tensor(list(content), dtype=torch.uint8, device=device)
        return tensor.untyped_storage()

    return new


def _resize(torch, plain_resize):
    """FSDP frees the memory of gathered parameters by it, and makes it anew."""

    def resize_(storage, size: int):
        if storage.device.type != "mps":
            return plain_resize(storage, size)
        whole = torch.empty(0, dtype=torch.uint8, device="mps").set_(storage)
        torch.ops.anymps.resize_storage(whole, size)
        return storage

    return resize_


def _swapping_on_the_cpu(byteswap):
    """PyTorch's own writes through the storage's address as if it were the host's."""

    def swapped(storage, dtype):
        if storage.device.type != "mps":
            return byteswap(storage, dtype)
        host = storage.cpu()
        byteswap(host, dtype)
        storage.copy_(host)

    return swapped


def _without_mps(deepcopy):
    """Tensor.__deepcopy__ whose list of devices that clone tensors one by one, a constant of its code, lacks mps.

    What stays is the way of the CPU and of CUDA: a storage is copied once, and its tensors share the copy.
    """
    constants = deepcopy.__code__.co_consts
    without = tuple(tuple(d for d in c if d != "mps") if isinstance(c, tuple) and "mps" in c else c for c in constants)
    if without == constants:
        raise RuntimeError("Tensor.__deepcopy__ has no list of devices with mps in it any more.")
    code = deepcopy.__code__.replace(co_consts=without)
    copy = types.FunctionType(code, deepcopy.__globals__, deepcopy.__name__, deepcopy.__defaults__)
    copy.__qualname__ = deepcopy.__qualname__
    copy.__module__ = deepcopy.__module__
    return copy


def _refusing_mps(function):
    def share(storage, *args, **kwargs):
        if storage.device.type == "mps":
            raise RuntimeError(CANNOT_SHARE)
        return function(storage, *args, **kwargs)

    return share


def _never_on_mps(is_shared):
    def answer(storage):
        return storage.device.type != "mps" and is_shared(storage)

    return answer
