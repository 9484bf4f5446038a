"""Steps of the zoo, networks of many trades at the sizes that people train (zoo_networks), on one device, in ms.

    zoo.py --device mps --dtype fp32,amp --json mps.json     measures; `--compile [MODE]` with torch.compile
    zoo.py --compare mps.json cuda.json [--eager eager.json] ratios, their geometric mean, the worst five, docs/zoo.png
    zoo.py                                                   mps and its peer (peer.py), tiny on software drivers

A network that fails, or takes longer than `--limit` seconds, is a sentence in the notes of the result file, and the
others go on. The file is written after each figure. `--save` with `--compare` writes benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import peer  # noqa: E402
import results  # noqa: E402
import zoo_step  # noqa: E402
from chart import draw_bars  # noqa: E402

COLUMNS = ["step, ms", "first step, s", "first loss"]
CHART = HERE.parent.parent / "docs" / "zoo.png"
START = 120.0  # seconds in which a process has to have found its device


class Worker:
    """A process of `command`, which ends in zoo_step.serve(), and what it says."""

    def __init__(self, command: list[str], options: dict, environment: dict | None = None) -> None:
        command = [sys.executable, *command, json.dumps(options)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self.lines: queue.Queue[dict | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            if line.startswith(zoo_step.MARK):
                self.lines.put(json.loads(line.removeprefix(zoo_step.MARK)))
        self.lines.put(None)

    def next(self, seconds: float) -> dict | None:
        """What it says next; None when it has ended. Raises queue.Empty when it says nothing for `seconds`."""
        return self.lines.get(timeout=seconds)

    def end(self) -> int:
        self.process.kill()
        return self.process.wait()


def measure(arguments, path: pathlib.Path) -> None:
    """Measures all networks on a device and writes the record."""
    options = {
        "device": arguments.device,
        "networks": arguments.networks.split(",") if arguments.networks else [],
        "modes": arguments.mode.split(","),
        "dtypes": arguments.dtype.split(","),
        "compile": arguments.compile,
        "tiny": arguments.tiny,
        "seconds": arguments.seconds_per,
        "done": [],
    }
    collect([str(HERE / "zoo_step.py")], options, arguments.limit, lambda facts: begin(facts, arguments), COLUMNS, path)


def collect(command: list[str], options: dict, limit: float, begin, columns: list[str], path: pathlib.Path) -> dict:
    """Rows that a Worker measures, which is replaced after errors; returns and writes the record.

    `begin(facts)` returns an empty record. A row takes `limit` seconds at most.
    """
    result, going, start = None, True, time.perf_counter()
    while going:
        worker, key, going = Worker(command, options), None, False
        try:
            while True:
                said = worker.next(limit if key else START)
                if said is None:
                    error = f"the process ended with {worker.process.wait()}"
                    break
                if "end" in said:
                    error = said["end"]
                    break
                if "facts" in said:
                    result = result or begin(said["facts"])
                elif "begin" in said:
                    key = said["begin"]
                else:
                    error = said.get("error")
                    if error:
                        break
                    note(result, key, said["figures"], None, path)
                    options["done"].append(key)
                    key = None
        except queue.Empty:
            error = f"took more than {limit:g} s" if key else f"did not begin within {START:g} s"
        finally:
            worker.end()
        if error and key is None:  # what was measured is in the file
            sys.exit(f"{options['device']}: {error}")
        if error:
            note(result, key, [None] * len(columns), error, path)
            options["done"].append(key)
            going = True
    result["clocks"] = results.clocks()
    results.write(result, path)
    print(f"{len(result['rows'])} rows in {time.perf_counter() - start:.0f} s")
    return result


def begin(facts: dict, arguments) -> dict:
    how = f", compiled ({arguments.compile})" if arguments.compile else ""
    size = ", tiny" if arguments.tiny else ""
    print(
        f"{facts['name']}, PyTorch {facts['torch']}{size}{how}\n| network | {' | '.join(COLUMNS)} |\n|---|---|---|---|"
    )
    return results.record(facts, None, f"Steps of the zoo{size}{how}", COLUMNS, {})


def note(result: dict, key: str, figures: list, error: str | None, path: pathlib.Path) -> None:
    """Adds a row to the record, writes the file, and prints the row."""
    result["rows"][key] = [f and float(f"{f:.5g}") for f in figures]
    if error:
        result["notes"].append(f"{key}: {error}")
    cells = error.splitlines()[0] if error else " | ".join("-" if f is None else f"{f:.4g}" for f in figures)
    results.write(result, path)
    print(f"| {spoken(key)} | {cells} |", flush=True)


def spoken(key: str) -> str:
    return key.replace(" |", ",")


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def losses_agree(loss: float, wanted: float, relative: float = 0.02, absolute: float = 1e-3) -> bool:
    """Whether first losses of two runs are as close as two orders of additions leave them; NaN agrees with nothing."""
    return abs(loss - wanted) <= relative * abs(wanted) + absolute


def compare(ours: dict, theirs: dict, eager: dict | None, chart: pathlib.Path) -> tuple[list[str], dict[str, list]]:
    """Prints ratios (more than 1: ours is faster) and draws them; returns columns and rows of a result file."""
    names = ["mps", "cuda" if "CUDA" in theirs["device"]["name"] else "cpu"]
    columns = [f"{n}, ms" for n in names] + [f"{names[0]} / {names[1]}"]
    columns += ["eager mps, ms", "mps / eager mps"] if eager else []
    print(f"{ours['device']['name']} ({ours['title']}) and {theirs['device']['name']} ({theirs['title']})")
    print(f"| network | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    rows, apart = {}, []
    for key, (mine, _, loss) in ours["rows"].items():
        other, _, wanted = theirs["rows"].get(key, [None] * 3)
        rows[key] = [mine, other, other / mine if mine and other else None]
        if eager:
            before = eager["rows"].get(key, [None])[0]
            rows[key] += [before, before / mine if mine and before else None]
        cells = ("-" if f is None else f"{f:.4g}" if n in (0, 1, 3) else f"{f:.2f}" for n, f in enumerate(rows[key]))
        print(f"| {spoken(key)} | {' | '.join(cells)} |")
        if mine and other and not losses_agree(loss, wanted):
            apart.append(f"{spoken(key)}: first loss {loss:.5g}, not {wanted:.5g}")
    for column in (2, 4) if eager else (2,):
        summary({k: r[column] for k, r in rows.items() if r[column]}, columns[column])
    print(*apart, sep="\n")
    notes = [f"- {side}: {text}" for side, file in zip(names, (ours, theirs)) for text in file["notes"]]
    print(*notes, sep="\n")
    draw(rows, columns[2], chart)
    return columns, rows


def summary(ratios: dict[str, float], name: str) -> None:
    """Geometric means of all, by mode and precision, and by trade; the worst five."""
    if not ratios:
        print(f"{name}: nothing was measured on both")
        return
    groups: dict[str, list[float]] = {"all": list(ratios.values())}
    for key, ratio in ratios.items():
        trade, _, mode, dtype = key.split(" | ")
        for group in (f"{mode}, {dtype}", trade):
            groups.setdefault(group, []).append(ratio)
    means = (f"{group} {geometric_mean(values):.2f} of {len(values)}" for group, values in groups.items())
    print(f"\n{name}, geometric mean: {'; '.join(means)}")
    worst = sorted(ratios.items(), key=lambda item: item[1])[:5]
    print(f"{name}, worst: {'; '.join(f'{spoken(key)} {ratio:.2f}' for key, ratio in worst)}")


def draw(rows: dict[str, list], label: str, path: pathlib.Path) -> None:
    parts = [(key.split(" | "), figures[2] or 0) for key, figures in rows.items()]
    names = list(dict.fromkeys(f"{p[1]}, {p[0]}" for p, _ in parts))
    series: dict[str, list[float]] = {}
    for p, ratio in parts:
        series.setdefault(f"{p[2]}, {p[3]}", [0] * len(names))[names.index(f"{p[1]}, {p[0]}")] = ratio
    try:
        draw_bars(names, series, f"speed, {label}", "{:.2f}", path, even=1.0)
    except ImportError as error:
        print(f"no chart: {error}")


def at_hand(arguments) -> None:
    """Measures mps and its peer and compares them; a software driver gets tiny networks, and the CPU as its peer."""
    command = [sys.executable, "-c", "import torch; print(torch.ops.anymps.device_info())"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    software = json.loads(found.stdout.strip().splitlines()[-1])["kind"] == "software"
    python, folder = os.environ.get("ANYMPS_PEER_PYTHON"), pathlib.Path(arguments.json or "build/zoo")
    devices = {"mps": (sys.executable, os.environ)}
    if python and not software:
        devices["cuda"] = (python, peer.peer_environment(python))
    elif software:
        devices["cpu"] = (sys.executable, os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{device}.json" for device in devices]
    given = ["--mode", arguments.mode, "--dtype", arguments.dtype, "--seconds-per", str(arguments.seconds_per)]
    given += ["--networks", arguments.networks] if arguments.networks else []
    given += ["--tiny"] if software or arguments.tiny else []
    for (device, (python, environment)), file in zip(devices.items(), files):
        command = [python, __file__, "--device", device, "--json", str(file), *given]
        subprocess.run(command, env=environment, check=True)
    if len(files) == 2:
        chart = folder / "zoo.png" if software else CHART  # a software driver's figures are no picture of a GPU
        compare(*(json.loads(file.read_text()) for file in files), None, chart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("mps", "cuda", "cpu"), help="measure this device")
    parser.add_argument("--mode", default="train", help="train, infer, or train,infer")
    parser.add_argument("--dtype", default="fp32,amp", help="fp32, amp (bf16 autocast), or fp32,amp")
    parser.add_argument("--compile", nargs="?", const="default", metavar="MODE", help="with torch.compile")
    parser.add_argument("--networks", metavar="A,B", help="names of zoo_networks; all by default")
    parser.add_argument("--seconds-per", type=float, default=0.8, metavar="N", help="of measuring a network")
    parser.add_argument(
        "--limit", type=float, default=60.0, metavar="N", help="seconds of a network, compiling included"
    )
    parser.add_argument("--tiny", action="store_true", help="small batches and widths, for software drivers")
    parser.add_argument("--json", metavar="OUT", help="the result file (without --device: the folder of both)")
    parser.add_argument("--compare", nargs=2, metavar=("MPS", "PEER"), help="result files")
    parser.add_argument("--eager", metavar="MPS", help="with --compare: the result file of mps without torch.compile")
    parser.add_argument("--chart", default=CHART, metavar="PNG", help="with --compare: where the picture goes")
    parser.add_argument("--save", action="store_true", help="with --compare: write benchmarks/results")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the worker ends with its parent; the file is written
    if arguments.compare:
        names = [*arguments.compare, *([arguments.eager] if arguments.eager else [])]
        ours, theirs, *eager = (json.loads(pathlib.Path(name).read_text()) for name in names)
        columns, rows = compare(ours, theirs, eager[0] if eager else None, pathlib.Path(arguments.chart))
        if arguments.save:
            benchmark = "models/zoo_compiled" if "compiled" in ours["title"] else "models/zoo"
            where = results.origin(ours) | {"benchmark": benchmark}
            notes = tuple(f"{f['device']['name']}: {n}" for f in (ours, theirs) for n in f["notes"])
            results.save(ours["device"], theirs["device"], ours["title"], columns, rows, notes, **where)
    elif arguments.device:
        if not arguments.json:
            parser.error("--device needs --json OUT")
        measure(arguments, pathlib.Path(arguments.json))
    else:
        at_hand(arguments)


if __name__ == "__main__":
    main()
