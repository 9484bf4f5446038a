"""Seconds until compiled code has run for the first time: in a process with empty caches, and in the one after it.

A small function, and a training step of a network under bf16 autocast: ANYMPS_BENCHMARK_NETWORKS="BERT-base,GPT 124M"
chooses, ANYMPS_COLD_SMALL=1 takes small networks of the same structure (software drivers). Eager kernels have run
before, so that what counts is the compiler. CPU seconds are of all threads: on a busy machine they say more.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "models")]
import peer  # noqa: E402

SMALL_FUNCTION = "small function"


def network(name):
    if os.environ.get("ANYMPS_COLD_SMALL") == "1":
        from traffic import SMALL

        return SMALL[name]
    from networks import NETWORKS

    return NETWORKS[name]


def first_run(name, device):
    """Wall and CPU seconds of the first compiled run in this process, after an eager one."""
    import torch

    if name == SMALL_FUNCTION:
        x = torch.randn(64, 64, device=device)

        def function(x):
            return torch.sin(x) * 2 + 1

        def run(function):
            return function(x).sum().item()

        run(function)
    else:
        function, loss_of = network(name)(device)
        function.to(device).train()

        def run(module):
            with torch.autocast(device, torch.bfloat16):
                loss = loss_of(module)
            loss.backward()

        run(function)
    peer.synchronize(device)
    start, cpu = time.perf_counter(), time.process_time()
    run(torch.compile(function))
    peer.synchronize(device)
    return time.perf_counter() - start, time.process_time() - cpu


def measure(device):
    """Each figure is of a process of its own."""
    wanted = os.environ.get("ANYMPS_BENCHMARK_NETWORKS", "BERT-base").split(",")
    figures = {}
    for name in [SMALL_FUNCTION, *wanted]:
        with tempfile.TemporaryDirectory() as folder:
            caches = {"ANYMPS_CACHE_DIR": f"{folder}/ours", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            caches["TRITON_CACHE_DIR"] = f"{folder}/triton"
            for process in ("empty caches", "second process"):
                command = [sys.executable, __file__, "--first-run", name, device]
                result = subprocess.run(
                    command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True
                )
                wall, cpu = json.loads(result.stdout.strip().splitlines()[-1])
                figures[f"{name}, {process}"] = wall
                figures[f"{name}, {process}, CPU"] = cpu
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["--first-run"]:
        print(json.dumps(first_run(*sys.argv[2:4])))
    else:
        peer.run(measure, "s", "First compilations")
