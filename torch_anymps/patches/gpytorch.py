"""GPyTorch and linear_operator decompose matrices in float64, which mps does not have."""

import functools

WHY = "GPyTorch decomposes matrices of mps in float32, as gpytorch.settings.linalg_dtypes lets users choose."
# In each, the methods that ask the setting: (class, method).
METHODS = {
    "gpytorch.variational.variational_strategy": ("VariationalStrategy", "__call__"),
    "linear_operator.operators._linear_operator": ("LinearOperator", "_symeig"),
    "linear_operator.operators.kronecker_product_added_diag_linear_operator": (
        "KroneckerProductAddedDiagLinearOperator",
        "_solve",
    ),
}
TARGETS = tuple(METHODS)


def apply(module, replace):
    owner, name = METHODS[module.__name__]
    owner = getattr(module, owner)
    replace(owner, name, _in_single_precision(getattr(owner, name)))


def _in_single_precision(method):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        from linear_operator.settings import linalg_dtypes

        operand = self if hasattr(self, "device") else args[0] if args else kwargs["x"]
        if not _on_mps(operand):
            return method(self, *args, **kwargs)
        with linalg_dtypes(default=_float32()):
            return method(self, *args, **kwargs)

    return call


def _on_mps(operand) -> bool:
    """Whether a tensor or an operator is on mps: one that joins others, or that holds no tensor, may name no device."""
    import torch

    if operand.device is not None:
        return torch.device(operand.device).type == "mps"
    parts = [part for part in operand._args if hasattr(part, "device")]
    return any(map(_on_mps, parts)) if parts else torch.get_default_device().type == "mps"


def _float32():
    import torch

    return torch.float32
