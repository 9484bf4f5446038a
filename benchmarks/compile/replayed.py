"""Replayed steps of short networks (mode="reduce-overhead"), on mps and on CUDA by PyTorch's own graphs. In ms.

Forward, loss and backward in float32 of the five networks that the Meganeura paper measures, and one token of GPT-2's
decoding in bfloat16: replayed_networks.py. "fp32" is without TF32 on both, "tf32" with it, or with what stands for it.

    ANYMPS_PEER_PYTHON=python3 replayed.py --json FOLDER [--dtype fp32,tf32] [--networks A,B] [--save]

measures both and compares; `--device mps --json OUT` one, `--compare MPS CUDA` compares two files. As over_eager.py, it
compiles in several processes first.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "models"), str(HERE)]
import ahead  # noqa: E402
import peer  # noqa: E402
import results  # noqa: E402
import zoo  # noqa: E402
import zoo_step  # noqa: E402

COLUMNS = ["replayed, ms", "eager, ms", "first step, s", "replayed loss", "eager loss"]
TITLE = "Replayed steps"


def variants(network, options: dict) -> list[tuple[str, str]]:
    """The token of a decoder is inferred in bfloat16; the others are trained."""
    if network.trade == "decoding":
        return [("infer", "bf16")]
    return [("backward", dtype) for dtype in options["dtypes"]]


def backward_step(task, compile_mode: str | None):
    """A function that runs forward, loss and backward of a Task, without an optimizer, and returns the loss."""
    import torch

    parameters = list(task.model.parameters())

    def loss_of(*batch):
        return task.loss(task.model, *batch)

    called = torch.compile(loss_of, mode=compile_mode) if compile_mode else loss_of

    def step():
        for parameter in parameters:
            parameter.grad = None
        loss = called(*task.batch)
        loss.backward()
        return loss.detach()

    return step


def work(options: dict) -> None:
    """The process that measures, or compiles."""
    import torch
    from replayed_networks import NETWORKS

    device, seconds = options["device"], options["seconds"]

    def step_of(task, mode: str, dtype: str, compile_mode: str | None):
        torch._dynamo.reset()
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        if mode == "backward":
            return backward_step(task, compile_mode)
        return zoo_step.make_step(task, device, False, False, compile_mode)

    def measured(task, mode: str, dtype: str) -> list[float]:
        if options["ahead"]:
            for compile_mode in ("reduce-overhead", None):  # eager pipelines, too, are then in the driver's cache
                step_of(task, mode, dtype, compile_mode)().float().item()
            return []
        replayed, first, loss = zoo_step.figures(step_of(task, mode, dtype, "reduce-overhead"), device, seconds)
        eager, _, wanted = zoo_step.figures(step_of(task, mode, dtype, None), device, seconds)
        return [replayed, eager, first, loss, wanted]

    zoo_step.serve(options, NETWORKS, lambda network: variants(network, options), measured)


def compare(ours: dict, theirs: dict) -> tuple[list[str], dict[str, list]]:
    """Prints ratios (more than 1: ours is faster); returns columns and rows of a result file."""
    columns = ["mps, ms", "cuda, ms", "mps / cuda", "eager mps, ms", "eager cuda, ms"]
    print(f"{ours['device']['name']} ({ours['title']}) and {theirs['device']['name']} ({theirs['title']})")
    print(f"| network | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    rows = {}
    for key, (mine, eager, *_) in ours["rows"].items():
        other, their_eager, *_ = theirs["rows"].get(key, [None] * len(COLUMNS))
        rows[key] = [mine, other, other / mine if mine and other else None, eager, their_eager]
        cells = ("-" if f is None else f"{f:.2f}" if n == 2 else f"{f:.4g}" for n, f in enumerate(rows[key]))
        print(f"| {zoo.spoken(key)} | {' | '.join(cells)} |")
    for side in (ours, theirs):
        for key, (*_, loss, wanted) in side["rows"].items():
            if loss is not None and not zoo.losses_agree(loss, wanted, 0.002, 1e-4):
                print(f"{side['device']['name']}, {zoo.spoken(key)}: first loss {loss:.5g}, eager {wanted:.5g}")
        print(*(f"- {side['device']['name']}: {note}" for note in side["notes"]), sep="\n")
    return columns, rows


def both(arguments) -> list[pathlib.Path]:
    """Measures mps, and CUDA where another Python is named; returns the files of those that were measured."""
    folder, python = pathlib.Path(arguments.json), os.environ.get("ANYMPS_PEER_PYTHON")
    folder.mkdir(parents=True, exist_ok=True)
    devices = {"mps": (sys.executable, os.environ)}
    if python:
        devices["cuda"] = (python, peer.peer_environment(python))
    given = ["--dtype", arguments.dtype, "--seconds-per", str(arguments.seconds_per), "--ahead", str(arguments.ahead)]
    given += ["--limit", str(arguments.limit), "--ahead-seconds", str(arguments.ahead_seconds)]
    given += ["--networks", arguments.networks] if arguments.networks else []
    given += ["--tiny"] if arguments.tiny else []
    for device, (python, environment) in devices.items():
        command = [python, __file__, "--device", device, "--json", str(folder / f"{device}.json"), *given]
        subprocess.run(command, env=environment, check=False)  # of one that fails the other is worth having
    return [file for device in devices if (file := folder / f"{device}.json").exists()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("mps", "cuda", "cpu"), help="measure this device")
    parser.add_argument("--networks", metavar="A,B", help="names of replayed_networks; all by default")
    parser.add_argument("--dtype", default="fp32", help="fp32, tf32, or fp32,tf32")
    parser.add_argument("--seconds-per", type=float, default=1.0, metavar="N", help="of measuring a row")
    parser.add_argument("--limit", type=float, default=90.0, metavar="N", help="seconds of a row, compiling included")
    parser.add_argument("--ahead", type=int, default=min(6, os.cpu_count() or 1), help="processes that compile")
    parser.add_argument("--ahead-seconds", type=float, default=150.0, metavar="N", help="after which these end")
    parser.add_argument("--tiny", action="store_true", help="small batches and widths, for software drivers")
    parser.add_argument("--json", default="build/replayed", metavar="OUT", help="result file, or the folder of both")
    parser.add_argument("--compare", nargs=2, metavar=("MPS", "CUDA"), help="result files")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results where both were measured")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the worker ends with its parent; the file is written
    if arguments.device:
        from replayed_networks import NETWORKS

        ahead.measure(HERE / "replayed.py", arguments, NETWORKS, lambda *_: [""], TITLE, COLUMNS)
        return
    files = [pathlib.Path(name) for name in arguments.compare] if arguments.compare else both(arguments)
    if len(files) < 2:
        return
    ours, theirs = (json.loads(file.read_text()) for file in files)
    columns, rows = compare(ours, theirs)
    if arguments.save:
        notes = tuple(f"{f['device']['name']}: {n}" for f in (ours, theirs) for n in f["notes"])
        results.save(ours["device"], theirs["device"], ours["title"], columns, rows, notes, **results.origin(ours))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(json.loads(sys.argv[2]))
    else:
        main()
