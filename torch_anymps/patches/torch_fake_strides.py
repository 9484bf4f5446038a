"""Fake tensors of mps: strides of results for which PyTorch's Python meta functions know other devices only."""

WHY = "torch.compile knows that factors and solutions of linear systems are row-major on mps, as PyTorch makes them."
TARGETS = ("torch._subclasses.fake_impls",)
OPERATORS = ("_linalg_solve_ex", "linalg_lu_factor_ex")


def apply(module, replace):
    import torch

    for name in OPERATORS:
        replace(module.op_implementations_dict, getattr(torch.ops.aten, name).default, _row_major)


def _row_major(fake_mode, function, *args, **kwargs):
    from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

    device = args[0].device
    if device.type != "mps":
        return NotImplemented
    with in_kernel_invocation_manager(fake_mode):
        results = [result.contiguous() for result in function(*args, **kwargs)]
    return tuple(FakeTensor(fake_mode, result, device) for result in results)
