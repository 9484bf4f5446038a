#!/usr/bin/env python3
"""Writes docs/supported_ops.md, and README's count of operators, from the dispatcher of the built package.

    supported_ops.py           write both
    supported_ops.py --check   write nothing; say what is out of date, and exit with 1

What op_db says is read from docs/op_db/<driver>.json, and what the sweep of checks says from
docs/op_db/sweep/<driver>.json; op_db_counts.py writes both. What PyTorch's own tests say is read from
docs/pytorch_tests/<driver>.json, which pytorch_tests/run.py writes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from pathlib import Path

import torch
import torchgen
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))  # `python -P` leaves it out
from op_db_lists import comparison  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "supported_ops.md"
README = ROOT / "README.md"
COUNT = re.compile(r"\d+ operators in \d+ overloads")

KINDS = {
    "native": "a kernel of ours on the GPU",
    "host": "a call of LAPACK on the CPU at the core, without a warning",
    "composite": "made of other operators by PyTorch itself",
    "fallback": "none: raises NotImplementedError, or runs on the CPU with PYTORCH_ENABLE_MPS_FALLBACK=1",
}
COMPOSITES = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
# Names of Metal's own plumbing, which no program calls: ours goes through convolution_overrideable and lstm.
OF_METAL_ONLY = re.compile(r"^(_?mps_convolution|_lstm_mps|lstm_mps)")

# What operators are for that have a kernel on the CPU, and neither one here nor a decomposition: base names by use.
CPU_ONLY = {
    "sparse tensors": r"_to_sparse.*|_spdiags|sspaddmm|_convert_indices_.*|_validate_compressed_sparse_indices",
    "quantized tensors, a layout that Apple's device lacks too": r"_?quantize.*|_(empty|make)_.*quantized.*",
    "nested tensors of the strided layout: NestedTensorImpl of PyTorch refuses mps; jagged ones work": r"_nested_.*",
    "parts of convolution; here it is convolution_overrideable": r"_?slow_conv.*",
    "oneDNN's tensors and layers": r"to_mkldnn|mkldnn_.*",
    "packed weights in an order of the CPU's": r".*int4pack.*_for_cpu|_dyn_quant_.*",
    "stateless random numbers of the experimental torch.func._random": r"_philox_.*",
    "memory of the host": r"from_file",
    "a private part of matrix_exp, which is another kernel here": r"_compute_linear_combination",
    "PyTorch's own tests": r"_foobar|_test_.*",
}


# Operators and lists of PyTorch are those of the version that the page is written with.
WRITTEN = f"Written by `python tools/supported_ops.py` with PyTorch {'.'.join(torch.__version__.split('.')[:2])}"


def registered() -> set[str]:
    """The overloads that have a kernel on mps, without `aten::`."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key("MPS")
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def host_overloads() -> set[str]:
    names = torch.ops.anymps.host_ops() if hasattr(torch.ops.anymps, "host_ops") else []
    return {name.removeprefix("aten::") for name in names}


def entries_of_pytorch() -> list[str]:
    """The entries of native_functions.yaml that PyTorch gives a kernel on Apple's device; no sparse ones."""
    path = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    entries = yaml.safe_load(path.read_text())
    keys = [{key.strip() for names in entry.get("dispatch", {}) for key in names.split(",")} for entry in entries]
    return [entry["func"].split("(")[0] for entry, mine in zip(entries, keys, strict=True) if "MPS" in mine]


