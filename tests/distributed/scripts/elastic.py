"""Under torchrun --max-restarts 1: rank 1 is killed in the middle, and training goes on from the last checkpoint.

elastic.py FOLDER   prints a line of JSON with the steps that this start has made and the weight
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from report import report

STEPS, KILLED_AT = 6, 3
path = os.path.join(sys.argv[1], "checkpoint.pt")
dist.init_process_group()
rank, start = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).to("mps"))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
first = 0
if os.path.exists(path):
    state = torch.load(path, map_location="mps")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
for step in range(first, STEPS):
    if start == 0 and step == KILLED_AT and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    loss = model(torch.full((1, 1), 1.0 + rank + step, device="mps")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()
report(rank, start=start, first=first, weight=model.module.weight.item())
dist.destroy_process_group()
