"""Launchers and libraries connect their processes on mps, and each process has its device under every name it uses."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
ALONE = {name: None for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "ANYMPS_DEVICE")}


def launch(*command, succeeds=True, timeout=300):
    """Runs Python with these arguments; what the processes printed as JSON, by rank, and everything they wrote."""
    variables = {name: value for name, value in os.environ.items() if name not in ALONE}
    variables["OMP_NUM_THREADS"] = "1"
    arguments = [sys.executable, *map(str, command)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=variables, timeout=timeout)
    output = done.stdout + done.stderr
    assert (done.returncode == 0) == succeeds, output
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank"')]
    return {result.pop("rank"): result for result in results}, output


def torchrun(script, *args, **options):
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    return launch(*start, SCRIPTS / script, *args, **options)


def test_torchrun(mps):
    """barrier, DDP, FSDP, set_device and tensors by the index LOCAL_RANK, as scripts for CUDA have them."""
    results, output = torchrun("torchrun_ddp.py")
    other = "RuntimeError, ValueError"
    assert results[0] == results[1] == {"gradient": 1.5, "sum": 3.0, "devices": ["mps:0"] * 4, "other": other}
    # Where there are fewer devices than processes, the first of them says so.
    assert output.count("2 processes of this machine share mps devices: there is 1 device.") == (one_device() is True)


def one_device() -> bool:
    import torch_anymps

    return torch_anymps.device_count() == 1


@pytest.fixture(scope="module")
def trained_by_accelerate():
    """Weights of one process that takes the batches of both."""
    results, _ = launch(SCRIPTS / "accelerate_steps.py", 4)
    assert results[0]["processes"] == 1
    return results[0]["weights"]


FSDP = pytest.param(("--use_fsdp", "--fsdp_version", 2), "FSDP", marks=pytest.mark.nightly)


@pytest.mark.parametrize(("options", "kind"), [((), "MULTI_GPU"), FSDP], ids=["ddp", "fsdp"])
def test_accelerate_launch(mps, trained_by_accelerate, options, kind):
    start = ("-m", "accelerate.commands.accelerate_cli", "launch", "--num_processes", 2, "--main_process_port", 0)
    results, _ = launch(*start, *options, SCRIPTS / "accelerate_steps.py", 2)
    shards = kind == "FSDP"
    expected = {"type": kind, "processes": 2, "device": "mps:0", "sharded": shards, "gathered": [0.0, 1.0]}
    for result in results.values():
        assert result.items() >= expected.items()
    assert results[1]["weights"] == ({} if shards else results[0]["weights"])
    for name, values in trained_by_accelerate.items():
        assert results[0]["weights"][name] == pytest.approx(values, abs=2e-6), name


def test_accelerate_refuses_unconnected_copies(mps):
    _, output = torchrun("accelerate_steps.py", 2, "undone", succeeds=False)
    assert "2 processes were launched to train together on mps, but accelerate would train 2 unconnected" in output


@pytest.mark.nightly
def test_trainer(mps, tmp_path):
    """Hugging Face's Trainer: two processes with half the batch each train as one with all of it."""
    together, _ = torchrun("trainer.py", tmp_path, 2)
    alone, _ = launch(SCRIPTS / "trainer.py", tmp_path, 4)
    assert together[0]["losses"] == pytest.approx(alone[0]["losses"], abs=2e-4)
    assert together[0]["processes"] == 2 and alone[0]["processes"] == 1


@pytest.mark.nightly
def test_lightning(mps):
    bounds = {"ddp": 0, "fsdp": 1e-6, "fsdp,bf16-mixed": 2e-2}
    results, _ = launch(SCRIPTS / "two_of_lightning.py", *bounds)
    for how, bound in bounds.items():
        first, second = results[0][how], results[1][how]
        assert first["weights"] == pytest.approx(second["weights"], abs=0), how
        assert first["weights"] == pytest.approx(results[0]["ddp"]["weights"], abs=bound), how
        assert first["processes"] == 2 and first["device"] == "mps:0", how


def test_processes_end_with_collectives_under_way(mps):
    """A callback that runs while the interpreter ends would abort the process."""
    _, output = launch(SCRIPTS / "exit_pending.py")
    assert "terminate" not in output


@pytest.mark.nightly
@pytest.mark.parametrize("destroyed", [(), ("destroyed",)], ids=["", "destroyed"])
def test_processes_end_with_messages_that_nobody_takes(mps, destroyed):
    """Threads that wait for them hold up neither destroy_process_group() nor the end, though the other rank lives."""
    results, output = launch(SCRIPTS / "exit_messages.py", *destroyed)
    assert results[0]["exit"] == 0 and "terminate" not in output, output


# --- devices of one process


def test_index_of_the_launcher(run_python, mps):
    source = """
import torch, torch_anymps
x = torch.ones(2, device="mps:3")
assert x.device == torch.device("mps:0") and x.to(torch.device("mps", 3)).sum().item() == 2
torch.accelerator.set_device_index(3)
torch.mps.set_device(3)
assert torch.accelerator.current_device_index() == 0 and torch.mps.device_count() == 1
for refused in (lambda: torch.ones(1, device="mps:2"), lambda: torch.mps.set_device(1)):
    try:
        refused()
        raise SystemExit("not refused")
    except RuntimeError as error:
        assert "mps:0" in str(error), error
"""
    done = run_python(source, env={**ALONE, "LOCAL_RANK": "3"})
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.fixture
def some_devices(software, tmp_path):
    """Variables by which processes see several devices, where the machine has one: a software driver named twice."""
    manifests = glob.glob("/usr/share/vulkan/icd.d/lvp*.json")
    if not software or not manifests or "VK_DRIVER_FILES" in os.environ:
        return {}
    copy = shutil.copy(manifests[0], tmp_path)
    return {"VK_DRIVER_FILES": f"{manifests[0]}:{copy}"}


def test_more_processes_than_devices(run_python, some_devices):
    """They share them in turn; set_device() takes the number of the device that a process has, and no other."""
    source = """
import sys, torch, torch_anymps
rank, count = int(sys.argv[1]), torch_anymps.device_count()
assert torch.ones(2, device=f"mps:{rank}").sum().item() == 2
for index in range(count):
    try:
        torch_anymps.set_device(index)
        print(count, index == rank % count)
    except RuntimeError as error:
        assert "comes too late" in str(error)
"""
    counts = set()
    for rank in (2, 3):
        done = run_python(source, str(rank), env={**ALONE, **some_devices, "LOCAL_RANK": str(rank)}, fresh=True)
        assert done.returncode == 0, done.stderr
        count, right = done.stdout.split()
        assert right == "True"
        counts.add(int(count))
    assert len(counts) == 1 and (not some_devices or counts == {2})


def test_set_device(run_python, mps):
    source = """
import torch, torch_anymps
count = torch_anymps.device_count()
assert count >= 1
for index in (-1, count):
    try:
        torch_anymps.set_device(index)
        raise SystemExit("not refused")
    except RuntimeError as error:
        assert str(error).startswith(f"Invalid device index {index}: this machine has {count} devices"), error
torch_anymps.set_device(count - 1)
assert torch.ones(1, device=f"mps:{count - 1}").item() == 1
torch_anymps.set_device(count - 1)  # what it has already
if count > 1:
    try:
        torch_anymps.set_device(0)
        raise SystemExit("not refused")
    except RuntimeError as error:
        assert "comes too late" in str(error)
"""
    done = run_python(source, env=ALONE)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
