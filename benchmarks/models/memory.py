"""Peak memory of training steps of the chart's networks, in GiB: in tensors, and taken from the driver."""

import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import peer  # noqa: E402
from networks import training_step  # noqa: E402

STEPS = 4


def measure(device: str) -> dict[str, float]:
    import torch

    figures = {}
    for name in os.environ.get("ANYMPS_MEMORY_NETWORKS", "ResNet50").split(","):
        for amp in (False, True):
            torch.accelerator.empty_cache()
            torch.accelerator.reset_peak_memory_stats()
            step = training_step(name, device, amp)
            for _ in range(STEPS):
                step()
            torch.accelerator.synchronize()
            key = f"{name}, {'AMP bf16' if amp else 'fp32'}"
            figures[key + ", tensors"] = torch.accelerator.max_memory_allocated() / 2**30
            figures[key + ", reserved"] = torch.accelerator.max_memory_reserved() / 2**30
            del step
    return figures


if __name__ == "__main__":
    peer.run(measure, "GiB", "Peak memory of training")
