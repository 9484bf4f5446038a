#!/usr/bin/env python3
"""Writes the tables of DOCUMENTS (README.md and docs/performance.md among them) from benchmarks/results.

    render_performance.py            writes them
    render_performance.py --check    prints what is out of date, and exits with 1 where anything is

A document holds comments, and behind each, after an empty line, a table that this tool writes:

    <!-- results: nvidia-h200/ops/matmul view=pivot rows="nt$" columns=2,3 -->

Views: `table`, a line a row with the columns named (from 1); `pivot`, keys "column: row" as a table of cells "ours /
theirs, **ratio**" (`by`, a regular expression, splits other keys into row, column and row); `groups`, least, median
and most by a group of GROUPS; `means`, the geometric mean of ratios and the five lowest by the last part of a key;
`bands`, names sorted by their ratio; `list`, the lines of LISTS, of several files; `spills`, a line a GPU of what its
compiler keeps in memory, of all files that the pattern fits; `sources`, what the files of a device were measured on.
`rows` is a regular expression that chooses keys, `head` the first cell.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (
    "README.md",
    "docs/compile.md",
    "docs/compiled_kernels.md",
    "docs/design/recurrent.md",
    "docs/distributed.md",
    "docs/graphs.md",
    "docs/hardware.md",
    "docs/kernels.md",
    "docs/performance.md",
    "docs/profiling.md",
    "docs/results.md",
    "docs/zoo.md",
)
BLOCK = re.compile(r"(<!-- results: (.*?) -->\n)(?:\n(?:\|.*\n)*)?\n?")

# Rows of ops/bandwidth by what they have in common.
GROUPS = {
    "copies, casts, element-wise, dropout": r"^(copy|residual add|cast|gelu|dropout)",
    "sums": r"^(sum of|bias gradient|adaptive_avg_pool2d 1 \|)",
    "softmax, log_softmax, cross_entropy": r"^(log_)?softmax|^cross_entropy",
    "layer_norm, rms_norm": r"^(layer|rms)_norm",
    "batch_norm, group_norm": r"^(batch|group)_norm",
    "pools": r"^(max_pool|avg_pool|adaptive_avg_pool2d 1, gradient)",
    "embedding, gradient": r"^embedding",
    "SGD, Adam, AdamW, fused": r"^(SGD|Adam)",
}
# Of models/network_kernels: the rows that come first, whatever they spill, and the column that tells of that.
CARRYING = 60
SPILLS = ("Spilled VGPRs", "Spill Count", "Spills", "STP Count")
BANDS = ((0.0, 0.5), (0.5, 0.85), (0.85, 1.2), (1.2, float("inf")))

# Lines of several files: label, file, key, unit.
LISTS = {
    "speeds": (
        ("host cost of one eager add", "runtime/eager_overhead", "add", "us"),
        ("softmax, 98,304 x 1,024 floats", "ops/bandwidth", "softmax | 98304 x 1024 | float32", "of a copy"),
        ("layer_norm, 65,536 x 1,024 floats", "ops/bandwidth", "layer_norm | 65536 x 1024 | float32", "of a copy"),
        ("product of 8,192 x 8,192, f32", "ops/matmul_f32", "float32: 8192 x 8192 x 8192, nt", "TFLOP/s"),
        ("the same, bf16", "ops/matmul", "bfloat16: 8192 x 8192 x 8192, nt", "TFLOP/s"),
        ("attention, 4,096 tokens, heads of 64, f16", "ops/attention", "float16: long, forward", "TFLOP/s"),
        ("BERT-base training step, fp32", "models/chart", "BERT-base, train, fp32", "ms"),
        ("BERT-base training step, AMP bf16", "models/chart", "BERT-base, train, AMP bf16", "ms"),
        ("GPT 124M training step, AMP bf16", "models/chart", "GPT 124M, train, AMP bf16", "ms"),
        ("GPT 124M, greedy decoding, bf16", "models/decoding", "bfloat16", "tokens/s"),
        ("ResNet50 training step, fp32", "models/chart", "ResNet50, train, fp32", "ms"),
        ("ResNet50 training step, AMP bf16", "models/chart", "ResNet50, train, AMP bf16", "ms"),
    ),
    "processes": (
        ("GPT 124M, greedy decoding, fp32", "models/decoding", "float32", "tokens/s"),
        ("GPT 124M, greedy decoding, bf16", "models/decoding", "bfloat16", "tokens/s"),
        ("BERT-base, AMP, first step, nothing compiled before", "models/first_step", "BERT-base, AMP", "s"),
        ("ResNet50, fp32, first step, nothing compiled before", "models/first_step", "ResNet50, fp32", "s"),
        ("ResNet50, fp32, peak memory of tensors", "models/memory", "ResNet50, fp32, tensors", "GiB"),
        ("ResNet50, AMP bf16, peak memory of tensors", "models/memory", "ResNet50, AMP bf16, tensors", "GiB"),
    ),
}


def load(name: str) -> dict:
    """A result file by its path below benchmarks/results, without .json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def render(text: str) -> str:
    """A document with all tables as the result files have them. Raises ValueError where a comment fits no row."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{_block(m[2])}\n\n", text).rstrip("\n") + "\n"


def _block(arguments: str) -> str:
    name, *options = shlex.split(arguments)
    options = dict(option.split("=", 1) for option in options)
    view = options.get("view", "table")
    if view == "sources":
        return "\n".join(_sources(name))
    if view == "list":
        return "\n".join(_list(name, options["of"]))
    if view == "spills":
        return "\n".join(_spills(name))
    result = load(name)
    chosen = re.compile(options.get("rows", ""))
    rows = {key: figures for key, figures in result["rows"].items() if chosen.search(key)}
    if not rows:
        raise ValueError(f"{name}: no row fits {options['rows']}.")
    return "\n".join(VIEWS[view](result, rows, options))


def _columns(result: dict, options: dict) -> list[int]:
    """Positions of the columns that a comment names, or of all."""
    if "columns" not in options:
        return list(range(len(result["columns"])))
    return [int(n) - 1 for n in options["columns"].split(",")]


def _table(result: dict, rows: dict, options: dict) -> list[str]:
    columns = _columns(result, options)
    lines = _head([options.get("head", result["title"]), *(result["columns"][n] for n in columns)])
    strip = re.compile(options.get("strip", "(?!)"))
    for key, figures in rows.items():
        cells = [_figure(figures[n], result["columns"][n]) for n in columns]
        lines.append(_row([strip.sub("", key).replace(" |", ","), *cells]))
    return lines


def _pivot(result: dict, rows: dict, options: dict) -> list[str]:
    """Keys "column: row"; with three parts, "column: row: column"."""
    if "by" in options:
        parts = [re.fullmatch(options["by"], key).groups() for key in rows]
        parts = [(column, before + after) for before, column, after in parts]
    else:
        parts = [key.split(": ") for key in rows]
    chosen = _columns(result, options)
    rows = [[figures[n] for n in chosen] for figures in rows.values()]
    cells = {(p[1], ": ".join([p[0], *p[2:]])): figures for p, figures in zip(parts, rows, strict=True)}
    columns, names = list(dict.fromkeys(c for _, c in cells)), list(dict.fromkeys(r for r, _ in cells))
    lines = _head([options.get("head", result["title"]), *columns])
    body = ((name.replace(" |", ","), [_cell(cells.get((name, column))) for column in columns]) for name in names)
    return lines + [_row([name, *row]) for name, row in body]


def _cell(figures: list | None) -> str:
    """Our figure, the peer's and the ratio, as far as they are known: 350 / 648, **0.54**."""
    if not figures or figures[-1] is None:
        return "-"
    *values, ratio = figures
    if isinstance(ratio, list):
        return "{:.2f}, **{:.2f}**, {:.2f}".format(*ratio)
    known = " / ".join(_figure(v) for v in values if v is not None)
    return f"{known}, **{ratio:.2f}**" if known else f"**{ratio:.2f}**"


