"""Which kernels a device can build, and what its driver's compiler says of them.

As a program it builds every kernel, or the pipelines of its arguments ("add_f32_dense[256,0]"), and prints JSON:
{"device": name, "driver": text, "subgroup_size": lanes, "excluded": [pattern of kernels that the device does not get],
"failed": {kernel: message}, "statistics": {kernel: {label: value}}}. Statistics need ANYMPS_PIPELINE_STATISTICS=1.
"""

from __future__ import annotations

import json
import sys
from itertools import takewhile

import torch

OP_CAPABILITY, OP_SPEC_CONSTANT, OP_DECORATE, SPEC_ID = 17, 50, 71, 1
COOPERATIVE_MATRIX, HALF_ARITHMETIC = 6022, 9
# SPIR-V capability -> optional feature of the device, as torch.ops.anymps.device_info names it.
OPTIONAL_CAPABILITIES = {COOPERATIVE_MATRIX: "coopmat", 5116: "bf16", 5118: "bf16 coopmat", 6033: "atomics"}


def instructions(words: torch.Tensor):
    """Opcode and operands of each instruction of a module."""
    at, values = 5, words.tolist()
    while at < len(values):
        yield values[at] & 0xFFFF, values[at + 1 : at + (values[at] >> 16)]
        at += values[at] >> 16


def capabilities(words: torch.Tensor) -> set[int]:
    """The operands of the OpCapability instructions, which come first in a module."""
    return {operands[0] for _, operands in takewhile(lambda i: i[0] == OP_CAPABILITY, instructions(words))}


def first_constants(name: str) -> list[int]:
    """What a matrix kernel is launched with: workgroups of whole subgroups of 32 (other kernels: their defaults)."""
    words = torch.ops.anymps.kernel_spirv(name)
    if COOPERATIVE_MATRIX not in capabilities(words):
        return []
    workgroup = None
    for code, operands in instructions(words):
        if code == OP_DECORATE and operands[1:] == [SPEC_ID, 0]:
            workgroup = operands[0]
        elif code == OP_SPEC_CONSTANT and operands[1] == workgroup and operands[2] % 32 == 0:
            return [operands[2], 32]
    return [128, 32]


def buildable_kernels() -> list[str]:
    """The kernels whose optional features the device has."""
    features = json.loads(torch.ops.anymps.device_info())["features"]

    def fits(name: str) -> bool:
        numbers = capabilities(torch.ops.anymps.kernel_spirv(name)) & OPTIONAL_CAPABILITIES.keys()
        if not all(features[OPTIONAL_CAPABILITIES[number]] for number in numbers):
            return False
        # Most kernels that name halves only load, store and convert them, which every device can.
        return features["fp16"] or HALF_ARITHMETIC not in capabilities(torch.ops.anymps.device_spirv(name))

    return [name for name in torch.ops.anymps.kernel_names() if fits(name)]


def parsed(label: str) -> tuple[str, list[int]]:
    """Name and specialization constants of a pipeline."""
    name, _, constants = label.removesuffix("]").partition("[")
    return name, [int(number) for number in constants.split(",") if number]


def main() -> None:
    info = json.loads(torch.ops.anymps.device_info())
    result = {
        "device": info["name"],
        "driver": info["driver"],
        "subgroup_size": info["subgroup_size"],
        "failed": {},
        "statistics": {},
    }
    result["excluded"] = [exclusion["kernels"] for exclusion in info["profile"]["excluded"]]
    pipelines = {label: parsed(label) for label in sys.argv[1:]}
    for label, how in (pipelines or {n: (n, first_constants(n)) for n in buildable_kernels()}).items():
        try:
            result["statistics"][label] = dict(zip(*torch.ops.anymps.kernel_statistics(*how)))
        except RuntimeError as error:
            result["failed"][label] = str(error).splitlines()[0]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
