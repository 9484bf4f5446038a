"""Under torchrun on one of several machines: collectives and a step of DDP. Prints a line of JSON."""

import os

import torch
import torch.distributed as dist
from report import report

dist.init_process_group()
rank = dist.get_rank()
total = torch.full((1 << 18,), 1.0 + rank, device="mps")
dist.all_reduce(total)
gathered = torch.empty(2, device="mps")
dist.all_gather_into_tensor(gathered, torch.full((1,), float(rank), device="mps"))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False).to("mps"))
model(torch.full((1, 1), 1.0 + rank, device="mps")).sum().backward()
dist.barrier()
with open("/proc/self/maps") as maps:
    peers = sum("anymps_collectives" in line for line in maps)
gradient = model.module.weight.grad.item()
report(rank, sum=total.unique().tolist(), gathered=gathered.tolist(), gradient=gradient, peers=peers, pid=os.getpid())
dist.destroy_process_group()
