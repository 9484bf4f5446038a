"""torch_anymps.profile(): GPU times by kernel."""

from __future__ import annotations

import time

import pytest
import torch

import torch_anymps


def test_calls_times_bytes_and_operations(mps):
    a, b = torch.randn(256, 128, device=mps), torch.randn(128, 64, device=mps)
    x = torch.randn(1 << 20, device=mps)
    torch.mps.synchronize()
    began = time.perf_counter()
    with torch_anymps.profile() as profile:
        for _ in range(3):
            product, total = a @ b, x + x
    wall = time.perf_counter() - began
    assert product.shape == (256, 64) and total[0].item() == 2 * x[0].item()
    products = [k for k in profile.kernels if k.name.startswith("matmul_") and k.operations]
    assert sum(k.calls for k in products) == 3
    assert products[0].operations == 2 * 256 * 64 * 128
    [add] = [k for k in profile.kernels if k.name.startswith("add")]
    assert add.calls == 3
    assert add.bytes == 3 * x.nbytes
    assert 0 < add.seconds <= profile.seconds <= wall
    assert add.bytes_per_second == pytest.approx(3 * add.bytes / add.seconds)
    assert add.name in profile.table()
    assert [k.seconds for k in profile.kernels] == sorted((k.seconds for k in profile.kernels), reverse=True)


def test_more_commands_than_a_chunk_of_timestamps(mps):
    x = torch.zeros(8, device=mps)
    with torch_anymps.profile() as profile:
        for _ in range(3000):
            x += 1
    assert sum(k.calls for k in profile.kernels) == 3000
    assert x.eq(3000).all()


def test_copies_and_fills_are_commands_too(mps):
    x = torch.randn(1 << 16, device=mps)
    with torch_anymps.profile() as profile:
        x.cpu()
        x.clone().zero_()
    assert {"vkCmdFillBuffer"} <= {k.name for k in profile.kernels}


def test_profiles_do_not_nest_and_end_with_an_error(mps):
    with pytest.raises(RuntimeError, match="profiles do not nest"), torch_anymps.profile(), torch_anymps.profile():
        pass
    with pytest.raises(ZeroDivisionError), torch_anymps.profile() as profile:
        torch.ones(4, device=mps).neg()
        raise ZeroDivisionError
    assert profile.kernels
    with pytest.raises(RuntimeError, match="No profile"):
        torch.ops.anymps.stop_profile()


def test_nothing_is_taken_outside(mps):
    with torch_anymps.profile() as profile:
        pass
    torch.ones(4, device=mps).neg().sum().item()
    with torch_anymps.profile() as second:
        torch.ones(4, device=mps).exp_()
    assert profile.kernels == [] and profile.seconds == 0
    assert not any("neg" in k.name for k in second.kernels)


def test_replays_of_graphs_show_their_kernels(mps):
    x = torch.zeros(64, device=mps)
    graph = torch.accelerator.Graph()
    with graph:
        x += 1
        x.exp()
    with torch_anymps.profile() as profile:
        for _ in range(5):
            graph.replay()
    calls = {k.name.split("_")[0]: k.calls for k in profile.kernels}
    assert calls["add"] == calls["exp"] == 5
    assert x.eq(5).all()
