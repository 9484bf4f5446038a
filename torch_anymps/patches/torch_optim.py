"""Adam and its kin with betas that are tensors, which PyTorch refuses over lists; and compiled optimizers' state."""

from functools import wraps

import torch

WHY = (
    "Optimizers whose betas are tensors work tensor by tensor unless foreach is asked for, as with such an lr; "
    "a compiled NAdam has its steps and its products of momenta on one device."
)
_COMPILED = "torch._dynamo.variables.optimizer"
TARGETS = ("torch.optim.adam", "torch.optim.adamax", "torch.optim.nadam", "torch.optim.radam", _COMPILED)


def apply(module, replace):
    if module.__name__ == _COMPILED:
        variable = module.OptimizerVariable
        replace(variable, "move_step_if_cpu", _with_products_of_momenta(variable.move_step_if_cpu))
        return
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


def _with_products_of_momenta(original):
    """What PyTorch brings to the parameters' device as it compiles a step again: the step's count, and not mu_product.

    Of CUDA it is there. A kernel of the CPU would read numbers of the device that have not been written.
    """

    @wraps(original)
    def move_step_if_cpu(self):
        original(self)
        for p, state in self.value.state.items():
            product = state.get("mu_product")
            if p.is_mps and isinstance(product, torch.Tensor) and product.is_cpu:
                state["mu_product"] = product.to(p.device)

    return move_step_if_cpu
