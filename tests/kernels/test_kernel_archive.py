"""Every kernel of the archive: its name, its SPIR-V, and that the driver takes it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from kernel_builds import buildable_kernels, capabilities, instructions

SPIRV_MAGIC = 0x07230203
UNKNOWN_TO_OLD_VALIDATORS = {
    6022: "CooperativeMatrixKHR",
    5116: "BFloat16TypeKHR",
    5118: "BFloat16CooperativeMatrixKHR",
}


@pytest.fixture(scope="module")
def kernels() -> dict[str, torch.Tensor]:
    return {name: torch.ops.anymps.kernel_spirv(name) for name in torch.ops.anymps.kernel_names()}


def test_names_are_unique_and_every_kernel_is_spirv(kernels):
    names = torch.ops.anymps.kernel_names()
    assert names
    assert len(set(names)) == len(names)
    for name, words in kernels.items():
        assert words[0].item() == SPIRV_MAGIC, name
        assert capabilities(words), name


POINTER, STRUCT, VARIABLE, MEMBER_DECORATE, PUSH_CONSTANT, NON_WRITABLE = 32, 30, 59, 72, 9, 24


def test_arguments_are_read_only(kernels):
    """Structs behind pointers among the push constants: drivers may load them once a workgroup, and again."""
    seen = 0
    for name, words in kernels.items():
        structs, pointees, pushed, marked = {}, {}, None, set()
        for opcode, operands in instructions(words):
            if opcode == STRUCT:
                structs[operands[0]] = operands[1:]
            elif opcode == POINTER:
                pointees[operands[0]] = operands[2]
            elif opcode == VARIABLE and operands[2] == PUSH_CONSTANT:
                pushed = structs[pointees[operands[0]]]
            elif opcode == MEMBER_DECORATE and operands[2] == NON_WRITABLE:
                marked.add(tuple(operands[:2]))
        arguments = [pointees[t] for t in pushed or () if pointees.get(t) in structs]
        seen += len(arguments)
        assert marked == {(struct, m) for struct in arguments for m in range(len(structs[struct]))}, name
    assert seen > 200


def test_an_unknown_kernel_is_an_error_that_names_it():
    with pytest.raises(RuntimeError, match="no_such_kernel"):
        torch.ops.anymps.kernel_spirv("no_such_kernel")


@pytest.mark.parametrize("of", ["the archive", "the device"])
def test_every_kernel_is_valid_spirv(kernels, tmp_path, of):
    validator = shutil.which("spirv-val")
    assert validator, "spirv-val is not installed (Debian, Ubuntu: apt install spirv-tools)"
    if of == "the device":  # with what this device lacks done in its other way
        kernels = {name: torch.ops.anymps.device_spirv(name) for name in buildable_kernels()}

    def errors(item: tuple[str, torch.Tensor]) -> str:
        name, words = item
        if UNKNOWN_TO_OLD_VALIDATORS.keys() & capabilities(words):
            return ""  # spirv-val before 2024 refuses the capability itself
        file = tmp_path / f"{name}.spv"
        file.write_bytes(words.numpy().tobytes())
        command = [validator, "--target-env", "vulkan1.2", "--allow-localsizeid", "--scalar-block-layout", str(file)]
        result = subprocess.run(command, capture_output=True, text=True)
        return f"{name}: {result.stdout}{result.stderr}" if result.returncode else ""

    with ThreadPoolExecutor(2) as pool:
        invalid = [text for text in pool.map(errors, kernels.items()) if text]
    assert not invalid, "\n".join(invalid)


def test_the_driver_builds_every_kernel(mps):
    """But for what shared memory leaves out (of devices below 32 KiB, of attention): launchers choose others there."""
    small = json.loads(torch.ops.anymps.device_info())["shared_memory_bytes"] < 32768
    built = 0
    for name in buildable_kernels():
        try:
            torch.ops.anymps.build_kernel(name)
            built += 1
        except RuntimeError as error:
            assert (small or name.startswith("flash_")) and "bytes of shared memory" in str(error), name
    assert built > 1000


def shared_words(words: torch.Tensor) -> int:
    """The elements of a module's one array in shared memory."""
    op_constant, op_type_array, op_type_pointer, op_variable, workgroup = 43, 28, 32, 59, 4
    constants, arrays, pointers = {}, {}, {}
    for code, operands in instructions(words):
        if code == op_constant:
            constants[operands[1]] = operands[2]
        elif code == op_type_array:
            arrays[operands[0]] = operands[2]
        elif code == op_type_pointer:
            pointers[operands[0]] = operands[2]
        elif code == op_variable and operands[2] == workgroup:
            return constants[arrays[pointers[operands[0]]]]
    raise AssertionError("no array in shared memory")


def test_attention_is_chosen_by_the_shared_memory_that_it_takes(kernels):
    source = (Path(__file__).parents[2] / "csrc/ops/attention/flash.cpp").read_text()
    rows = re.findall(r'{Fragments::\w+, \d+, \d+, \w+\("(flash_\w+)"\), \d+, \d+, (\d+)}', source)
    assert len(rows) > 15
    for name, size in rows:
        assert 16 * shared_words(kernels[name + "_f16"]) == int(size), name
