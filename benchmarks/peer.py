"""Runs one benchmark on the mps device and, in the same run, on a named peer, and prints the ratios.

A benchmark is a function `measure(device) -> dict[str, float]` of figures in one unit. The peer is another device of
this Python ("cpu"), or a device of another Python that has its own PyTorch (ANYMPS_PEER_PYTHON=python3 gives "cuda").
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

import results


def synchronize(device):
    import torch

    if device != "cpu":
        getattr(torch, device).synchronize()


# Seconds that a GPU works before it is timed: idle ones have slow clocks, and on an H200 new pipelines may run at a
# third of their speed for the first 0.2 s, where several were compiled at once.
BUSY = 0.5


def median_seconds(call, device, inner=1, repeats=7, warmup=2, busy=BUSY):
    """Median seconds of one call(): `inner` between two synchronizations, `repeats` times, after `busy` seconds."""
    for _ in range(warmup):
        call()
    synchronize(device)
    begin = time.perf_counter()
    while device != "cpu" and time.perf_counter() - begin < busy:
        for _ in range(inner):
            call()
        synchronize(device)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        synchronize(device)
        times.append((time.perf_counter() - start) / inner)
    return statistics.median(times)


def stream_length(call, device, seconds=0.02):
    """How many calls take `seconds`: a stream so long that the wait for the device at its end counts for nothing.

    Networks do not wait between their layers, and a wait is 50 us on mps and 10 us on CUDA.
    """
    call()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(3):
        call()
    synchronize(device)
    return max(1, min(1000, int(3 * seconds / (time.perf_counter() - start))))


def host_seconds(call, device, inner=200, repeats=15):
    """Median host seconds that one call() takes while the device is kept behind: no synchronization inside."""
    for _ in range(20):
        call()
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(inner):
            call()
        times.append((time.perf_counter() - start) / inner)
    synchronize(device)
    return statistics.median(times)


class Filler:
    """Keeps a device at work for a while, by copies of half a GiB (or of as many bytes as are given)."""

    def __init__(self, device, size=1 << 29):
        import torch

        self.device, self.source = device, torch.zeros(size, dtype=torch.uint8, device=device)
        self.target, self.seconds = torch.empty_like(self.source), 1.0
        median_seconds(lambda: self(1.0), device, inner=10)
        self.seconds = median_seconds(lambda: self(1.0), device, inner=10, busy=0.0)

    def __call__(self, seconds):
        for _ in range(math.ceil(seconds / self.seconds)):
            self.target.copy_(self.source)


def device_seconds(call, filler, whole, inner=1, repeats=5):
    """Median seconds of one call() by the device's clock, and whether the host had recorded all calls before the first.

    The time is from one event to another with `inner` calls between them, so what is between two kernels counts, and
    what the host does for them does not: the device has `filler` to do until the host has recorded both events.
    `whole` is what a call takes with its host: see median_seconds.
    """
    import torch

    def sample(wait):
        start, end = (getattr(torch, filler.device).Event(enable_timing=True) for _ in range(2))
        filler(wait)
        start.record()
        for _ in range(inner):
            call()
        end.record()
        ahead = not start.query()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / inner, ahead

    wait = 1.25 * inner * whole + 1e-4
    for _ in range(4):
        times = [sample(wait) for _ in range(repeats)]
        good = [t for t, ahead in times if ahead]
        if 2 * len(good) > repeats:
            return statistics.median(good), True
        wait, inner = 2 * wait, max(1, inner // 2)  # drivers keep a limited number of launches
    return statistics.median(t for t, _ in times), False


def device_name(device):
    import torch

    if device == "mps":
        return torch.mps.get_name() if hasattr(torch.mps, "get_name") else torch._C._mps_get_name()
    if device == "cuda":
        return f"{torch.cuda.get_device_name()} (CUDA, torch {torch.__version__})"
    return f"CPU, {torch.get_num_threads()} threads"


def run(measure, unit, title, higher_is_better=False, below=None, table=None):
    """Command line of a benchmark: measures mps and the peer by turns in one run and prints figures and ratios.

    With `below`, the figures whose ratio is less than it are listed once more at the end. `table(ours, theirs, peer)`
    prints figures that are more than numbers and returns columns and rows of a result file. `--save` writes that file:
    see results.py.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--device", help="measure this device alone and print JSON")
    parser.add_argument("--peer", help="cpu or cuda; default: cuda when ANYMPS_PEER_PYTHON is set, else cpu")
    parser.add_argument("--only", help="measure what this regular expression finds (benchmarks that name it)")
    parser.add_argument("--save", action="store_true", help="write the figures into benchmarks/results")
    arguments = parser.parse_args()
    if arguments.only and arguments.save:
        parser.error("a result file has all figures: --save does not go with --only")
    if arguments.only:
        os.environ["ANYMPS_BENCHMARK_ONLY"] = arguments.only  # for the children
    if arguments.device:
        facts, figures = results.device_facts(arguments.device), measure(arguments.device)
        print(json.dumps({"name": device_name(arguments.device), "facts": facts, "figures": figures}))
        return
    python = os.environ.get("ANYMPS_PEER_PYTHON")
    peer = arguments.peer or ("cuda" if python else "cpu")
    ours = child(sys.executable, "mps", os.environ)
    theirs = child(python or sys.executable, peer, peer_environment(python))
    print(f"{title}: {ours['name']} against {theirs['name']}")
    if table:
        columns, rows = table(ours, theirs, peer)
    else:
        columns, rows = _table(ours["figures"], theirs["figures"], unit, peer, higher_is_better, below)
    if arguments.save:
        results.save(ours["facts"], theirs["facts"], title, columns, rows)


def _table(ours, theirs, unit, peer, higher_is_better, below):
    """Prints figures and ratios, and returns columns and rows of a result file."""
    print(f"| what | mps, {unit} | {peer}, {unit} | speed of mps / {peer} |\n|---|---|---|---|")
    rows, slow = {}, {}
    for key, value in ours.items():
        other = theirs.get(key)
        if other is None:
            print(f"| {key} | {value:.4g} | - | - |")
            rows[key] = [value, None, None]
            continue
        ratio = value / other if higher_is_better else other / value
        print(f"| {key} | {value:.4g} | {other:.4g} | {ratio:.2f} |")
        rows[key] = [value, other, ratio]
        if below and ratio < below:
            slow[key] = ratio
    if below:
        print(f"\nBelow {below}: {len(slow)} of {len(ours)}")
        for key, ratio in sorted(slow.items(), key=lambda item: item[1]):
            print(f"- {key}: {ratio:.2f}")
    return [f"mps, {unit}", f"{peer}, {unit}", f"mps / {peer}"], rows


def launcher(ranks: int) -> list[str]:
    """Arguments of Python, before a script's, that run it in so many processes of one group."""
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def peer_environment(python):
    """The peer's own Python must not see the libraries and packages that ours was pointed at."""
    if not python:
        return os.environ
    hidden = ("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH")
    return {k: v for k, v in os.environ.items() if k not in hidden}


def child(python, device, environment):
    command = [python, os.path.abspath(sys.argv[0]), "--device", device]
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.strip().splitlines()[-1])
