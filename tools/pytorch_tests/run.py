#!/usr/bin/env python3
"""Runs PyTorch's own generic device tests from a tree of PyTorch's sources, and compares mps with the CPU.

    run.py run TREE OUT.json --device cpu      outcomes of the files of FILES (or of --files) on one device
    run.py run TREE OUT.json --device mps
    run.py compare CPU.json MPS.json           counts, and what fails on mps without standing in exceptions.yaml
    run.py compare CPU.json MPS.json --store docs/pytorch_tests/lavapipe.json --tests "of PyTorch 2.6"

A tree that is older than the installed torch serves: what it tests that torch no longer has fails on the CPU too, and
is not counted. A process that dies fails the test it was in, and the others go on. Outcomes that OUT.json holds already
are kept, so that a file may be run in parts (-k). Some files import hypothesis, which the extra `test` lacks.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import torch
import yaml

HERE = Path(__file__).resolve().parent
EXCEPTIONS = HERE / "exceptions.yaml"
WORKERS_OF_A_FILE = 4  # the start of a worker imports the whole file
FILES = [
    "test_autograd",
    "test_binary_ufuncs",
    "test_complex",
    "test_foreach",
    "test_indexing",
    "test_linalg",
    "test_masked",
    "test_modules",
    "test_native_mha",
    "test_nestedtensor",
    "test_nn",
    "test_optim",
    "test_reductions",
    "test_scatter_gather_ops",
    "test_segment_reductions",
    "test_serialization",
    "test_shape_ops",
    "test_sort_and_select",
    "test_sparse",
    "test_sparse_csr",
    "test_spectral_ops",
    "test_tensor_creation_ops",
    "test_torch",
    "test_transformers",
    "test_type_promotion",
    "test_unary_ufuncs",
    "test_view_ops",
    "functorch/test_eager_transforms",
    "functorch/test_vmap",
    "nn/test_convolution",
    "nn/test_dropout",
    "nn/test_embedding",
    "nn/test_multihead_attention",
    "nn/test_parametrization",
    "nn/test_pooling",
]


def run_file(test: Path, device: str, processes: int, selection: str) -> dict:
    """Outcomes of one file by the key of plugin.key_of; {} where it cannot be imported, with a line that says so."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        command = [sys.executable, "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", "-q", "--noconftest"]
        command += ["--tb=short", "--timeout=300", f"--device-results={results}", f"--numprocesses={processes}"]
        command += ["--dist=worksteal", "-c", os.devnull, str(test)]
        if selection:
            command += ["-k", selection]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(test.parent), os.environ.get("PYTHONPATH", "")]),
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": device,
            "OMP_WAIT_POLICY": "passive",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # workers collect the same tests in the same order
        }
        done = subprocess.run(command, cwd=test.parent, env=environment, capture_output=True, text=True)
        outcomes = json.loads(results.read_text()) if results.exists() else {}
        if not outcomes:
            print(f"{test.name}: {(done.stdout + done.stderr).strip()[-600:]}", flush=True)
        return outcomes


def run(tree: Path, out: Path, device: str, processes: int, files: list[str], selection: str) -> None:
    found = json.loads(out.read_text())["outcomes"] if out.exists() else {}
    workers = min(processes, WORKERS_OF_A_FILE)
    with ThreadPoolExecutor(processes // workers) as pool:
        outcomes_of = {
            pool.submit(run_file, tree / "test" / f"{name}.py", device, workers, selection): name for name in files
        }
        for done in as_completed(outcomes_of):
            found.update(done.result())
            counts = Counter(entry["outcome"] for entry in done.result().values())
            print(f"{outcomes_of[done]}: {dict(counts)}", flush=True)
            text = {"torch": torch.__version__, "device": device_name(device), "outcomes": found}
            out.write_text(json.dumps(text, indent=0) + "\n")


def device_name(device: str) -> str:
    return json.loads(torch.ops.anymps.device_info())["name"] if device == "mps" else "CPU"


def needs_float64(key: str, entry: dict) -> bool:
    return entry.get("needs") == "float64" or key.endswith(("float64", "complex128"))


def exceptions() -> list[dict[str, str]]:
    """Rows {test: a pattern of keys, reason}; the first that matches counts."""
    return yaml.safe_load(EXCEPTIONS.read_text()) or []


def compare(cpu: dict, mps: dict) -> tuple[dict[str, Counter], Counter, list[str]]:
    """Counts by file of what passes on the CPU, the listed reasons of what fails on mps, and what fails for none."""
    listed = exceptions()
    counts: dict[str, Counter] = {}
    reasons: Counter = Counter()
    failures = []
    for key, entry in cpu["outcomes"].items():
        if entry["outcome"] != "passed":
            continue
        here = mps["outcomes"].get(key)
        if here is None:
            outcome = "of other devices"  # CUDA's, or a dtype that PyTorch does not give the operator on mps
        elif here["outcome"] == "skipped":
            outcome = "skipped by PyTorch"
        elif here["outcome"] == "passed":
            outcome = "passed"
        elif needs_float64(key, here):
            outcome = "need float64"
        elif reason := next((row["reason"] for row in listed if fnmatch.fnmatchcase(key, row["test"])), None):
            outcome = "listed"
            reasons[reason] += 1
        else:
            outcome = "failed"
            failures.append(f"{key}: {here.get('message', '')}")
        counts.setdefault(key.split("::")[0], Counter())[outcome] += 1
    return counts, reasons, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("tree", type=Path)
    runner.add_argument("out", type=Path)
    runner.add_argument("--device", choices=("cpu", "mps"), required=True)
    runner.add_argument("--processes", type=int, default=os.cpu_count())
    runner.add_argument("--files", nargs="+", default=FILES, help="names without .py, below TREE/test")
    runner.add_argument("-k", dest="selection", default="", help="pytest's selection of tests")
    comparer = commands.add_parser("compare")
    comparer.add_argument("cpu", type=Path)
    comparer.add_argument("mps", type=Path)
    comparer.add_argument("--store", type=Path, help="where the counts are kept for docs/supported_ops.md")
    comparer.add_argument("--tests", default="", help="with --store: which tests these are, in words")
    args = parser.parse_args()
    if args.command == "run":
        run(args.tree.resolve(), args.out, args.device, args.processes, args.files, args.selection)
        return 0
    mps = json.loads(args.mps.read_text())
    counts, reasons, failures = compare(json.loads(args.cpu.read_text()), mps)
    for file, found in sorted(counts.items()):
        print(f"{file}: {dict(found)}")
    total = sum(counts.values(), Counter())
    print(f"all: {dict(total)}")
    print("\n".join(failures))
    if args.store:
        by_file = {file: dict(found) for file, found in sorted(counts.items())}
        text = {key: mps[key] for key in ("torch", "device")}
        text |= {"tests": args.tests, "counts": by_file, "reasons": dict(reasons.most_common())}
        args.store.write_text(json.dumps(text, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
