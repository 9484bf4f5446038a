"""Adam and its kin with betas that are tensors, which PyTorch refuses over lists; and compiled optimizers' state."""

from functools import wraps

import torch

WHY = (
    "Optimizers whose betas are tensors work tensor by tensor unless foreach is asked for, as with such an lr; "
    "a compiled step has counts of steps and products of momenta on the parameters' device from the first on."
)
_MADE_ON_THE_DEVICE = 1  # as true as True, and told from what a user asked for
_COMPILED = "torch._dynamo.variables.optimizer"
TARGETS = ("torch.optim.adam", "torch.optim.adamax", "torch.optim.nadam", "torch.optim.radam", _COMPILED)


def apply(module, replace):
    if module.__name__ == _COMPILED:
        variable = module.OptimizerVariable
        replace(variable, "move_step_if_cpu", _with_products_of_momenta(variable.move_step_if_cpu))
        guarded = variable.map_sources_and_install_guards
        replace(variable, "map_sources_and_install_guards", _after_initialization(guarded))
        replace(variable, "call_method", _after_failures(variable.call_method))
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
        for group in self.value.param_groups:
            new = all(p.is_mps and p not in self.value.state for p in group["params"])
            if new and group.get("capturable") is False:
                group["capturable"] = _MADE_ON_THE_DEVICE

    return move_step_if_cpu


def _as_asked_for(optimizer):
    for group in optimizer.param_groups:
        if group.get("capturable") is _MADE_ON_THE_DEVICE:
            group["capturable"] = False


def _after_initialization(original):
    """PyTorch traces steps as capturable ones on every device, but has state made for that on CUDA and XPU alone.

    Eager steps of mps refuse the option, as a Mac's do: groups have it only while their state is made.
    """

    @wraps(original)
    def map_sources_and_install_guards(self, tx):
        _as_asked_for(self.value)
        original(self, tx)

    return map_sources_and_install_guards


def _after_failures(original):
    @wraps(original)
    def call_method(self, *args, **kwargs):
        try:
            return original(self, *args, **kwargs)
        finally:
            _as_asked_for(self.value)

    return call_method
