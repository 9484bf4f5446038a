#!/usr/bin/env python3
"""Runs PyTorch's own generic device tests from a tree of PyTorch's sources, and compares mps with the CPU.

    run.py run TREE OUT.json --device cpu      outcomes of the files of FILES (or of --files) on one device
    run.py run TREE OUT.json --device mps
    run.py run TREE CPU.json --device cpu --failed-in MPS.json     only what failed there
    run.py run TREE OUT.json --device mps --suite inductor --next 50
                                               50 tests of torch.compile that OUT.json lacks; see suite_report.py
    run.py compare CPU.json MPS.json           counts, and what fails on mps without standing in exceptions.yaml
    run.py compare CPU.json MPS.json --store docs/pytorch_tests/lavapipe.json --tests "of PyTorch 2.6"

A tree that is older than the installed torch serves: what it tests that torch no longer has fails on the CPU too, and
is not counted. A process that dies fails the test it was in, and the others go on. Outcomes that OUT.json holds already
are kept, so that a file may be run in parts (-k). With --seconds the run is stopped then, and what it did not reach is
counted as not run. Some files import hypothesis, which the extra `test` lacks. The suite `distributed` wants
--processes 1, as its ranks are processes.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import adapted_sources
import torch
import yaml

HERE = Path(__file__).resolve().parent
EXCEPTIONS = HERE / "exceptions.yaml"
WORKERS_OF_A_FILE = 4  # at least: the start of a worker imports the whole file
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
FILES_OF_INDUCTOR = [
    "inductor/test_torchinductor",
    "inductor/test_torchinductor_dynamic_shapes",
    "inductor/test_torchinductor_opinfo",
    "inductor/test_mps_basic",
    "inductor/test_auto_functionalize",
    "inductor/test_binary_folding",
    "inductor/test_combo_kernels",
    "inductor/test_compiled_optimizers",
    "inductor/test_control_deps",
    "inductor/test_cudagraph_trees",
    "inductor/test_control_flow",
    "inductor/test_cooperative_reductions",
    "inductor/test_custom_lowering",
    "inductor/test_efficient_conv_bn_eval",
    "inductor/test_foreach",
    "inductor/test_fused_attention",
    "inductor/test_group_batch_fusion",
    "inductor/test_indexing",
    "inductor/test_inductor_freezing",
    "inductor/test_inplacing_pass",
    "inductor/test_layout_optim",
    "inductor/test_loop_ordering",
    "inductor/test_mix_order_reduction",
    "inductor/test_online_softmax",
    "inductor/test_op_dtype_prop",
    "inductor/test_pattern_matcher",
    "inductor/test_scatter_optimization",
    "inductor/test_unbacked_symints",
]
FILES_OF_DISTRIBUTED = [
    "distributed/distributed_test",  # of the wheel; TREE may lack it
    "distributed/test_functional_api",
    "distributed/_composable/fsdp/test_fully_shard_autograd",
    "distributed/_composable/fsdp/test_fully_shard_clip_grad_norm_",
    "distributed/_composable/fsdp/test_fully_shard_frozen",
    "distributed/_composable/fsdp/test_fully_shard_state",
    "distributed/_composable/fsdp/test_fully_shard_training",
    "distributed/optim/test_zero_redundancy_optimizer",
    "distributed/tensor/test_embedding_ops",
    "distributed/tensor/test_pointwise_ops",
    "distributed/tensor/test_random_ops",
    "distributed/tensor/test_redistribute",
    "distributed/tensor/parallel/test_tp_style",
]


@dataclass(frozen=True)
class Suite:
    plugin: str  # of pytest
    files: list[str]
    adapt: Callable[[Path, Path, str], None] | None = None  # writes a copy of the tree for a device
    options: tuple[str, ...] = ()  # of pytest


# Logs would keep the trace of every compilation; a timeout by a thread ends what hangs outside of Python, and its
# process. Ranks are forked, which asks for one thread and a timeout that leaves the process alive.
SUITES = {
    "device": Suite("plugin", FILES),
    "inductor": Suite(
        "inductor_plugin",
        FILES_OF_INDUCTOR,
        adapted_sources.adapt_inductor,
        ("-p", "no:logging", "--timeout-method=thread"),
    ),
    "distributed": Suite(
        "distributed_plugin", FILES_OF_DISTRIBUTED, adapted_sources.adapt_distributed, ("-p", "no:logging")
    ),
}


def run_file(test: Path, args: argparse.Namespace, processes: int, deadline: float, known: list[str]) -> dict:
    """Outcomes of one file by the plugin's key_of; {} where it cannot be imported, with a line that says so.

    The file is stopped at `deadline` (a time of time.monotonic()) and keeps the outcomes that it has by then.
    """
    suite = SUITES[args.suite]
    with tempfile.TemporaryDirectory() as folder:
        results, log = Path(folder, "results.json"), Path(folder, "log")
        command = [sys.executable, "-m", "pytest", "-p", suite.plugin, "-p", "no:cacheprovider", "-q"]
        command += ["--noconftest", "--tb=short", f"--timeout={args.timeout}", f"--device-results={results}"]
        command += [f"--numprocesses={processes}", "--dist=worksteal", "-c", os.devnull, str(test)]
        if args.selection:
            command += ["-k", args.selection]
        if args.failed_in:
            command += [f"--device-failed-in={args.failed_in.resolve()}"]
        command += suite.options
        if args.next:
            Path(folder, "known.json").write_text(json.dumps(known))
            command += [f"--next={args.next}", f"--known={folder}/known.json"]
        given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        paths = [str(HERE), str(test.parent), *map(os.path.abspath, given)]
        environment = {
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no pool of compilers beside every worker
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTORCH_TESTING_DEVICE_ONLY_FOR": args.device,
            "OMP_WAIT_POLICY": "passive",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # workers collect the same tests in the same order
        }
        if args.suite == "distributed" and args.device == "cpu":
            environment["ANYMPS_DISABLE"] = "1"  # barriers and meshes would take the accelerator that there is
        with log.open("w") as text:
            process = subprocess.Popen(
                command, cwd=test.parent, env=environment, stdout=text, stderr=text, start_new_session=True
            )
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                print(f"{test.name}: stopped", flush=True)
        outcomes = json.loads(results.read_text()) if results.exists() else {}
        if not outcomes:
            print(f"{test.name}: {log.read_text().strip()[-600:]}", flush=True)
        return outcomes


def run(args: argparse.Namespace) -> None:
    suite = SUITES[args.suite]
    tree, out = args.tree.resolve(), args.out
    found = json.loads(out.read_text())["outcomes"] if out.exists() else {}
    files = args.files or suite.files
    if args.failed_in:
        others = json.loads(args.failed_in.read_text())["outcomes"]
        failing = {key.split("::")[0] for key, entry in others.items() if entry["outcome"] == "failed"}
        files = [name for name in files if f"{Path(name).name}.py" in failing]
    known = [key for key, entry in found.items() if was_run(entry)]
    workers = max(min(args.processes, WORKERS_OF_A_FILE), args.processes // max(len(files), 1))
    deadline = time.monotonic() + args.seconds
    text = {"torch": torch.__version__, "device": device_name(args.device), "outcomes": found}
    out.write_text(json.dumps(text, indent=0) + "\n")
    with tempfile.TemporaryDirectory() as copy, ThreadPoolExecutor(args.processes // workers) as pool:
        if suite.adapt:
            suite.adapt(tree, Path(copy), args.device)
            tree = Path(copy)
        outcomes_of = {
            pool.submit(run_file, tree / "test" / f"{name}.py", args, workers, deadline, known): name for name in files
        }
        for done in as_completed(outcomes_of):
            outcomes = done.result()
            found.update({key: entry for key, entry in outcomes.items() if key not in found or was_run(entry)})
            print(f"{outcomes_of[done]}: {dict(Counter(entry['outcome'] for entry in outcomes.values()))}", flush=True)
            out.write_text(json.dumps(text, indent=0) + "\n")


def was_run(entry: dict) -> bool:
    return entry["outcome"] != "not run"


def device_name(device: str) -> str:
    return json.loads(torch.ops.anymps.device_info())["name"] if device == "mps" else "CPU"


def needs_float64(key: str, entry: dict) -> bool:
    return entry.get("needs") == "float64" or key.endswith(("float64", "complex128"))


def exceptions() -> list[dict[str, str]]:
    """Rows {test: a pattern of keys, error: a part of the message (of any, where it is left out), reason}."""
    return yaml.safe_load(EXCEPTIONS.read_text()) or []


def reason_of(rows: list[dict[str, str]], key: str, message: str) -> str | None:
    """The reason of the first row for a failure of the test KEY with MESSAGE."""
    fits = (row for row in rows if fnmatch.fnmatchcase(key, row["test"]) and row.get("error", "") in message)
    return next((row["reason"] for row in fits), None)


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
        elif not was_run(here):
            outcome = "not run"
        elif here["outcome"] == "skipped":
            outcome = "skipped by PyTorch"
        elif here["outcome"] == "passed":
            outcome = "passed"
        elif needs_float64(key, here):
            outcome = "need float64"
        elif reason := reason_of(listed, key, here.get("message", "")):
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
    runner.add_argument("--suite", choices=SUITES, default="device")
    runner.add_argument("--files", nargs="+", help="names without .py, below TREE/test, in place of the suite's")
    runner.add_argument("--timeout", type=float, default=300, metavar="S", help="of one test")
    runner.add_argument("--seconds", type=float, default=1e6, metavar="S", help="of the whole run")
    runner.add_argument("--failed-in", type=Path, metavar="JSON", help="run only what failed in these outcomes")
    runner.add_argument("-k", dest="selection", default="", help="pytest's selection of tests")
    runner.add_argument("--next", type=int, default=0, metavar="N", help="inductor: N tests of a file that OUT lacks")
    comparer = commands.add_parser("compare")
    comparer.add_argument("cpu", type=Path)
    comparer.add_argument("mps", type=Path)
    comparer.add_argument("--store", type=Path, help="where the counts are kept for docs/supported_ops.md")
    comparer.add_argument("--tests", default="", help="with --store: which tests these are, in words")
    args = parser.parse_args()
    if args.command == "run":
        run(args)
        return 0
    mps = json.loads(args.mps.read_text())
    counts, reasons, failures = compare(json.loads(args.cpu.read_text()), mps)
    for file, found in sorted(counts.items()):
        print(f"{file}: {dict(found)}")
    total = sum(counts.values(), Counter())
    print(f"all: {dict(total)}")
    print("\n".join(failures))
    if args.store and total["not run"]:
        parser.error(f"{total['not run']} tests were not reached on mps: run their files again to store counts")
    if args.store:
        by_file = {file: dict(found) for file, found in sorted(counts.items())}
        text = {key: mps[key] for key in ("torch", "device")}
        text |= {"tests": args.tests, "counts": by_file, "reasons": dict(reasons.most_common())}
        args.store.write_text(json.dumps(text, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
