"""What a GPU's compiler says of the kernels that carry networks, without that GPU.

    ANYMPS_DRM_SHIMS=FOLDER python benchmarks/models/network_kernels.py dg2 navi31

Training steps of the zoo, at full size, in fp32 and with AMP, are launched on a driver that runs nothing
(tests/support/gpu_compilers.py). A kernel's weight is its share of a step by what its bytes and operations take on a
slow device, as `ANYMPS_LOG=dispatch` tells, averaged over the steps. What takes 0.01 % or more is compiled again for
its statistics. Those of most weight, and any that spill, go to benchmarks/results/<gpu>/models/network_kernels.json,
with which tests/kernels/test_compilers.py compares later builds. Mesa's shims have 4 GiB of memory: for this, raise
SHIM_MEM_SIZE (to 1,000 GiB) and the sizes of heaps (64) in its source. ANYMPS_NETWORKS="BERT-base,LSTM" chooses
networks of the zoo.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SUPPORT = HERE.parent.parent / "tests" / "support"
sys.path[:0] = [str(HERE.parent), str(HERE), str(SUPPORT)]
import results  # noqa: E402
from gpu_compilers import COMPILERS  # noqa: E402

KERNELS = 60  # of most weight
LEAST = 1e-4  # share of a step below which nobody asks whether a pipeline spills
BEGIN, END = "network: ", "network done: "
DISPATCH = re.compile(r"ANYMPS_LOG dispatch: (\S+), grid .*, (\d+) us on a slow device")


def launch(names: list[str]) -> None:
    """In a process of a null driver: one training step of each network, whose results mean nothing."""
    import torch
    import zoo_step
    from zoo_networks import ZOO

    for network in ZOO:
        if names and network.name not in names:
            continue
        for amp in (False, True):
            try:
                with torch.device("meta"):
                    task = network.builder(False)
                task.model = task.model.to_empty(device="mps")
                task.batch = tuple(torch.empty_like(t, device="mps") for t in task.batch)
                step = zoo_step.make_step(task, "mps", True, amp)
                print(f"{BEGIN}{network.name}, {'AMP' if amp else 'fp32'}", file=sys.stderr, flush=True)
                step()
                torch.mps.synchronize()
                print(END, file=sys.stderr, flush=True)
            except Exception as error:  # of networks that look at values, which nothing has computed
                print(f"{END}{type(error).__name__}: {str(error).split(' (')[0][:200]}", file=sys.stderr, flush=True)
            task = step = None
            torch.mps.empty_cache()
    print(json.dumps(results.device_facts("mps")))


def weights(lines) -> tuple[dict[str, float], list[str], int]:
    """Share of each pipeline in a step, averaged over the steps; what failed; and how many steps ended."""
    steps, failed, name = {}, [], None
    for line in lines:
        found = DISPATCH.match(line)
        if found and name:
            steps[name][found[1]] += int(found[2])
        elif line.startswith(BEGIN):
            name = line.removeprefix(BEGIN).strip()
            steps[name] = collections.Counter()
        elif line.startswith(END):
            error = line.removeprefix(END).strip()
            if error:
                failed.append(f"{name}: {error}")
                steps.pop(name, None)
            name = None
    total = collections.Counter()
    for counts in steps.values():
        for label, microseconds in counts.items():
            total[label] += microseconds / sum(counts.values()) / len(steps)
    return dict(total.most_common()), failed, len(steps)


def child(environment: dict[str, str], *command: str, **how) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | environment | {"ANYMPS_CACHE_DIR": cache}
        return subprocess.run([sys.executable, *command], env=env, text=True, check=True, **how)


def measure(gpu: str, names: list[str]) -> None:
    compiler = COMPILERS[gpu]
    with tempfile.TemporaryFile("w+") as log:
        # A null device's memory need not hold what its card's does.
        limits = {"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.0"}
        environment = compiler.environment(launches=True) | {"ANYMPS_LOG": "dispatch"} | limits
        done = child(environment, __file__, "--launch", *names, stdout=subprocess.PIPE, stderr=log)
        log.seek(0)
        launched, failed, steps = weights(log)
    shares = {label: share for label, share in launched.items() if share >= LEAST}
    facts = json.loads(done.stdout.splitlines()[-1])
    built = child(compiler.environment(), str(SUPPORT / "kernel_builds.py"), *shares, stdout=subprocess.PIPE)
    said = json.loads(built.stdout.splitlines()[-1])
    columns, rows = [*compiler.costs, *compiler.gains], {}
    for number, (name, values) in enumerate(said["statistics"].items()):
        if number < KERNELS or compiler.spilled(values):
            rows[name] = [100 * shares[name], *(values[c] for c in columns)]
    spilling = sum(compiler.spilled(values) > 0 for values in said["statistics"].values())
    carried = sum(list(shares.values())[:KERNELS])
    notes = [
        f"{steps} steps launch {len(launched)} pipelines. {KERNELS} take {carried:.0%} of their time.",
        f"{spilling} of the {len(shares)} that take 0.01 % or more spill.",
    ]
    notes += [f"Not launched: {text}" for text in failed]
    notes += [f"Not built: {name}: {text}" for name, text in said["failed"].items()]
    title = "The compiler's figures of kernels that carry networks"
    record = results.record(facts, None, title, ["share, %", *columns], rows, tuple(notes), clocks=None)
    path = results.FOLDER / gpu / f"{record['benchmark']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results.write(record, path)
    print(f"{gpu}: {len(rows)} kernels; {' '.join(notes)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--launch"]:
        launch(sys.argv[2:])
    else:
        only = os.environ.get("ANYMPS_NETWORKS", "")
        for gpu in sys.argv[1:]:
            measure(gpu, only.split(",") if only else [])
