"""Adam and its kin with betas that are tensors, which PyTorch's optimizers over lists of tensors refuse."""

from functools import wraps

import torch

WHY = "Optimizers whose betas are tensors work tensor by tensor unless foreach is asked for, as with such an lr."
TARGETS = ("torch.optim.adam", "torch.optim.adamax", "torch.optim.nadam", "torch.optim.radam")


def apply(module, replace):
    name = module.__name__.rpartition(".")[2]
    plain = getattr(module, name)

    @wraps(plain)
    def step(*args, **options):
        """torch.optim.adam.adam and its like, as their optimizers call them: foreach by name, None by default."""
        by_default = "foreach" in options and options["foreach"] is None
        tensors = isinstance(options.get("beta1"), torch.Tensor) or isinstance(options.get("beta2"), torch.Tensor)
        if by_default and tensors and not options.get("fused") and not options.get("capturable"):
            options["foreach"] = False
        return plain(*args, **options)

    replace(module, name, step)