def _groups(result: dict, rows: dict, options: dict) -> list[str]:
    """With `goal`, a last line names the rows whose first ratio is below it."""
    columns = [n for n, name in enumerate(result["columns"]) if _is_ratio(name)]
    heads = [f"{result['columns'][n]}: least, median, most" for n in columns]
    lines = _head([options.get("head", result["title"]), "rows", *heads])
    left = dict(rows)
    for group, pattern in GROUPS.items():
        found = [left.pop(key) for key in list(left) if re.search(pattern, key)]
        cells = [[f[n] for f in found if f[n] is not None] for n in columns]
        cells = [f"{min(c):.2f}, **{statistics.median(c):.2f}**, {max(c):.2f}" for c in cells]
        lines.append(_row([group, str(len(found)), *cells]))
    if left:
        raise ValueError(f"{list(left)} is in no group of tools/render_performance.py.")
    if "goal" in options:
        low = {key: f[columns[0]] for key, f in rows.items() if f[columns[0]] < float(options["goal"])}
        names = "; ".join(f"{key.replace(' |', ',')} {ratio:.2f}" for key, ratio in low.items())
        lines.append(_row([f"below the goal, {options['goal']}", str(len(low)), names, ""]))
    return lines


def _bands(result: dict, rows: dict, options: dict) -> list[str]:
    lines = _head([result["columns"][-1], options.get("head", result["title"])])
    for low, high in BANDS:
        least = {key: figures[-1][0] if isinstance(figures[-1], list) else figures[-1] for key, figures in rows.items()}
        names = sorted((key for key, ratio in least.items() if low <= ratio < high), key=least.get)
        band = f"{low} to {high}" if high < float("inf") else f"{low} and more"
        cells = [f"{key} {_figure(rows[key][-1])}" for key in names]
        lines += [_row([band if low else f"below {high}", "; ".join(cells)])] if names else []
    return lines


