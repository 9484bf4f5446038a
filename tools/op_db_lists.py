"""What PyTorch's own tests except for Apple's device, and what ours do, in the same units: for docs/supported_ops.md.

PyTorch's lists are local variables of functions in torch/testing/_internal/common_mps.py, and are read from its source.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import torch
import yaml
from torch.testing._internal.common_methods_invocations import op_db

EXCEPTIONS = Path(__file__).resolve().parent.parent / "tests" / "op_db" / "op_db_exceptions.yaml"
REAL = ("float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool")
DIFFERENTIABLE = ("float32", "float16")
# What is compared: its name, PyTorch's function and lists, the dtypes, and the phase and categories of our file.
CATEGORIES = (
    ("unimplemented", "mps_ops_modifier", ("UNIMPLEMENTED_XFAILLIST",), REAL, "forward", ("unimplemented",)),
    (
        "undefined, or not exact enough",
        "mps_ops_modifier",
        ("UNDEFINED_XFAILLIST", "ON_MPS_XFAILLIST", "SKIPLIST"),
        REAL,
        "forward",
        ("undefined", "tolerance"),
    ),
    (
        "gradient",
        "mps_ops_grad_modifier",
        ("XFAILLIST_GRAD", "ON_MPS_XFAILLIST", "SKIPLIST_GRAD"),
        DIFFERENTIABLE,
        "gradient",
        ("unimplemented", "undefined", "tolerance", "gradient"),
    ),
)


def lists_of_pytorch() -> dict[tuple[str, str], dict | set]:
    """The literal lists of common_mps.py by function and name."""
    spec = importlib.util.find_spec("torch.testing._internal.common_mps")
    found = {}
    for function in ast.walk(ast.parse(Path(spec.origin).read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        for statement in function.body:
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
                continue
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            if isinstance(target, ast.Name) and isinstance(statement.value, (ast.Dict, ast.Set)):
                source = compile(ast.Expression(statement.value), spec.origin, "eval")
                found.setdefault((function.name, target.id), eval(source, {"torch": torch}))  # noqa: S307
    return found


def of_pytorch(lists: list[dict], dtypes: tuple[str, ...], gradient: bool) -> set[tuple[str, str]]:
    """Operators with the dtypes, among those that the CPU computes in, that one of the lists excepts."""
    pairs = set()
    for op in op_db:
        key = op.name + op.variant_test_name
        for dtype in (getattr(torch, name) for name in dtypes):
            if not op.supports_dtype(dtype, "cpu") or (gradient and not op.supports_autograd):
                continue
            if any(key in table and (table[key] is None or dtype in table[key]) for table in lists):
                pairs.add((key, str(dtype)))
    return pairs


def ours(dtypes: tuple[str, ...], phase: str, categories: tuple[str, ...]) -> set[tuple[str, str]]:
    entries = yaml.safe_load(EXCEPTIONS.read_text())
    chosen = [e for e in entries if e["phase"] == phase and e["category"] in categories]
    return {(e["op"], dtype) for e in chosen for dtype in e["dtypes"] if dtype in dtypes}


def comparison() -> list[tuple[str, set, set]]:
    """A category's name, PyTorch's pairs of operator and dtype, and ours."""
    lists = lists_of_pytorch()
    rows = []
    for name, function, tables, dtypes, phase, categories in CATEGORIES:
        theirs = of_pytorch([lists[function, table] for table in tables], dtypes, phase == "gradient")
        rows.append((name, theirs, ours(dtypes, phase, categories)))
    # Up to PyTorch 2.14 the list is of those that are supported.
    supported, unsupported = (lists.get(("mps_ops_modifier", f"{s}SUPPORTED_COMPLEX_OPS")) for s in ("", "UN"))
    complex_names = [op.name + op.variant_test_name for op in op_db if op.supports_dtype(torch.complex64, "cpu")]
    excepted = set(complex_names) - supported if unsupported is None else set(complex_names) & unsupported
    theirs = {(name, "complex64") for name in excepted}
    rows.append(("complex64", theirs, ours(("complex64",), "forward", ("unimplemented", "undefined", "tolerance"))))
    return rows
