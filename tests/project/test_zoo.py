"""The zoo of benchmarks/models: networks are built at full size, and the command measures, fails and compares."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

MODELS = Path(__file__).resolve().parents[2] / "benchmarks" / "models"
sys.path.insert(0, str(MODELS))
import zoo_step  # noqa: E402
from zoo_networks import ZOO  # noqa: E402

# Millions of parameters that the papers or their authors' code give, of networks that are built in full.
PUBLISHED = {
    "ResNet50": 25.557,
    "EfficientNet-B0": 5.289,
    "MobileNetV3-L": 5.483,
    "ConvNeXt-T": 28.589,
    "ViT-B/16": 86.568,
    "MLP-Mixer-S/16": 18.528,
    "U-Net": 31.04,
    "GPT-2": 124.44,
    "Llama-1B": 1235.814,
    "T5-small": 60.507,
    "Diffusion": 274.06,
}
SMALLEST = ("MLP", "DeepFM")


@pytest.mark.parametrize("network", ZOO, ids=lambda network: network.name)
def test_a_network_of_full_size_has_a_loss(network):
    """Shapes alone: on the meta device."""
    with torch.device("meta"):
        task = network.builder(False)
        loss = task.loss(task.model, *task.batch)
    assert loss.shape == () and loss.requires_grad
    assert task.optimizer in ("adamw", "sgd")
    millions = sum(parameter.numel() for parameter in task.model.parameters()) / 1e6
    assert millions == pytest.approx(PUBLISHED.get(network.name, millions), rel=1e-4)


@pytest.mark.parametrize("name", SMALLEST)
def test_two_steps_follow_the_cpu(mps, no_fallback, name):
    task = zoo_step.build(next(network for network in ZOO if network.name == name), tiny=True)
    losses = {}
    for device in ("mps", "cpu"):
        step = zoo_step.make_step(zoo_step.moved(task, device), device, train=True, amp=False)
        losses[device] = torch.stack([step(), step()]).cpu()
    torch.testing.assert_close(losses["mps"], losses["cpu"], rtol=1e-4, atol=1e-5)


def zoo(run_python, *arguments: str):
    return run_python(MODELS / "zoo.py", "--tiny", "--seconds-per", "0.01", "--dtype", "fp32", *arguments)


def test_files_of_two_devices_are_compared(mps, run_python, tmp_path):
    files = [str(tmp_path / f"{device}.json") for device in ("mps", "cpu")]
    for device, file in zip(("mps", "cpu"), files):
        done = zoo(run_python, "--device", device, "--networks", ",".join(SMALLEST), "--json", file)
        assert done.returncode == 0, done.stderr
        result = json.loads(Path(file).read_text())
        assert len(result["rows"]) == len(SMALLEST) and result["notes"] == []
        assert all(figure > 0 for figures in result["rows"].values() for figure in figures)
    chart = tmp_path / "zoo.png"
    done = run_python(MODELS / "zoo.py", "--compare", *files, "--chart", str(chart))
    assert done.returncode == 0, done.stderr
    assert "mps / cpu, geometric mean: all " in done.stdout and "mps / cpu, worst: " in done.stdout
    assert "first loss" not in done.stdout  # of networks whose losses are apart
    assert chart.exists() or "no chart: " in done.stdout


def test_a_network_over_the_limit_is_a_note_and_the_others_go_on(run_python, tmp_path):
    file = tmp_path / "cpu.json"
    done = zoo(
        run_python, "--device", "cpu", "--networks", ",".join(SMALLEST), "--limit", "0.0001", "--json", str(file)
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert [figures for figures in result["rows"].values()] == [[None] * 3] * 2
    assert [note.split(": ")[1] for note in result["notes"]] == ["took more than 0.0001 s"] * 2


def test_who_is_stopped_leaves_what_was_measured(tmp_path):
    file = tmp_path / "cpu.json"
    command = [sys.executable, str(MODELS / "zoo.py"), "--device", "cpu", "--tiny", "--json", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    rows = (line for line in process.stdout if line.startswith("| vision"))
    next(rows)
    process.terminate()
    assert process.wait(60) == 143
    assert "vision | ResNet50 | train | fp32" in json.loads(file.read_text())["rows"]


def test_an_unknown_network_is_refused(run_python, tmp_path):
    done = zoo(run_python, "--device", "cpu", "--networks", "no such", "--json", str(tmp_path / "cpu.json"))
    assert done.returncode == 1 and "['no such'] are not in the zoo" in done.stderr
