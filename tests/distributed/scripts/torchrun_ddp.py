"""Under torchrun: what a script for CUDA does, with "mps" in its place. Prints a line of JSON."""

import os

import torch
import torch.distributed as dist
from report import report
from torch.distributed.fsdp import FullyShardedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.accelerator.set_device_index(rank)
device = torch.device("mps", rank)
dist.init_process_group(device_id=device)
model = torch.nn.Linear(1, 1, bias=False).to(device)
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], output_device=rank)
x = torch.full((1, 1), 1.0 + rank, device=device)
model(x).sum().backward()
total = x.clone()
dist.all_reduce(total)
dist.barrier(device_ids=[rank])
try:
    torch.ones(1, device=f"mps:{rank + 2}")
    other = "no error"
except Exception as error:
    other = type(error).__name__
sharded = FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=rank)
try:
    FullyShardedDataParallel(torch.nn.Linear(2, 2, device=device), device_id=rank + 2)
except Exception as error:
    other += f", {type(error).__name__}"
devices = [str(t.device) for t in (x, total, next(model.parameters()), next(sharded.parameters()))]
result = {"gradient": model.module.weight.grad.item(), "sum": total.item(), "devices": devices, "other": other}
report(rank, **result)
dist.destroy_process_group()
