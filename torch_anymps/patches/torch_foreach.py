"""PyTorch's list of devices on which optimizers and gradient clipping work on lists of tensors by default."""

WHY = "Optimizers, gradient clipping and weight averaging work on all tensors at once, as they do on cuda."
# Two of them keep a reference of their own to the function.
TARGETS = ("torch.utils._foreach_utils", "torch.optim.optimizer", "torch.optim.swa_utils")


def apply(module, replace):
    plain = module._get_foreach_kernels_supported_devices

    def devices() -> list[str]:
        """Device types whose operators on lists of tensors are faster than loops."""
        return [*(name for name in plain() if name != "mps"), "mps"]

    replace(module, "_get_foreach_kernels_supported_devices", devices)