def kind_of(overload: str, ours: set[str], host: set[str]) -> str:
    if overload in host:
        return "host"
    if overload in ours:
        return "native"
    composite = any(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{overload}", key) for key in COMPOSITES)
    return "composite" if composite else "fallback"


def cpu_only() -> list[str]:
    """The overloads that have a kernel on the CPU and, for mps, neither a kernel nor a decomposition."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    absent = [name for name in names if has(name, "CPU") and not any(has(name, key) for key in ("MPS", *COMPOSITES))]
    return sorted(name.removeprefix("aten::") for name in absent)


def use_of(overload: str) -> str:
    """What an operator of cpu_only() is for; "other" where CPU_ONLY does not say."""
    return next((use for use, names in CPU_ONLY.items() if re.fullmatch(names, base_name(overload))), "other")


def base_name(overload: str) -> str:
    return overload.split(".")[0].rstrip("_")


def count_sentence(ours: set[str]) -> str:
    return f"{len({base_name(name) for name in ours})} operators in {len(ours)} overloads"


def listing(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def operators_section(ours: set[str], host: set[str]) -> str:
    entries = entries_of_pytorch()
    kinds = {name: kind_of(name, ours, host) for name in entries}
    counts = Counter(kinds.values())
    rows = "".join(f"| {kind} | {counts[kind]} | {text} |\n" for kind, text in KINDS.items())
    beyond = {base_name(name) for name in ours} - {base_name(name) for name in entries}
    metal = [name for name in entries if OF_METAL_ONLY.match(name)]
    absent = [name for name, kind in kinds.items() if kind == "fallback" and name not in metal]
    return f"""\
{count_sentence(ours)} have a kernel on mps ({len(host)} overloads of them on the host).

Of the {len(entries)} entries of PyTorch's native_functions.yaml that have a kernel on Apple's device:

| kind | entries | where it runs |
|---|---|---|
{rows}
On the host: {listing(sorted(host))}.

Without a kernel: {listing(absent)}. Not counted as missing, for they are Metal's own plumbing: {listing(metal)}.

Kernels that Apple's device does not have, by operator: {listing(sorted(beyond))}.
"""


def cpu_only_section() -> str:
    names = cpu_only()
    by_use = {use: sorted({base_name(name) for name in names if use_of(name) == use}) for use in (*CPU_ONLY, "other")}
    rows = "".join(f"| {use} | {listing(found)} |\n" for use, found in by_use.items() if found)
    count = len({base_name(name) for name in names})
    return f"""\
{count} operators of aten in {len(names)} overloads have a kernel on the CPU, and for mps neither a kernel nor a
decomposition:

| use | operators |
|---|---|
{rows}"""


def op_db_section() -> str:
    texts = []
    for path in sorted((ROOT / "docs" / "op_db").glob("*.json")):
        results = json.loads(path.read_text())
        note = f"\n{results['note']}\n" if "note" in results else ""
        texts.append(f"### {results['device']}: {results['samples']}\n\n{op_db_table(results['counts'])}{note}")
    return "\n".join(texts)


def op_db_table(counts: dict) -> str:
    text = "| dtype | phase | pass | excepted | fail | nothing to compare |\n|---|---|---|---|---|---|\n"
    for dtype, phases in counts.items():
        for phase, found in phases.items():
            if sum(found.values()) > found.get("none", 0):
                numbers = " | ".join(str(found.get(k, 0)) for k in ("pass", "excepted", "fail", "none"))
                text += f"| {dtype} | {phase} | {numbers} |\n"
    return text


def sweep_section() -> str:
    texts = []
    for path in sorted((ROOT / "docs" / "op_db" / "sweep").glob("*.json")):
        results = json.loads(path.read_text())
        text = f"### {results['device']}\n\n| check | cases | pass | excepted | fail | nothing to compare |\n"
        text += "|---|---|---|---|---|---|\n"
        for check, found in results["counts"].items():
            numbers = " | ".join(str(found.get(k, 0)) for k in ("pass", "excepted", "fail", "none"))
            text += f"| {check} | {sum(found.values())} | {numbers} |\n"
        text += "\n| excepted, by reason | cases |\n|---|---|\n"
        texts.append(text + "".join(f"| {reason} | {count} |\n" for reason, count in results["reasons"].items()))
    return "\n".join(texts)


# Outcomes of what passes on the CPU, as pytorch_tests/run.py names them, and the head of their column.
OUTCOMES = {
    "passed": "pass here",
    "need float64": "need float64",
    "skipped by PyTorch": "skipped for mps by PyTorch",
    "of other devices": "not made for mps by PyTorch",
    "listed": "excepted",
    "failed": "fail",
}


def pytorch_tests_section() -> str:
    texts = []
    for path in sorted((ROOT / "docs" / "pytorch_tests").glob("*.json")):
        results = json.loads(path.read_text())
        counts = {**results["counts"], "all": sum(map(Counter, results["counts"].values()), Counter())}
        text = f"### {results['device']}: tests {results['tests']}, torch {results['torch']}\n\n"
        text += f"| file | pass on the CPU | {' | '.join(OUTCOMES.values())} |\n{'|---' * (len(OUTCOMES) + 2)}|\n"
        for file, found in counts.items():
            numbers = " | ".join(str(found.get(outcome, 0)) for outcome in OUTCOMES)
            text += f"| {file} | {sum(found.values())} | {numbers} |\n"
        text += "\n| excepted, by reason | tests |\n|---|---|\n"
        texts.append(text + "".join(f"| {reason} | {count} |\n" for reason, count in results["reasons"].items()))
    return "\n".join(texts)


def exceptions_section() -> str:
    text = "| category | PyTorch for Apple: operators | operators x dtypes | here: operators | operators x dtypes |\n"
    text += "|---|---|---|---|---|\n"
    for category, *pairs in comparison():
        numbers = " | ".join(f"{len({op for op, _ in found})} | {len(found)}" for found in pairs)
        text += f"| {category} | {numbers} |\n"
    return text


def page() -> str:
    ours = registered()
    return f"""\
# Supported operators

{WRITTEN}; not to be edited.

## Operators

{operators_section(ours, host_overloads())}
## What the CPU has and mps does not

{cpu_only_section()}
## PyTorch's own samples

`make test-full` runs every sample of PyTorch's op_db on mps beside the CPU (tests/op_db/test_op_db.py): entries that
pass, entries that [op_db_exceptions.yaml](../tests/op_db/op_db_exceptions.yaml) excepts with a reason, and those for
which the CPU gives nothing to compare with.

{op_db_section()}
## Checks beyond values

`make test-sweep` runs every operator of op_db under every check of [sweep_case.py](../tests/support/sweep_case.py) on
mps beside the CPU: zero-sized dimensions forward and backward (empty), torch.func's transforms (vjp, jvp, vmap,
vmap_vjp), make_fx with symbolic shapes, its graph run on other sizes (trace), second derivatives (double_backward),
forward-mode AD (forward_mode), and results and operators below a TorchDispatchMode (dispatch_mode) and of a tensor
subclass (subclass). What may fail stands in [op_db_sweep_exceptions.yaml](../tests/op_db/op_db_sweep_exceptions.yaml).

{sweep_section()}
## PyTorch's own device tests

[tools/pytorch_tests/run.py](../tools/pytorch_tests/run.py) runs files of PyTorch's test suite on mps, and the same on
the CPU. What passes on the CPU is counted; its tests in float64 and complex128 cannot pass here, for mps has none.
What else may fail stands in [tools/pytorch_tests/exceptions.yaml](../tools/pytorch_tests/exceptions.yaml). Only the
files named here have run.

{pytorch_tests_section()}
## What the samples except, beside PyTorch's own test for Apple's device

Entries of op_db_exceptions.yaml and of the lists in PyTorch's torch/testing/_internal/common_mps.py (macOS 26),
counted alike: operators of op_db, and these times the dtypes that the CPU computes in; gradients in float32 and
float16. A list that names no dtypes stands for all.

{exceptions_section()}"""


def readme() -> str:
    return COUNT.sub(count_sentence(registered()), README.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file is out of date")
    check = parser.parse_args().check
    stale = 0
    for path, text in ((PAGE, page()), (README, readme())):
        if path.exists() and path.read_text() == text:
            continue
        stale += 1
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run python tools/supported_ops.py")
        else:
            path.write_text(text)
            print(f"{path.relative_to(ROOT)} written")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
