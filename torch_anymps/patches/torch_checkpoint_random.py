"""Random numbers of checkpoints in compiled graphs: the backward draws again what the forward drew."""

import functools

WHY = (
    "torch.compile recomputes dropout in checkpoints on mps with the forward's random numbers, in replayed graphs too."
)
TARGETS = ("torch._prims.rng_prims", "torch._functorch._aot_autograd.utils")


def apply(module, replace):
    if module.__name__ == "torch._functorch._aot_autograd.utils":
        # Each checkpointed operator draws from two generators of its own, one for each direction.
        replace(module, "_GRAPHSAFE_RNG_DEVICE_TYPES", {*module._GRAPHSAFE_RNG_DEVICE_TYPES, "mps"})
        return
    import torch

    replace(torch.mps, "default_generators", _DefaultGenerators())
    replace(torch.mps, "_get_generator", _get_generator)
    _add(replace, module.graphsafe_run_with_rng_state, module._impl_graphsafe_rng)
    # The way of torch._inductor.config.fallback_random: states are outputs of the forward.
    from torch._higher_order_ops import utils

    # The operator whose numbers they are stands first, or behind the state; its own arguments tell the device.
    def device_of(first):
        return lambda args, kwargs: module.get_device(args[first:], kwargs)

    save, fakes = module.run_and_save_rng_state, utils.registered_hop_fake_fns
    _add(replace, save, _run_and_save, device_of(1))
    _add(replace, module.run_with_rng_state, _run_with_state, device_of(2))
    fake = _with_mps(fakes[save], _fake_run_and_save, device_of(1))
    replace(utils, "registered_hop_fake_fns", {**fakes, save: fake})


def _add(replace, operator, ours, device_of=None) -> None:
    """Makes a function an operator's kernel for mps; device_of: where BackendSelect has a list of devices, too."""
    from torch._C import DispatchKey

    kernels = {**operator.py_kernels, DispatchKey.MPS: ours}
    if device_of is not None:
        original = kernels[DispatchKey.BackendSelect]
        kernels[DispatchKey.BackendSelect] = _with_mps(original, ours, device_of)
    replace(operator, "py_kernels", kernels)
    replace(operator, "_dispatch_cache", {})


def _with_mps(original, ours, device_of):
    @functools.wraps(original)
    def choose(*args, **kwargs):
        return (ours if device_of(args, kwargs) == "mps" else original)(*args, **kwargs)

    return choose


def _run_and_save(op, *args, **kwargs):
    import torch

    return torch.mps.get_rng_state(), op(*args, **kwargs)


def _fake_run_and_save(op, *args, **kwargs):
    import torch

    return torch.empty(torch.mps.get_rng_state().numel(), dtype=torch.uint8), op(*args, **kwargs)


def _run_with_state(rng_state, op, *args, **kwargs):
    import torch

    current = torch.mps.get_rng_state()
    torch.mps.set_rng_state(rng_state)
    try:
        return op(*args, **kwargs)
    finally:
        torch.mps.set_rng_state(current)


class _DefaultGenerators:
    """torch.mps.default_generators, as torch.cuda's: asked for when indexed, as `import torch` starts no device."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int):
        import torch

        return (torch.mps._get_default_mps_generator(),)[index]


def _get_generator(device):
    """The default generator of a device: there is one, as on a Mac."""
    import torch

    return torch.mps._get_default_mps_generator()
