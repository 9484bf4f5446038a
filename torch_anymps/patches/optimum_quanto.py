"""optimum-quanto builds a Metal extension for mps at the first use of int2 or int4 weights."""

from types import SimpleNamespace

WHY = "optimum-quanto unpacks int2 and int4 weights with PyTorch's operators instead of a Metal extension."
TARGETS = ("optimum.quanto.library.extensions.mps",)


def apply(module, replace):
    # Its operator quanto::unpack on mps calls ext.lib.unpack, and `lib` is what compiles.
    replace(module, "ext", SimpleNamespace(lib=SimpleNamespace(unpack=_unpack)))


def _unpack(packed, bits: int):
    """The values of 2 or 4 bits in a uint8 tensor, lowest bits first, one part after the other along dimension 0."""
    import torch

    mask = (1 << bits) - 1
    return torch.cat([packed >> shift & mask for shift in range(0, 8, bits)])
