"""What torch.distributed asks of a device's module: DeviceMesh and FSDP take torch.mps for one like torch.cuda."""

WHY = "torch.mps answers what DeviceMesh and FSDP ask of the module of a device."
TARGETS = ("torch",)


def apply(module, replace):
    torch = module
    replace(torch.mps, "is_available", _is_available)
    replace(torch.mps, "is_initialized", _is_initialized)
    replace(torch.mps, "set_device", _set_device)


def _is_available() -> bool:
    """Whether there is a device for mps."""
    import torch

    return torch.backends.mps.is_available()


def _is_initialized() -> bool:
    """True, as there is nothing to choose any more: a process has one device."""
    return True


def _set_device(device) -> None:
    """Makes `device`, an index or a torch.device, the current one, which it is; RuntimeError where it is not ours."""
    import torch

    index = device if isinstance(device, int) else torch.device(device).index
    torch.accelerator.set_device_index(index or 0)
