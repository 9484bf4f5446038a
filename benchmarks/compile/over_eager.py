"""Networks of the zoo compiled, over our own eager mode: training, and inference with replay. In ms.

    over_eager.py --device mps --json out.json [--networks A,B] [--modes train,infer] [--dtype amp,fp32] [--save]

Training steps are in the default mode, inference (eval, no gradients) is in mode="reduce-overhead". First, processes
compile the networks in parallel (`--ahead`; 0: none) and leave them in the caches; then one process measures, alone on
the machine, so that "first step" is that of a process that finds its graphs compiled. A row is printed, and the file is
written, as soon as it is measured; geometric means and what is slower than eager come at the end, or when the run is
stopped. `--summary FILE FILE` prints these of runs that were divided.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import signal
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "models"), str(HERE)]
import ahead  # noqa: E402
import results  # noqa: E402
import zoo  # noqa: E402
import zoo_step  # noqa: E402

COLUMNS = ["eager, ms", "compiled, ms", "compiled / eager", "first step, s", "eager loss", "compiled loss"]
MODES = {"train": "default", "infer": "reduce-overhead"}
# Their training takes gradients of gradients, which torch.compile refuses on all devices.
TRAINED_EAGER = ("WGAN-GP", "PINN")


def variants(network, options: dict) -> list[tuple[str, str]]:
    modes = [mode for mode in options["modes"] if mode == "infer" or network.name not in TRAINED_EAGER]
    return list(itertools.product(modes, options["dtypes"]))


def work(options: dict) -> None:
    """The process that measures, or compiles."""
    import torch
    from zoo_networks import ZOO

    device, seconds = options["device"], options["seconds"]

    def step_of(task, mode: str, dtype: str, compile_mode: str | None):
        torch._dynamo.reset()
        torch.manual_seed(0)
        return zoo_step.make_step(task, device, mode == "train", dtype == "amp", compile_mode)

    def measured(task, mode: str, dtype: str) -> list[float]:
        if options["ahead"]:
            for compile_mode in (MODES[mode], None):  # eager pipelines, too, are then in the driver's cache
                step_of(task, mode, dtype, compile_mode)().float().item()
            return []
        step = step_of(zoo_step.moved(task, device), mode, dtype, None)
        eager, _, eager_loss = zoo_step.figures(step, device, seconds)
        del step
        zoo_step.empty_cache(device)
        step = step_of(zoo_step.moved(task, device), mode, dtype, MODES[mode])
        compiled, first, loss = zoo_step.figures(step, device, seconds)
        return [eager, compiled, eager / compiled, first, eager_loss, loss]

    zoo_step.serve(options, ZOO, lambda network: variants(network, options), measured)


def summary(rows: dict[str, list]) -> None:
    """Prints geometric means by mode and precision, what is slower than eager, and losses that are apart."""
    groups: dict[str, dict[str, float]] = {}
    for key, figures in rows.items():
        if figures[2] is not None:
            _, name, *kind = key.split(" | ")
            groups.setdefault(", ".join(kind), {})[name] = figures[2]
    for kind, ratios in groups.items():
        low = sorted((name for name in ratios if ratios[name] < 1.0), key=ratios.get)
        below = "; ".join(f"{name} {ratios[name]:.2f}" for name in low) or "none"
        mean = zoo.geometric_mean(list(ratios.values()))
        print(f"{kind}: compiled / eager {mean:.3f}, geometric mean of {len(ratios)}; below 1.0: {below}")
    for key, figures in rows.items():
        wanted, loss = figures[4:]
        if loss is not None and not zoo.losses_agree(loss, wanted):
            print(f"{zoo.spoken(key)}: first loss {loss:.5g}, eager {wanted:.5g}")


def measure(arguments) -> None:
    from zoo_networks import ZOO

    def modes_of(network, options: dict) -> list[str]:
        return list(dict.fromkeys(mode for mode, _ in variants(network, options)))

    title, modes = "Compiled networks over eager ones", arguments.modes.split(",")
    try:
        ahead.measure(HERE / "over_eager.py", arguments, ZOO, modes_of, title, COLUMNS, modes=modes)
    finally:
        path = pathlib.Path(arguments.json)
        if path.exists():
            conclude([path], arguments.save)


def conclude(paths: list[pathlib.Path], save: bool) -> None:
    """Prints the summary of the rows of all files, and saves them as one result file, with the facts of the first."""
    first, *others = (json.loads(path.read_text()) for path in paths)
    for other in others:
        first["rows"] |= other["rows"]
        first["notes"] += other["notes"]
    summary(first["rows"])
    if save:
        where = results.origin(first) | {"benchmark": "compile/over_eager"}
        results.save(first["device"], None, first["title"], COLUMNS, first["rows"], tuple(first["notes"]), **where)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="mps", choices=("mps", "cuda", "cpu"))
    parser.add_argument("--networks", metavar="A,B", help="names of zoo_networks; all by default")
    parser.add_argument("--modes", default="train,infer", help="train, infer, or train,infer")
    parser.add_argument("--dtype", default="amp", help="fp32, amp (bf16 autocast), or fp32,amp")
    parser.add_argument("--seconds-per", type=float, default=0.8, metavar="N", help="of measuring a row")
    parser.add_argument("--limit", type=float, default=90.0, metavar="N", help="seconds of a row, compiling included")
    parser.add_argument("--ahead", type=int, default=max(1, (os.cpu_count() or 1) - 4), help="processes that compile")
    parser.add_argument("--ahead-seconds", type=float, default=240.0, metavar="N", help="after which these end")
    parser.add_argument("--tiny", action="store_true", help="small batches and widths, for software drivers")
    parser.add_argument("--json", metavar="OUT", help="the result file")
    parser.add_argument("--summary", nargs="+", metavar="FILE", help="measure nothing; several files are one result")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results, too")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the file is written, and its summary printed
    if arguments.summary:
        conclude([pathlib.Path(name) for name in arguments.summary], arguments.save)
    elif arguments.json:
        measure(arguments)
    else:
        parser.error("--json OUT is needed")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(json.loads(sys.argv[2]))
    else:
        main()
