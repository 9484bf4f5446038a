#!/usr/bin/env python3
"""Convolutions of known networks and their gradients, to compare what two builds dispatch for them:

    ANYMPS_LOG=dispatch python tools/conv_dispatches.py 2> before.txt

Kernels, constants and grids follow a line that names the call. Results mean nothing, so that a driver that runs
nothing does; else ANYMPS_TILES=gpu, ANYMPS_KERNELS=gpu and drivers with cooperative matrices take the ways of GPUs.
--small: a sixteenth of the sizes, for drivers that do run them.
"""

from __future__ import annotations

import sys

import torch

# name: input, filter, stride, padding, dilation, groups, transposed
LAYERS = {
    "resnet stem": ((32, 3, 224, 224), (64, 3, 7, 7), 2, 3, 1, 1, False),
    "resnet 3x3 64": ((32, 64, 56, 56), (64, 64, 3, 3), 1, 1, 1, 1, False),
    "resnet 3x3 512": ((32, 512, 7, 7), (512, 512, 3, 3), 1, 1, 1, 1, False),
    "resnet 3x3 strided": ((32, 128, 56, 56), (128, 128, 3, 3), 2, 1, 1, 1, False),
    "resnet 1x1 64-256": ((32, 64, 56, 56), (256, 64, 1, 1), 1, 0, 1, 1, False),
    "resnet 1x1 1024-256": ((32, 1024, 14, 14), (256, 1024, 1, 1), 1, 0, 1, 1, False),
    "resnet 1x1 strided": ((32, 256, 56, 56), (512, 256, 1, 1), 2, 0, 1, 1, False),
    "resnext groups": ((32, 128, 56, 56), (128, 4, 3, 3), 1, 1, 1, 32, False),
    "wide groups": ((32, 256, 28, 28), (256, 32, 3, 3), 1, 1, 1, 8, False),
    "mobilenet depthwise": ((32, 144, 56, 56), (144, 1, 3, 3), 1, 1, 1, 144, False),
    "mobilenet depthwise strided": ((32, 96, 112, 112), (96, 1, 3, 3), 2, 1, 1, 96, False),
    "mobilenet 1x1 24-144": ((32, 24, 56, 56), (144, 24, 1, 1), 1, 0, 1, 1, False),
    "convnext depthwise": ((32, 96, 56, 56), (96, 1, 7, 7), 1, 3, 1, 96, False),
    "convnext down": ((32, 96, 56, 56), (192, 96, 2, 2), 2, 0, 1, 1, False),
    "unet 64-128": ((4, 64, 128, 128), (128, 64, 3, 3), 1, 1, 1, 1, False),
    "unet up": ((4, 128, 64, 64), (128, 64, 2, 2), 2, 0, 1, 1, True),
    "dcgan up": ((16, 256, 8, 8), (256, 128, 4, 4), 2, 1, 1, 1, True),
    "aspp dilated": ((4, 512, 28, 28), (256, 512, 3, 3), 1, 6, 6, 1, False),
    "vit patches": ((32, 3, 224, 224), (768, 3, 16, 16), 16, 0, 1, 1, False),
    "odd": ((3, 5, 17, 19), (7, 5, 3, 3), 1, 1, 1, 1, False),
    "wav2vec": ((4, 512, 3199), (512, 512, 3), 2, 0, 1, 1, False),
    "1d positions": ((4, 768, 199), (768, 48, 128), 1, 64, 1, 16, False),
    "3d": ((4, 64, 8, 28, 28), (64, 64, 3, 3, 3), 1, 1, 1, 1, False),
    "3d strided": ((4, 64, 8, 28, 28), (128, 64, 3, 3, 3), 2, 1, 1, 1, False),
}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def calls(name: str, dtype: torch.dtype, last: bool, small: bool) -> None:
    """One layer: the result, both gradients together and each by itself."""
    x_shape, w_shape, stride, padding, dilation, groups, transposed = LAYERS[name]
    if small:
        x_shape = (max(1, x_shape[0] // 16), *x_shape[1:])
    dim = len(x_shape) - 2
    if last and dim not in LAST:
        return
    form = {"memory_format": LAST[dim]} if last else {}
    x, w = (torch.empty(shape, device="mps", dtype=dtype, **form) for shape in (x_shape, w_shape))
    bias = torch.empty(w_shape[1] * groups if transposed else w_shape[0], device="mps", dtype=dtype)
    geometry = ([stride] * dim, [padding] * dim, [dilation] * dim, transposed, [0] * dim, groups)
    label = f"== {name}, {dtype}{', channels last' if last else ''}"
    print(label, "fprop", file=sys.stderr)
    y = torch.ops.aten.convolution(x, w, bias, *geometry)
    for mask in ([True, True, False], [True, False, False], [False, True, False]):
        print(label, "gradients", mask, file=sys.stderr)
        torch.ops.aten.convolution_backward(y, x, w, bias.shape, *geometry, mask)


def main() -> None:
    for name in LAYERS:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for last in (False, True):
                calls(name, dtype, last, "--small" in sys.argv)
    torch.mps.synchronize()


if __name__ == "__main__":
    main()
