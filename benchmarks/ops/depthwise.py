"""Depthwise convolutions of ConvNeXt-T, MobileNetV3-L and EfficientNet-B0 and their gradients, in GB/s.

What counts is what must move: the image, the result and the filter once each (x, the gradient of y and the filter's
for gradients of filters). ANYMPS_BENCHMARK_IMAGES is the size of a batch (64; on a software driver and the CPU 1);
--only REGEX measures the figures whose name it matches.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402

LAYERS = {  # channels, side of the input, taps, stride
    "ConvNeXt-T": ((96, 56, 7, 1), (192, 28, 7, 1), (384, 14, 7, 1), (768, 7, 7, 1)),
    "MobileNetV3-L": ((16, 112, 3, 1), (64, 112, 3, 2), (72, 56, 5, 2), (120, 28, 5, 1), (672, 14, 3, 1)),
    "EfficientNet-B0": ((96, 112, 3, 2), (144, 56, 5, 2), (480, 14, 5, 1), (1152, 7, 3, 1)),
}
# Types and memory formats that are measured of each network.
KINDS = {
    "ConvNeXt-T": (("bfloat16", "NHWC"), ("bfloat16", "NCHW")),
    "MobileNetV3-L": (("float32", "NCHW"), ("bfloat16", "NCHW")),
    "EfficientNet-B0": (("float32", "NCHW"), ("bfloat16", "NHWC")),
}
WHAT = ("forward", "gradient of the input", "gradient of the weight")


def layer(make, images, channels, side, taps, stride):
    """What is computed -> call; and the elements that each must move."""
    import torch

    padding, out = taps // 2, (side - 1) // stride + 1
    x, g = make(images, channels, side, side), make(images, channels, out, out)
    w = torch.randn(channels, 1, taps, taps, device=x.device).to(x.dtype)
    calls = {"forward": lambda: torch.conv2d(x, w, stride=stride, padding=padding, groups=channels)}
    for what, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
        arguments = (g, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], channels, mask)
        calls[f"gradient of the {what}"] = lambda arguments=arguments: torch.ops.aten.convolution_backward(*arguments)
    return calls, x.numel() + g.numel() + w.numel()


def measure(device):
    import torch

    small = device == "cpu" or (device == "mps" and "llvmpipe" in peer.device_name(device))
    images = int(os.environ.get("ANYMPS_BENCHMARK_IMAGES", 1 if small else 64))
    chosen = re.compile(os.environ.get("ANYMPS_BENCHMARK_ONLY", ""))

    def selected():
        """Name, call and gigabytes of each figure."""
        rows = ((name, *kind, *shape) for name, kinds in KINDS.items() for kind in kinds for shape in LAYERS[name])
        for network, name, memory, channels, side, taps, stride in rows:
            key = f"{network}, {name}, {memory}: {channels} channels, {side} px, {taps} x {taps}, stride {stride}"
            if not any(chosen.search(f"{key}: {what}") for what in WHAT):
                continue
            dtype = getattr(torch, name)

            def make(*shape, dtype=dtype, last=memory == "NHWC"):
                tensor = torch.randn(shape, device=device).to(dtype)
                return tensor.contiguous(memory_format=torch.channels_last) if last else tensor

            calls, elements = layer(make, images, channels, side, taps, stride)
            for what, call in calls.items():
                if chosen.search(f"{key}: {what}"):
                    yield f"{key}: {what}", call, elements * dtype.itemsize / 1e9

    figures = {}
    with torch.no_grad():
        for key, call, gigabytes in selected():
            call()
            inner = peer.stream_length(call, device, seconds=0.01)
            figures[key] = gigabytes / peer.median_seconds(call, device, inner, repeats=3, warmup=0, busy=0.02)
            print(f"{device}, {key}: {figures[key]:.4g} GB/s", file=sys.stderr, flush=True)
    return figures


if __name__ == "__main__":
    peer.run(measure, "GB/s", "Depthwise convolutions of three networks", higher_is_better=True, below=1.0)
