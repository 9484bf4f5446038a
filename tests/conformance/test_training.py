"""Whole training runs: the losses on mps follow those of the CPU, and mixed precision converges."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

STEPS = 100


class Classifier(nn.Module):
    """Two layers of attention over tokens, a decision from the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(40, 32), nn.Parameter(torch.randn(12, 32) / 8)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decide = nn.Linear(32, 2)

    def forward(self, tokens):
        return self.decide(self.layers(self.embed(tokens) + self.places)[:, 0])


def sentences():
    """Sentences of 12 tokens; the label is whether token 7 is among them."""
    tokens = torch.randint(8, 40, (64, 12))
    labels = torch.arange(64) % 2
    tokens[labels == 1, 1 + torch.arange(32) % 11] = 7
    return Classifier(), tokens, labels


def images():
    net = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(16, 10)),
    )
    labels = torch.arange(64) % 10
    return net, torch.randn(10, 1, 8, 8)[labels] + 0.5 * torch.randn(64, 1, 8, 8), labels


def losses(task, device: str, amp: torch.dtype | None = None, steps: int = STEPS, nudge: float = 0.0) -> torch.Tensor:
    torch.manual_seed(0)
    model, inputs, labels = task()
    model = copy.deepcopy(model).to(device).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 + nudge)
    inputs, labels = inputs.to(device), labels.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device, enabled=amp is torch.float16)
    curve = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, amp or torch.bfloat16, enabled=amp is not None):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        curve.append(loss.detach())
    return torch.stack(curve).float().cpu()


@pytest.mark.parametrize("task", [sentences, images])
def test_a_hundred_steps_follow_the_cpu(mps, task):
    ours, theirs = losses(task, "mps"), losses(task, "cpu")
    # Training amplifies rounding: as much as it does on the CPU when the weights start 1e-6 off, and some more.
    spread = (losses(task, "cpu", nudge=1e-6) - theirs).abs().max()
    assert theirs[-1] < 0.5 * theirs[0]
    assert (ours - theirs).abs().max() <= 4 * spread + 1e-4
    torch.testing.assert_close(ours[:5], theirs[:5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("task", [sentences, images])
def test_mixed_precision_converges(mps, task, dtype):
    curve = losses(task, "mps", dtype)
    assert curve.isfinite().all()
    assert curve[-1] < 0.1 * curve[0]
