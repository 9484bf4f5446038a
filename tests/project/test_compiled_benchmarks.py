"""The benchmarks of whole compiled networks: sizes are the published ones, and the commands measure and sum up."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS / "compile"), str(BENCHMARKS / "models")]
import over_eager  # noqa: E402
from replayed_networks import NETWORKS  # noqa: E402

# Millions of parameters: of the models' cards, and of what the paper's authors run in their place.
PUBLISHED = {"SmolLM2-135M": 134.515, "ResNet50": 25.557, "GPT-2 token": 124.44}


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_a_network_of_full_size_has_a_result(network):
    """Shapes alone: on the meta device."""
    with torch.device("meta"):
        task = network.builder(False)
        result = task.loss(task.model, *task.batch)
    assert result.numel() == 1
    assert result.requires_grad == (network.trade == "paper")
    millions = sum(parameter.numel() for parameter in task.model.parameters()) / 1e6
    assert millions == pytest.approx(PUBLISHED.get(network.name, millions), rel=1e-4)


def test_a_token_is_decoded_behind_the_cached_ones():
    """Token by token, as the same network finds them when it sees the whole sequence."""
    model = next(network for network in NETWORKS if network.trade == "decoding").builder(True).model.float()
    tokens = torch.randint(0, 50, (1, 8))
    with torch.no_grad():
        wanted = model.gpt.eval()(tokens).argmax(-1)
        found = [model(tokens[:, i : i + 1], torch.tensor([i])) for i in range(8)]
    torch.testing.assert_close(torch.cat(found, 1), wanted)


def run(run_python, tmp_path, script: str, *arguments: str) -> tuple[dict, str]:
    file = tmp_path / "mps.json"
    given = ("--device", "mps", "--tiny", "--seconds-per", "0.01", "--dtype", "fp32", "--json", str(file))
    done = run_python(BENCHMARKS / "compile" / script, *given, *arguments)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["notes"] == [] and all(figure > 0 for row in result["rows"].values() for figure in row)
    return result, done.stdout


def test_networks_are_compiled_ahead_and_measured_over_eager(mps, run_python, tmp_path):
    result, text = run(run_python, tmp_path, "over_eager.py", "--networks", "MLP", "--ahead", "2")
    assert list(result["rows"]) == ["small | MLP | train | fp32", "small | MLP | infer | fp32"]
    assert "2 of 2 compiled ahead by 2 processes" in text
    assert "train, fp32: compiled / eager " in text and "geometric mean of 1; below 1.0: " in text


def test_replayed_steps_are_measured_and_compared(mps, run_python, tmp_path):
    result, _ = run(run_python, tmp_path, "replayed.py", "--networks", "SmolVLA expert", "--ahead", "0")
    assert list(result["rows"]) == ["paper | SmolVLA expert | backward | fp32"]
    file = str(tmp_path / "mps.json")
    done = run_python(BENCHMARKS / "compile" / "replayed.py", "--compare", file, file)
    assert done.returncode == 0, done.stderr
    assert " | 1.00 | " in done.stdout and "first loss" not in done.stdout


def test_the_summary_names_what_is_slow_or_wrong(capsys):
    over_eager.summary(
        {
            "a | fast | train | amp": [2.0, 1.0, 2.0, 9.0, 1.0, 1.0],
            "a | slow | train | amp": [1.0, 2.0, 0.5, 9.0, 1.0, 1.1],
            "a | none | train | amp": [None] * 6,
        }
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "train, amp: compiled / eager 1.000, geometric mean of 2; below 1.0: slow 0.50",
        "a, slow, train, amp: first loss 1.1, eager 1",
    ]
