"""Lightning takes mps only where platform.processor() is arm."""

import os

WHY = "Lightning's MPSAccelerator asks for an ARM processor; here it asks whether mps is available."
TARGETS = ("lightning.fabric.accelerators.mps", "lightning_fabric.accelerators.mps")


def apply(module, replace):
    import torch

    def is_available() -> bool:
        """MPS is available where torch says so, and DISABLE_MPS=1 turns it off as Lightning has it."""
        return os.getenv("DISABLE_MPS", "0") != "1" and torch.backends.mps.is_available()

    replace(module.MPSAccelerator, "is_available", staticmethod(is_available))
