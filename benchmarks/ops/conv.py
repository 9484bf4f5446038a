"""Every convolution of ResNet50 and VGG16 and its gradients in TFLOP/s: float32 as PyTorch sets it, and bfloat16.

ANYMPS_BENCHMARK_IMAGES is the size of a batch (64; on a software driver and the CPU 1), ANYMPS_BENCHMARK_DTYPES the
types (float32 bfloat16), ANYMPS_BENCHMARK_LAYOUT channels_last for images of that memory format.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import peer  # noqa: E402

RESNET50 = (  # channels, filters, side of the input, taps, stride
    (3, 64, 224, 7, 2),
    *((64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1)),
    *((256, 128, 56, 1, 1), (128, 128, 56, 3, 2), (256, 512, 56, 1, 2), (128, 512, 28, 1, 1), (512, 128, 28, 1, 1)),
    *((128, 128, 28, 3, 1), (512, 256, 28, 1, 1), (256, 256, 28, 3, 2), (512, 1024, 28, 1, 2), (256, 1024, 14, 1, 1)),
    *((1024, 256, 14, 1, 1), (256, 256, 14, 3, 1), (1024, 512, 14, 1, 1), (512, 512, 14, 3, 2)),
    *((1024, 2048, 14, 1, 2), (512, 2048, 7, 1, 1), (2048, 512, 7, 1, 1), (512, 512, 7, 3, 1)),
)
VGG16 = (
    *((3, 64, 224, 3, 1), (64, 64, 224, 3, 1), (64, 128, 112, 3, 1), (128, 128, 112, 3, 1), (128, 256, 56, 3, 1)),
    *((256, 256, 56, 3, 1), (256, 512, 28, 3, 1), (512, 512, 28, 3, 1), (512, 512, 14, 3, 1)),
)


def layer(make, images, channels, filters, side, taps, stride):
    """What is computed -> call; and the floating-point operations of each."""
    import torch

    padding, out = taps // 2, (side + 2 * (taps // 2) - taps) // stride + 1
    x, w = make(images, channels, side, side), make(filters, channels, taps, taps)
    g = make(images, filters, out, out)
    calls = {"forward": lambda: torch.conv2d(x, w, stride=stride, padding=padding)}
    for what, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
        if what == "input" and channels == 3:
            continue  # nobody asks for the gradient of the images
        arguments = (g, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, mask)
        calls[f"gradient of the {what}"] = lambda arguments=arguments: torch.ops.aten.convolution_backward(*arguments)
    return calls, 2 * images * out**2 * channels * filters * taps**2


def measure(device):
    import torch

    peer.BUSY = 0.015  # the calls before have kept the clocks up: all pipelines are there once the first pass is over

    small = device == "cpu" or (device == "mps" and "llvmpipe" in peer.device_name(device))
    images = int(os.environ.get("ANYMPS_BENCHMARK_IMAGES", 1 if small else 64))
    last = os.environ.get("ANYMPS_BENCHMARK_LAYOUT") == "channels_last"
    figures = {}
    for name in os.environ.get("ANYMPS_BENCHMARK_DTYPES", "float32 bfloat16").split():
        dtype = getattr(torch, name)

        def make(*shape, dtype=dtype):
            tensor = torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
            return tensor.contiguous(memory_format=torch.channels_last) if last else tensor

        with torch.no_grad():
            for shape in (*RESNET50, *VGG16):
                for call in layer(make, images, *shape)[0].values():
                    call()
            for shape in (*RESNET50, *VGG16):
                channels, filters, side, taps, stride = shape
                calls, operations = layer(make, images, *shape)
                for what, call in calls.items():
                    seconds = peer.median_seconds(call, device, peer.stream_length(call, device), repeats=3, warmup=0)
                    key = f"{name}: {channels} -> {filters}, {side} px, {taps} x {taps}, stride {stride}: {what}"
                    figures[key] = operations / seconds / 1e12
    return figures


if __name__ == "__main__":
    peer.run(measure, "TFLOP/s", "Convolutions of ResNet50 and VGG16", higher_is_better=True, below=0.5)
