"""PyTorch's list of devices on which optimizers and gradient clipping work on lists of tensors by default."""

from functools import wraps

import torch

WHY = "Optimizers, gradient clipping and weight averaging work on all tensors at once, as they do on cuda."
# Two of them keep a reference of their own to the function.
TARGETS = ("torch.utils._foreach_utils", "torch.optim.optimizer", "torch.optim.swa_utils")


def apply(module, replace):
    plain = module._get_foreach_kernels_supported_devices

    def devices() -> list[str]:
        """Device types whose operators on lists of tensors are faster than loops."""
        return [*(name for name in plain() if name != "mps"), "mps"]

    replace(module, "_get_foreach_kernels_supported_devices", devices)
    if hasattr(module, "get_swa_multi_avg_fn"):
        replace(module, "get_swa_multi_avg_fn", averaging_of_lists(module))


def averaging_of_lists(module):
    plain = module.get_swa_multi_avg_fn

    @wraps(plain)
    def averaging():
        """Integers on mps (counters of batch norm with use_buffers=True) one by one: addcdiv refuses them."""
        lists, single = plain(), module.get_swa_avg_fn()

        @torch.no_grad()
        def update(averaged, current, num_averaged):
            first = averaged[0]
            if first.device.type != "mps" or first.is_floating_point() or first.is_complex():
                return lists(averaged, current, num_averaged)
            for average, new in zip(averaged, current, strict=True):
                average.copy_(single(average, new, num_averaged))

        return update

    return averaging
