"""Fake tensors of mps: strides of results for which PyTorch's Python meta functions know other devices only."""

WHY = (
    "torch.compile knows how factors and solutions of linear systems lie on mps, up to PyTorch 2.14 row-major, and "
    "results of group_norm: channels-last where the input is."
)
TARGETS = ("torch._subclasses.fake_impls",)
# The versions of PyTorch from which on they are column-major on mps, as elsewhere.
COLUMN_MAJOR_SINCE = {"_linalg_solve_ex": "2.15", "linalg_lu_factor_ex": "2.14"}


def apply(module, replace):
    import torch

    for name in COLUMN_MAJOR_SINCE:
        replace(module.op_implementations_dict, getattr(torch.ops.aten, name).default, _row_major)
    op = torch.ops.aten.group_norm.default
    for name in ("AutogradMPS", "CompositeImplicitAutograd"):  # the second in inference mode
        replace(op.py_kernels, getattr(torch._C.DispatchKey, name), _group_norm)
    op._dispatch_cache.clear()


def _group_norm(x, *args, **kwargs):
    """PyTorch's own, which keeps channels-last on the CPU only, and what operators on mps do."""
    import torch
    from torch._prims_common import suggest_memory_format

    op = torch.ops.aten.group_norm.default
    result = op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, x, *args, **kwargs)
    return result.contiguous(memory_format=suggest_memory_format(x)) if x.device.type == "mps" else result


def _row_major(fake_mode, function, *args, **kwargs):
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

    device = args[0].device
    if device.type != "mps" or torch.__version__ >= COLUMN_MAJOR_SINCE[function._opname]:
        return NotImplemented
    with in_kernel_invocation_manager(fake_mode):
        results = [result.contiguous() for result in function(*args, **kwargs)]
    return tuple(FakeTensor(fake_mode, result, device) for result in results)
