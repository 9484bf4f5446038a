"""The functions of csrc/gemm/epilogue.h by PyTorch's own operators."""

import torch
import torch.nn.functional as F

FUNCTIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "relu6": F.relu6,
}


def gradient(name, v, x):
    """v f'(x); x is the result of sigmoid and tanh, the argument of others."""
    if name == "sigmoid":
        return v * x * (1 - x)
    if name == "tanh":
        return v * (1 - x * x)
    leaf = x.clone().requires_grad_()
    FUNCTIONS[name](leaf).backward(v)
    return leaf.grad


def after(steps, v, x=None):
    """v after steps, which are named as the operators name them."""
    for step in steps:
        name, _, use = step.rpartition("_")
        if step in FUNCTIONS:
            v = FUNCTIONS[step](v)
        elif step in ("mul", "add"):
            v = v * x if step == "mul" else v + x
        elif use == "backward":
            v = gradient(name, v, x)
        else:
            v = v * FUNCTIONS[name](x) if use == "mul" else v + FUNCTIONS[name](x)
    return v
