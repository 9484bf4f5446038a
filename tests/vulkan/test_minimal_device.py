"""A device without any optional feature (ANYMPS_CAPS=minimal): a part of other files' tests. The whole suite runs so
with the variable set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "file, tests",
    [
        ("test_smoke.py", ""),
        ("test_softmax.py", "float16"),
        ("test_matmul.py", "mm_types"),
        ("test_indexing.py", "scatter or embedding"),
        ("test_complex_half.py", "not samples and not sizes or shape0 or shape1"),
        ("test_kernel_archive.py", "valid_spirv and device"),
        # What lanes exchange goes through shared memory here.
        ("test_sort_scan.py", "selection or many_chunks or ties_and_bits"),
        ("test_reduction.py", "test_large or test_strides"),
    ],
)
def test_with_no_option(file, tests, passes):
    passes(file, tests, ANYMPS_CAPS="minimal")


@pytest.mark.parametrize(
    "file, tests",
    [
        ("test_sort_scan.py", "cumulative or scans or ties_and_bits"),
        ("test_reduction.py", "test_large or test_strides"),
        ("test_matmul.py", "mm_types"),
        # Tiles in 16 KiB of shared memory.
        ("test_strided_copy.py", ""),
    ],
)
def test_with_no_option_by_the_kernels_of_gpus(file, tests, passes):
    """Workgroups of several subgroups, which meet different numbers of exchanges."""
    passes(file, tests, ANYMPS_CAPS="minimal", ANYMPS_KERNELS="gpu")


def test_options_are_off(run_python):
    source = "import torch; print(torch.ops.anymps.device_info())"
    device = json.loads(run_python(source, env={"ANYMPS_CAPS": "minimal"}).stdout)
    assert not any(device["features"][name] for name in ("fp16", "bf16", "coopmat", "atomics", "external memory"))
    assert device["shared_memory_bytes"] <= 16384


def test_no_kernel_asks_for_an_option(run_python):
    """Memory of 8 and 16 bits, addresses, 64-bit integers and the basic subgroup operations: what every device has."""
    source = """if True:
        import sys, torch
        sys.path.insert(0, sys.argv[1])
        from kernel_builds import OPTIONAL_CAPABILITIES, buildable_kernels, capabilities
        names = buildable_kernels()
        left_out = {
            name for name in set(torch.ops.anymps.kernel_names()) - set(names)
            if not capabilities(torch.ops.anymps.kernel_spirv(name)) & OPTIONAL_CAPABILITIES.keys()
        }
        assert left_out == {"conv_nosmem_pack"}, left_out  # which packs for kernels of matrix units
        print(len(names), *sorted(set().union(*(capabilities(torch.ops.anymps.device_spirv(n)) for n in names))))"""
    result = run_python(source, str(Path(__file__).parents[1] / "support"), env={"ANYMPS_CAPS": "minimal"})
    assert result.returncode == 0, result.stderr
    count, *numbers = map(int, result.stdout.split())
    assert count > 1000
    # Shader, Int64, Int16, Int8, GroupNonUniform, StorageBuffer16BitAccess, PhysicalStorageBufferAddresses
    assert set(numbers) <= {1, 11, 22, 39, 61, 4433, 5347}
