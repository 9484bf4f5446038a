"""Seconds of the first step of training, each network in a process of its own, with nothing compiled before.

Then every kernel is compiled (CUDA loads its own): what later steps take is chart.py's. --only REGEX measures the
networks whose name it finds. Sizes are those of the chart, so a GPU is needed.

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
            nowhere = {"ANYMPS_CACHE_DIR": empty, "MESA_SHADER_CACHE_DISABLE": "true", "__GL_SHADER_DISK_CACHE": "0"}
            command = [sys.executable, os.path.abspath(__file__), "--first", name, precision, device]
            result = subprocess.run(command, env=os.environ | nowhere, stdout=subprocess.PIPE, text=True, check=True)
        figures[key] = float(result.stdout.split()[-1])
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["--first"]:
        print(seconds(*sys.argv[2:]))
    else:
        peer.run(measure, "s", "First step of training, nothing compiled before")
