"""Ray Train's TorchTrainer trains on mps: two workers give the weights of one process on the whole batches."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

from . import library

library("ray.train")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_train.py"
STEPS = 6


def trained_alone() -> float:
    spec = importlib.util.spec_from_file_location("ray_train_example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model = example.make_model().to("mps")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        x, y = (part.to("mps") for part in example.make_batch(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return sum(parameter.detach().abs().sum() for parameter in model.parameters()).item()


def test_two_workers(mps, no_fallback, tmp_path):
    variables = {
        **{name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")},
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, EXAMPLE, "--steps", str(STEPS), "--storage", tmp_path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=variables, timeout=400)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"loss"')]
    assert done.returncode == 0 and len(lines) == 1, done.stdout + done.stderr
    result = json.loads(lines[0])
    assert result["device"] == "mps:0"
    assert abs(result["weights"] - trained_alone()) < 1e-3
