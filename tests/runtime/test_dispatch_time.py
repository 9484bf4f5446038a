"""Submissions that no kernel driver takes for hung: ANYMPS_SUBMISSION_SECONDS makes every dispatch a long one."""

from __future__ import annotations

import json

import pytest
import torch


@pytest.fixture
def split(mps):
    if json.loads(torch.ops.anymps.device_info())["profile"]["name"].startswith("NVIDIA"):
        pytest.skip("dispatches stay whole on NVIDIA's driver: its owner is csrc/vulkan/device_profile.cpp")


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize(
    "file, tests, kernels",
    [
        ("test_smoke.py", "", ""),
        ("test_command_graph.py", "not memory", ""),
        ("test_matmul.py", "mm_types", ""),
        ("test_matmul.py", "mm_types", "gpu"),
        ("test_conv.py", "kinds_in_half or depthwise or weight_gradient", ""),
        ("test_conv_epilogues.py", "channels_last or depthwise", ""),
        ("test_product_epilogues.py", "operands and dtype0", "gpu"),
        ("test_indexed_rows.py", "gradients or copied", "gpu"),
        ("test_rnn.py", "low_precision", "gpu"),
        ("test_attention.py", "forward_and_backward or head_sizes", ""),
        ("test_sort_scan.py", "many_chunks", "gpu"),
        ("test_reduction.py", "test_large", "gpu"),
    ],
)
def test_in_parts(file, tests, kernels, passes):
    passes(file, tests, ANYMPS_SUBMISSION_SECONDS="1e-6", ANYMPS_KERNELS=kernels)


def test_parts_share_bytes_and_operations(run_python, split):
    """8 MiB at 25 GB/s are 336 us, and 2 * 512^3 operations at 400 GFLOP/s 671 us: four and seven parts of 100 us."""
    script = """if True:
        import torch, torch_anymps
        x, y = torch.ones(1 << 20, device="mps"), torch.ones(512, 512, device="mps")
        x.exp(), y @ y
        torch.mps.synchronize()
        with torch_anymps.profile() as profile:
            z, p = x.exp(), y @ y
        assert z.sub(2.718282).abs().max() < 1e-5 and p.eq(512).all()
        for name in ("exp", "matmul"):
            rows = [k for k in profile.kernels if k.name.startswith(name)]
            print(name, sum(k.calls for k in rows), sum(k.calls * k.bytes for k in rows),
                  sum(k.calls * k.operations for k in rows))"""
    one = run_python(script, env={"ANYMPS_SUBMISSION_SECONDS": None}).stdout.split()
    parts = run_python(script, env={"ANYMPS_SUBMISSION_SECONDS": "1e-4"}).stdout.split()
    assert one[:3] == ["exp", "1", str(8 << 20)] and one[4:6] == ["matmul", "1"] and int(one[7]) == 2 << 27
    assert parts[:2] == ["exp", "4"] and parts[4:6] == ["matmul", "7"]
    for i in (2, 6, 7):
        assert int(parts[i]) == pytest.approx(int(one[i]), rel=1e-4)


@pytest.mark.parametrize("seconds", ["0", "", "-1"])
def test_no_limit(seconds, run_python, mps):
    script = "import torch; print(torch.ones(1 << 20, device='mps').sum().item())"
    result = run_python(script, env={"ANYMPS_SUBMISSION_SECONDS": seconds})
    assert result.stdout == "1048576.0\n", result.stderr
