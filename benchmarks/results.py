"""Result files of benchmarks: one JSON file a benchmark and device, in benchmarks/results/<device>/<benchmark>.json.

Fields of a file (`tools/render_performance.py` reads them):

- `benchmark`, `title`, `date`, `commit` ("-dirty" behind it where the tree had changes; None where it is not recorded);
- `device`: name, driver, Vulkan and PyTorch versions; `host`: processor and cores; `clocks`: MHz that the driver tells,
  or None; `peer`: the same as `device` for what mps is compared with, or None;
- `columns`: a name each, with its unit; `rows`: figures by what was measured, in the order of the columns. A figure is
  a number, None, or a list: [least, most] or [least, median, most].
- `notes`: sentences a reader needs, such as a figure of another run.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "results"


def device_facts(device: str) -> dict[str, str]:
    """Name and versions of a device ("mps", "cuda", "cpu") of this process, as strings."""
    import torch

    if device == "mps":
        info = json.loads(torch.ops.anymps.device_info())
        return {
            "name": info["name"],
            "driver": info["driver"],
            "vulkan": info["vulkan_version"],
            "torch": torch.__version__,
        }
    if device == "cuda":
        name = f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"
        return {"name": name, "driver": _nvidia("driver_version") or "", "torch": torch.__version__}
    return {"name": f"CPU, {torch.get_num_threads()} threads", "driver": "", "torch": torch.__version__}


def save(
    ours: dict,
    peer: dict | None,
    title: str,
    columns: list[str],
    rows: dict[str, list],
    notes: tuple[str, ...] = (),
    **fields,
) -> pathlib.Path:
    """Writes the result file of the running script into FOLDER and returns its path: see record()."""
    result = record(ours, peer, title, columns, rows, notes, **fields)
    path = FOLDER / folder_of(ours["name"]) / f"{result['benchmark']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(result, path)
    print(f"saved: {path}", file=sys.stderr)
    return path


def record(
    ours: dict,
    peer: dict | None,
    title: str,
    columns: list[str],
    rows: dict[str, list],
    notes: tuple[str, ...] = (),
    **fields,
) -> dict:
    """The fields of a result file of the running script.

    `ours` and `peer` are device_facts(); the figures of a row are in the order of `columns`. `fields` replace what is
    found here, where it was measured elsewhere. Raises ValueError where a row has another length.
    """
    for what, figures in rows.items():
        if len(figures) != len(columns):
            raise ValueError(f"The row '{what}' has {len(figures)} figures, and there are {len(columns)} columns.")
    result = {
        "benchmark": fields.get("benchmark") or _benchmark(),
        "title": title,
        "date": datetime.date.today().isoformat(),
        "commit": fields["commit"] if "commit" in fields else _commit(),
        "device": ours,
        "host": _host(),
        "clocks": fields["clocks"] if "clocks" in fields else clocks(),
        "peer": peer,
        "notes": list(notes),
        "columns": columns,
        "rows": {what: [_rounded(f) for f in figures] for what, figures in rows.items()},
    }
    return result | fields


def write(result: dict, path: pathlib.Path) -> None:
    """Writes a record; whoever is killed meanwhile leaves the file as it was."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(dump(result))
    beside.replace(path)


def _benchmark() -> str:
    script = pathlib.Path(sys.argv[0]).resolve()
    return script.relative_to(FOLDER.parent).with_suffix("").as_posix()


def origin(result: dict) -> dict:
    """The fields of a result file that say where its figures were measured, for a save() elsewhere."""
    return {key: result[key] for key in ("date", "commit", "host", "clocks")}


def folder_of(name: str) -> str:
    """The folder of a device: "NVIDIA H100 80GB HBM3" is nvidia-h100, "llvmpipe (LLVM 19, 256 bits)" is llvmpipe."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*|\b\d+ ?GB\b.*", "", name).lower()).strip("-")


def dump(result: dict) -> str:
    """The text of a result file: a line a field, and a line a row."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items() if key != "rows"]
    rows = [f"  {json.dumps(what)}: {json.dumps(figures)}" for what, figures in result["rows"].items()]
    return "{\n" + ",\n".join([*lines, ' "rows": {\n' + ",\n".join(rows) + "\n }"]) + "\n}\n"


def _rounded(figure):
    if isinstance(figure, (list, tuple)):
        return [_rounded(f) for f in figure]
    return float(f"{figure:.4g}") if isinstance(figure, float) else figure


def _commit() -> str | None:
    def git(*words: str) -> str:
        command = ["git", "-C", str(FOLDER.parent.parent), *words]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()

    if "ANYMPS_BENCHMARK_COMMIT" in os.environ:  # where the package runs without its checkout
        return os.environ["ANYMPS_BENCHMARK_COMMIT"]
    found = git("rev-parse", "--short", "HEAD")
    return found + ("-dirty" if git("status", "--porcelain", "csrc", "shaders", "torch_anymps") else "") or None


def _host() -> str:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return f"{model[1] if model else 'unknown processor'}, {os.cpu_count()} cores"


def _nvidia(fields: str) -> str | None:
    try:
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def clocks() -> dict[str, str] | None:
    """The clocks that NVIDIA's tool tells right after the run; None with other drivers."""
    fields = ("clocks.sm", "clocks.max.sm", "clocks.mem")
    found = _nvidia(",".join(fields))
    return dict(zip(fields, found.split(", "))) if found else None