def _means(result: dict, rows: dict, options: dict) -> list[str]:
    """Geometric means of a column (`figure`, the last one by default) of rows "trade | network | mode | precision"."""
    column = int(options.get("figure", -1))
    parts = {key: key.split(" | ") for key in rows if rows[key][column] is not None}
    of_modes = len({mode for *_, mode, _ in parts.values()}) > 1
    kinds: dict[str, dict[str, float]] = {}
    for key, (_, name, mode, precision) in parts.items():
        kinds.setdefault(f"{mode}, {precision}" if of_modes else precision, {})[name] = rows[key][column]
    title = result["columns"][column]
    lines = _head([options.get("head", result["title"]), f"{title}, geometric mean", "lowest five"])
    for kind, ratios in kinds.items():
        lowest = "; ".join(f"{name} {ratios[name]:.2f}" for name in sorted(ratios, key=ratios.get)[:5])
        lines.append(_row([kind, f"**{statistics.geometric_mean(ratios.values()):.2f}** of {len(ratios)}", lowest]))
    return lines


def _list(folder: str, of: str) -> list[str]:
    lines = _head(["what", "mps", "CUDA", "mps / CUDA"])
    for label, name, key, unit in LISTS[of]:
        result = load(f"{folder}/{name}")
        figures = dict(zip(result["columns"], result["rows"][key], strict=True))
        ours, theirs, ratio = (figures.get(c) for c in (f"mps, {unit}", f"cuda, {unit}", "mps / cuda"))
        ours = figures.get(unit) if ours is None else ours  # a column of its own, such as "of a copy"
        cells = [f"{_figure(value)} {unit}" if value is not None else "-" for value in (ours, theirs)]
        lines.append(_row([label, *cells, f"**{ratio:.2f}**" if ratio is not None else "-"]))
    return lines


def _spills(pattern: str) -> list[str]:
    """Of benchmarks/models/network_kernels.py: rows are the kernels of most weight, then others that spill."""
    head = ["GPU", f"of the {CARRYING} that carry networks spill", "of all", "share of the time", "most of it"]
    lines = _head([*head, "pipelines launched"])
    for path in sorted(RESULTS.glob(f"{pattern}.json")):
        result = load(path.relative_to(RESULTS).with_suffix("").as_posix())
        columns, rows = result["columns"], list(result["rows"].items())
        spilled = columns.index(next(name for name in SPILLS if name in columns))
        found = [(key.partition("[")[0], figures[0]) for key, figures in rows if figures[spilled] > 0]
        carrying = sum(figures[spilled] > 0 for _, figures in rows[:CARRYING])
        kernels: dict[str, float] = {}
        for name, share in found:
            kernels[name] = kernels.get(name, 0) + share
        most = ", ".join(f"`{n}` {kernels[n]:.1f} %" for n in sorted(kernels, key=kernels.get, reverse=True)[:4])
        launched = re.search(r"launch (\d+) pipelines", " ".join(result["notes"]))
        gpu = f"{result['device']['name']} ({path.relative_to(RESULTS).parts[0]})"
        share = f"{sum(kernels.values()):.1f} %" if found else "-"
        cells = [gpu, str(carrying or "none"), str(len(found) or "none"), share, most or "-"]
        lines.append(_row([*cells, launched[1] if launched else "-"]))
    return lines


def _sources(folder: str) -> list[str]:
    lines = _head(["file", "device", "peer", "date, commit", "clocks", "notes"])
    for path in sorted((RESULTS / folder).rglob("*.json")):
        result = load(path.relative_to(RESULTS).with_suffix("").as_posix())
        device, peer, notes = result["device"], result["peer"], result["notes"]
        commit = result["commit"] or f"not recorded; documented in {result['recorded_in']}"
        peer = f"{peer['name']}, PyTorch {peer['torch']}" if peer else "-"
        clocks = ", ".join(f"{k} {v}" for k, v in result["clocks"].items()) if result["clocks"] else "not recorded"
        told = " ".join(notes if result["commit"] else notes[1:])  # the first says that nothing was recorded
        name = path.relative_to(RESULTS / folder).with_suffix("").as_posix()
        where = f"{device['name']}, driver {device['driver']}"
        lines.append(_row([name, where, peer, f"{result['date']}, {commit}", clocks, told]))
    return lines


VIEWS = {"table": _table, "pivot": _pivot, "groups": _groups, "bands": _bands, "means": _means}


def _is_ratio(column: str) -> bool:
    return " / " in column or column.endswith("of a copy") or column == "of its bound"


def _figure(value, column: str = "") -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(_figure(v) for v in value)
    if column == "share":
        return f"{value:.1%}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"**{value:.2f}**" if _is_ratio(column) else f"{value:.4g}"


def _head(cells) -> list[str]:
    return [_row(cells), "|---" * len(cells) + "|"]


def _row(cells) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check, stale = parser.parse_args().check, []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text()
        rendered = render(text)
        if rendered != text:
            stale.append(name)
            if not check:
                path.write_text(rendered)
    for name in stale:
        print(f"{name}: {'not in step with benchmarks/results' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
