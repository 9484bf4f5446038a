"""Compiled code runs without autocast, which its graph has applied; PyTorch asks every device for it but mps."""

import functools

WHY = "torch.compile runs graphs without autocast of mps, which was applied to their operators when they were traced."
TARGETS = ("torch",)


def apply(module, replace):
    replace(module._C, "_is_any_autocast_enabled", _or_of_mps(module._C._is_any_autocast_enabled))


def _or_of_mps(original):
    @functools.wraps(original)
    def _is_any_autocast_enabled():
        import torch

        return original() or torch.is_autocast_enabled("mps")

    return _is_any_autocast_enabled
