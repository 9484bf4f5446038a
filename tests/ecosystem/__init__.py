"""Libraries that stand on PyTorch, each run on the CPU and on mps. Models come from configurations, not downloads."""

from __future__ import annotations

import copy
import gc
import importlib
import os

import pytest
import torch

# `make test` has few of the libraries; `make test-ecosystem` has all, and one that is missing there is an error.
REQUIRED = os.environ.get("ANYMPS_ECOSYSTEM", "0") not in ("", "0")


def library(name: str):
    """The module `name`. Where it is not installed the calling file is skipped, with the command that has it."""
    if REQUIRED:
        return importlib.import_module(name)
    package = name.split(".")[0]
    return pytest.importorskip(name, reason=f"{package} is not installed here: run `make test-ecosystem`")


def agree(run, *, tolerance: float = 1e-3) -> None:
    """run(device) gives the same numbers on mps as on the CPU: numbers and tensors, in any nesting.

    Both begin with the same random state; random numbers themselves differ between the devices, so `run` draws on the
    CPU. tolerance is relative and absolute. Fails too when nothing was allocated on mps.
    """
    results = []
    for device in (torch.device("cpu"), torch.device("mps")):
        torch.manual_seed(0)
        gc.collect()  # what earlier tests left in cycles would be freed under way, and hide what is allocated
        before = torch.mps.current_allocated_memory()
        torch.accelerator.reset_peak_memory_stats()
        results.append(run(device))
    assert torch.accelerator.max_memory_allocated() > before, "nothing ran on mps"
    expected, actual = results
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, check_device=False)


def train(model, loss_of, device, *, steps: int = 5, optimizer=torch.optim.SGD, lr: float = 0.05) -> list[float]:
    """Losses of `steps` steps of a copy of the model. loss_of(model) gives the loss of a batch that does not change."""
    model = copy.deepcopy(model).to(device).train()
    stepper = optimizer(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        stepper.zero_grad()
        loss = loss_of(model)
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], f"the model does not learn: {losses}"
    return losses
