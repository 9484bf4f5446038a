"""Accelerate chooses mps by itself, trains in full and mixed precision, and moves layers in and out of the device."""

import copy

import pytest
import torch
from torch import nn

from . import agree, library

accelerate = library("accelerate")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_trains(precision):
    x = torch.randn(48, 8)
    data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))

    def run(device):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        on_cpu = device.type == "cpu"
        accelerator = accelerate.Accelerator(
            cpu=on_cpu, mixed_precision="no" if on_cpu else precision, gradient_accumulation_steps=2
        )
        assert accelerator.device.type == device.type
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loader = torch.utils.data.DataLoader(data, batch_size=8)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses = []
        for _ in range(4):
            for inputs, labels in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(inputs), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(accelerator.gather(loss.detach()).mean().item())
        assert sum(losses[-6:]) < 0.8 * sum(losses[:6])
        return losses

    agree(run, tolerance=1e-4 if precision == "no" else 0.03)


def test_layers_wait_on_the_cpu():
    model, x = network(), torch.randn(5, 8)

    def run(device):
        offloaded = accelerate.cpu_offload(copy.deepcopy(model), execution_device=device)
        return offloaded(x).detach()

    agree(run, tolerance=1e-5)
