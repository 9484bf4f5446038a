"""tools/compare_spirv.py leaves names out and nothing else."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOL = Path(__file__).resolve().parents[2] / "tools" / "compare_spirv.py"


def text(string):
    data = string.encode() + b"\0"
    return struct.unpack(f"<{(len(data) + 3) // 4}I", data.ljust((len(data) + 3) // 4 * 4, b"\0"))


def module(entry="main", name="x", constant=7, interface=(3,)):
    """OpEntryPoint, OpName, OpConstant: not a whole module, but one that is read as far as the tool reads."""
    instructions = [(15, 5, 1, *text(entry), *interface), (5, 2, *text(name)), (43, 4, 2, constant)]
    words = [0x07230203, 0x00010500, 0, 9, 0]
    for opcode, *operands in instructions:
        words += [(len(operands) + 1) << 16 | opcode, *operands]
    return struct.pack(f"<{len(words)}I", *words)


def compare(tmp_path, before, after, *options):
    for side, modules in (("before", before), ("after", after)):
        (tmp_path / side).mkdir()
        for name, data in modules.items():
            (tmp_path / side / f"{name}.spv").write_bytes(data)
    command = [sys.executable, TOOL, tmp_path / "before", tmp_path / "after", *options]
    result = subprocess.run(command, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def test_names_are_left_out(tmp_path):
    after = {"sum": module("a_longer_entry", "y_and_more")}
    assert compare(tmp_path, {"sum": module()}, after) == (0, "1 kernels are the same.\n")


@pytest.mark.parametrize(
    "changed",
    [module(constant=8), module(interface=()), module(interface=(4,)), module() + struct.pack("<I", 1 << 16 | 253)],
)
def test_all_else_counts(tmp_path, changed):
    code, output = compare(tmp_path, {"sum": module(), "same": module()}, {"sum": changed, "same": module()})
    assert code == 1
    assert output.startswith("sum: ") and len(output.splitlines()) == 1


def test_kernels_may_have_new_names(tmp_path):
    before = {"matmul_sum": module(), "conv_sum": module(constant=8)}
    after = {"matmul_reduce": module("other"), "conv_reduce": module(constant=8)}
    assert compare(tmp_path, before, after, "--renamed", r"(\w+)_sum=\1_reduce") == (0, "2 kernels are the same.\n")


def test_missing_and_new_kernels(tmp_path):
    code, output = compare(tmp_path, {"a": module(), "b": module()}, {"a": module(), "c": module()})
    assert code == 1
    assert output.splitlines() == ["b: no kernel b after.", "c: no such kernel before."]


def test_a_damaged_module(tmp_path):
    code, output = compare(tmp_path, {"a": module()}, {"a": module()[:-4]})
    assert code == 1
    assert "a damaged SPIR-V module" in output


def test_an_archive_is_the_same_as_itself():
    site = next(Path(path).parent for path in torch.ops.loaded_libraries if "torch_anymps" in path)
    result = subprocess.run([sys.executable, TOOL, site, site / "kernels.bin"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(result.stdout.split()[0]) > 1000
