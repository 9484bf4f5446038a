"""Ray Train's TorchTrainer on mps: workers that Ray places on the machines of a cluster, a GPU each.

    pip install "ray[train]"; python examples/ray_train.py [--workers 2] [--steps 30]

What is told of mps is the device that the model and the batches go to: Ray's own process group serves mps. A worker's
LOCAL_RANK picks its GPU. Prints what rank 0 reports last, as JSON. On the nodes of a cluster Ray does not know GPUs of
Vulkan: give those nodes a resource (ray start --resources '{"mps": 2}') and ask for it by resources_per_worker.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from torch import nn
from torch.nn import functional as F

FEATURES, CLASSES, BATCH = 16, 4, 32


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, CLASSES))


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(step))
    return x, x[:, :CLASSES].argmax(1)


def train(config: dict) -> None:
    """One worker: its part of every batch, and the gradients of all by DistributedDataParallel."""
    context, device = ray.train.get_context(), torch.device("mps")
    model = ray.train.torch.prepare_model(make_model(), move_to_device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(config["steps"]):
        x, y = (part.chunk(context.get_world_size())[context.get_world_rank()].to(device) for part in make_batch(step))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = sum(parameter.detach().abs().sum() for parameter in model.parameters())
    metrics = {"loss": loss.item(), "weights": weights.item(), "device": str(next(model.parameters()).device)}
    with tempfile.TemporaryDirectory() as folder:  # Ray keeps metrics with a checkpoint, which one worker writes
        if context.get_world_rank() == 0:
            torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
        checkpoint = Checkpoint.from_directory(folder) if context.get_world_rank() == 0 else None
        ray.train.report(metrics, checkpoint=checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--storage", help="folder for Ray's records of the run, ~/ray_results by default")
    options = parser.parse_args()
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config={"steps": options.steps},
        scaling_config=ScalingConfig(num_workers=options.workers),
        run_config=RunConfig(storage_path=options.storage),
    )
    print(json.dumps(trainer.fit().metrics))


if __name__ == "__main__":
    main()
