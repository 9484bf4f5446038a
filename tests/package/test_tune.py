"""python -m torch_anymps.tune: measured tiles are stored, used by later processes, and never change a result."""

from __future__ import annotations

import pathlib

import pytest

SCRIPT = """
import sys, torch
torch.manual_seed(0)
a, b, x, w = torch.randn(64, 700), torch.randn(700, 48), torch.randn(2, 8, 9, 9), torch.randn(16, 8, 3, 3)
for _ in range({rounds}):
    product = a.to("mps") @ b.to("mps")
    image = torch.nn.functional.conv2d(x.to("mps"), w.to("mps"), padding=1)
    torch.testing.assert_close(product.cpu(), a @ b, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(image.cpu(), torch.nn.functional.conv2d(x, w, padding=1), rtol=1e-4, atol=1e-4)
"""
SHOW = (
    "import torch, torch_anymps\n"
    "with torch_anymps.profile() as profile:"
    + SCRIPT.format(rounds=1).replace("\n", "\n    ")
    + "\nfor k in profile.kernels:\n    print(k.name, k.variant.split(',')[9:10], k.shape)\n"
)


@pytest.fixture
def run(mps, tmp_path, run_python):
    """Runs Python with a cache folder of its own and returns what it printed."""

    def run(*arguments: str) -> str:
        done = run_python(*arguments, env={"ANYMPS_CACHE_DIR": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


def test_winners_are_stored_and_used(run, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(rounds=40))
    report = run("-m", "torch_anymps.tune", str(script))
    assert "tuned 2 products and convolutions" in report
    assert " 0 candidates were not tried" in report
    tiles = tmp_path / "tiles.txt"
    header, *lines = tiles.read_text().splitlines()
    assert header.startswith("torch-anymps tiles 1; ")
    assert len(lines) == 2
    # A later process takes the plan that the file names, whatever the model says: here the winners' tiles, k split.
    shown = {}
    for split_k in (1, 2):
        plans = (line.rpartition(":")[0] for line in lines)
        tiles.write_text("\n".join([header, *(f"{plan}:{split_k}" for plan in plans)]) + "\n")
        shown[split_k] = run(SHOW)
    assert "split-K 2" in shown[2] and "split-K 2" not in shown[1]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "something else\n1 2\n",
        "torch-anymps tiles 1; another device; a driver\nx y\n",
        "{header}\nnot a line\n\n9:9 x",
    ],
    ids=["empty", "foreign", "another device", "broken lines"],
)
def test_other_files_change_nothing(run, tmp_path, content):
    header = run("import torch; print(torch.ops.anymps.tiles_file()[1])").strip()
    (tmp_path / "tiles.txt").write_text(content.format(header=header))
    output = run(SHOW)
    assert "matmul_" in output
    assert ("is not a file of tuned tiles" in output) == content.startswith("something")


def test_the_context_measures_and_ends_with_its_block(mps):
    import torch

    from torch_anymps.tune import Tuning

    kept = pathlib.Path(torch.ops.anymps.tiles_file()[0])
    before = kept.read_text() if kept.exists() else None
    a, b = torch.randn(40, 300), torch.randn(300, 24)
    with pytest.raises(ZeroDivisionError), Tuning() as tuning:
        a.to(mps) @ b.to(mps)
        raise ZeroDivisionError
    assert len(tuning.winners) == 1 and tuning.untried > 0
    assert (kept.read_text() if kept.exists() else None) == before  # nothing is stored after an error
    torch.testing.assert_close((a.to(mps) @ b.to(mps)).cpu(), a @ b, rtol=1e-4, atol=1e-4)


def test_rates_of_the_device_are_measured_stored_and_used(run, tmp_path):
    report = run("-m", "torch_anymps.tune", "--device")
    assert ".match = {.vendor_id = 0x" in report and f"stored in {tmp_path / 'rates.txt'}" in report
    header, words = (tmp_path / "rates.txt").read_text().splitlines()
    assert header.startswith("torch-anymps rates 1; ")
    rates = dict(word.split("=") for word in words.split())
    assert float(rates["launch"]) > 0 and 1e8 < float(rates["bytes"]) < 1e14 and 1e7 < float(rates["simt_f32"]) < 1e15
    assert "rates as python -m torch_anymps.tune --device measured them" in run("-m", "torch_anymps.info")


SHOW_PROFILE = "import json, torch; print(json.loads(torch.ops.anymps.device_info())['profile'])"


@pytest.mark.parametrize("rates", ["launch=1 bytes=x", "something", ""])
def test_other_rates_change_nothing(run, tmp_path, rates):
    header = run("import torch; print(torch.ops.anymps.device_rates_file()[1])").strip()
    before = run(SHOW_PROFILE)
    (tmp_path / "rates.txt").write_text(f"torch-anymps rates 1; another device; a driver\n{rates}\n")
    assert run(SHOW_PROFILE) == before
    (tmp_path / "rates.txt").write_text(f"{header}\n{rates}\n" if rates else "nothing\n")
    output = run(SHOW_PROFILE)
    assert "is not a file of measured rates" in output and output.splitlines()[0] == before.splitlines()[0]


def test_a_row_takes_rates_alone(mps):
    import torch

    assert ".launch = 2e-06" in torch.ops.anymps.device_row("launch=2e-6 units=4")
    with pytest.raises(ValueError, match="expected rates as name=number"):
        torch.ops.anymps.device_row("speed=3")
