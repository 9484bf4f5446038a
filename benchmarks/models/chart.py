"""Training and evaluation of whole networks on mps, on the CPU and, where there is one, on the peer's CUDA, by turns.

Prints a table of medians (ms a step) with the distance of their quartiles and ratios, writes it into
benchmarks/results with `--save`, and draws the speed-up over the CPU.
ANYMPS_PEER_PYTHON names a Python with a CUDA build of PyTorch; ANYMPS_CHART_NETWORKS ("ResNet50,BERT-base") chooses
networks, ANYMPS_CHART_ROUNDS how often the devices take turns (2), ANYMPS_CHART_FILE where the picture goes.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import peer  # noqa: E402
import results  # noqa: E402

SECONDS = 2.0  # of measuring a figure
COLUMNS = ["mps, ms", "cuda, ms", "cpu fp32, ms", "mps / cuda", "mps / cpu"]
CHART = HERE.parent.parent / "docs" / "chart.png"


def step_times(device: str, model, loss_of, train: bool, amp: bool) -> list[float]:
    """Seconds of single steps after two to warm up: at least two steps, at most what fits into SECONDS."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    model.train(train)

    def step():
        with torch.set_grad_enabled(train), torch.autocast(device, torch.bfloat16, enabled=amp):
            loss = loss_of(model)
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        peer.synchronize(device)

    times, begin = [], None
    for i in range(52):
        start = time.perf_counter()
        step()
        if i >= 2 or (device == "cpu" and i >= 1):
            times.append(time.perf_counter() - start)
        begin = begin or time.perf_counter()
        if len(times) >= 2 and time.perf_counter() - begin > SECONDS:
            break
    return times


def measure(device: str) -> dict[str, list[float]]:
    """Step times by "network, mode, precision"; the CPU in fp32 only, as the chart's base."""
    import torch
    from networks import NETWORKS

    wanted = os.environ.get("ANYMPS_CHART_NETWORKS", ",".join(NETWORKS)).split(",")
    figures = {}
    for name in wanted:
        torch.manual_seed(0)
        model, loss_of = NETWORKS[name](device)
        model.to(device)
        for train in (True, False):
            for amp in (False, True) if device != "cpu" else (False,):
                key = f"{name}, {'train' if train else 'eval'}, {'AMP bf16' if amp else 'fp32'}"
                try:
                    figures[key] = step_times(device, model, loss_of, train, amp)
                except (RuntimeError, NotImplementedError) as error:
                    print(f"{key} on {device}: {error}".splitlines()[0], file=sys.stderr, flush=True)
        del model, loss_of
    return figures


def by_turns(rounds: int) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict]]:
    """Step times and facts of every device, each measured in processes of their own that take turns."""
    python = os.environ.get("ANYMPS_PEER_PYTHON")
    devices = {"mps": (sys.executable, os.environ)}
    if python:
        devices["cuda"] = (python, peer.peer_environment(python))
    found, facts = {name: {} for name in (*devices, "cpu")}, {}
    for turn in range(rounds):
        for name, (executable, environment) in devices.items():
            facts[name], figures = child(executable, name, environment)
            for key, times in figures.items():
                found[name].setdefault(key, []).extend(times)
        if turn == 0:
            _, found["cpu"] = child(sys.executable, "cpu", os.environ)
    return found, facts


def child(python, device, environment):
    done = subprocess.run([python, __file__, "--device", device], env=environment, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 and lines else ({}, {})


def print_table(found) -> dict[str, list]:
    """Prints the table, and returns rows of a result file: COLUMNS."""
    rows = {}
    print(
        "| network | mps, ms (spread) | CUDA, ms | CPU fp32, ms | mps / CUDA | mps / CPU |\n|---|---|---|---|---|---|"
    )
    for key, times in found["mps"].items():
        ours = statistics.median(times)
        low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else [ours] * 3
        spread = (high - low) / ours
        cpu = found["cpu"].get(key.replace("AMP bf16", "fp32"))
        cuda = found.get("cuda", {}).get(key)
        others = [statistics.median(t) if t else None for t in (cuda, cpu)]
        rows[key] = [t and t * 1e3 for t in (ours, *others)] + [t and t / ours for t in others]
        cells = [f"{ours * 1e3:.1f} ({spread:.0%})"]
        cells += [f"{statistics.median(t) * 1e3:.1f}" if t else "-" for t in (cuda, cpu)]
        cells += [f"{statistics.median(t) / ours:.2f}" if t else "-" for t in (cuda, cpu)]
        print(f"| {key} | {' | '.join(cells)} |")
    return rows


def draw_bars(
    keys: list[str],
    series: dict[str, list[float]],
    label: str,
    value: str,
    path: pathlib.Path,
    even: float | None = None,
) -> None:
    """Horizontal bars: one a key and series, `value` formats its figure ("{:.1f}"), a line at `even`.

    `label` is that of the axis. Raises ImportError without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    thick = 0.8 / max(2, len(series))
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(keys) + 1.5))
    for i, (name, bars) in enumerate(series.items()):
        places = [n + thick * i for n in range(len(keys))]
        axes.barh(places, bars, thick, label=name)
        for place, length in zip(places, bars):
            axes.text(length, place, f" {value.format(length)}" if length else "", va="center", fontsize=8)
    axes.set_yticks([n + 0.5 * thick * (len(series) - 1) for n in range(len(keys))], keys)
    if even is not None:
        axes.axvline(even, color="gray", linewidth=1, zorder=0)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"chart: {path}")


def draw(found, path: pathlib.Path) -> None:
    """Bars of the speed-up over the CPU in fp32."""
    keys = [k for k in found["mps"] if found["cpu"].get(k.replace("AMP bf16", "fp32"))]
    base = [statistics.median(found["cpu"][k.replace("AMP bf16", "fp32")]) for k in keys]
    series = {}
    for device in (d for d in ("mps", "cuda") if found.get(d)):
        series[device] = [
            b / statistics.median(found[device][k]) if k in found[device] else 0 for k, b in zip(keys, base)
        ]
    draw_bars(keys, series, "times the speed of the same machine's CPU (fp32)", "{:.0f}x", path)


def main() -> None:
    if sys.argv[1:2] == ["--device"]:
        print(json.dumps([results.device_facts(sys.argv[2]), measure(sys.argv[2])]))
        return
    found, facts = by_turns(int(os.environ.get("ANYMPS_CHART_ROUNDS", "2")))
    print(f"{peer.device_name('mps')}; CPU: {os.cpu_count()} cores")
    rows = print_table(found)
    if "--save" in sys.argv:
        results.save(facts["mps"], facts.get("cuda"), "Steps of whole networks", COLUMNS, rows)
    draw(found, pathlib.Path(os.environ.get("ANYMPS_CHART_FILE", CHART)))


if __name__ == "__main__":
    main()
