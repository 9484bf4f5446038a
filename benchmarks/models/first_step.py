"""Seconds of the first step of training, each network in processes of its own.

In the first one nothing was compiled before, so every kernel is (CUDA loads its own); "second process" finds what the
first left in the caches of the package and of the driver. What later steps take is chart.py's. --only REGEX measures
the networks whose name it finds. Sizes are those of the chart, so a GPU is needed. ANYMPS_LOG=slow tells what the host
waited for.

    ANYMPS_PEER_PYTHON=python3 python benchmarks/models/first_step.py --only "BERT|ResNet50, fp32"
"""

import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from time import perf_counter

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import peer  # noqa: E402


def seconds(name, precision, device):
    """In this process: of one step, with the wait for its loss."""
    from networks import training_step

    step = training_step(name, device, precision == "AMP")
    peer.synchronize(device)
    begin = perf_counter()
    step().item()
    peer.synchronize(device)
    return perf_counter() - begin


def measure(device):
    from networks import NETWORKS

    only = re.compile(os.environ.get("ANYMPS_BENCHMARK_ONLY", ""))
    figures = {}
    for name, precision in itertools.product(NETWORKS, ("fp32", "AMP")):
        key = f"{name}, {precision}"
        if not only.search(key):
            continue
        with tempfile.TemporaryDirectory() as empty:
            caches = ("ANYMPS_CACHE_DIR", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH", "CUDA_CACHE_PATH")
            environment = os.environ | dict.fromkeys(caches, empty)
            command = [sys.executable, os.path.abspath(__file__), "--first", name, precision, device]
            for process in ("", ", second process"):
                result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                figures[key + process] = float(result.stdout.split()[-1])
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["--first"]:
        print(seconds(*sys.argv[2:]))
    else:
        peer.run(measure, "s", "First step of training, nothing compiled before")
