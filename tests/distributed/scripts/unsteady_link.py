"""One of two ranks: steps of DDP and large all_reduces until FOLDER/stop is there; marks FOLDER/RANK when they begin.

unsteady_link.py FOLDER TIMEOUT   prints a line of JSON: steps, those that were wrong, the longest one in seconds, what
was raised and after how many seconds of its step
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from report import report

folder = Path(sys.argv[1])
dist.init_process_group(timeout=timedelta(seconds=float(sys.argv[2])))
rank, steps, wrong, longest, error = dist.get_rank(), 0, 0, 0.0, ""
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False).to("mps"))
try:
    while True:
        start = time.monotonic()
        model.zero_grad()
        model(torch.full((2, 4), float(rank + steps), device="mps")).sum().backward()
        total = torch.full((1 << 16,), float(rank + steps), device="mps")
        dist.all_reduce(total)
        stop = torch.tensor(float((folder / "stop").exists()), device="mps")
        dist.broadcast(stop, 0)
        right = (total == 2 * steps + 1).all() and (model.module.weight.grad == 2 * steps + 1).all()
        wrong += not right.item()
        steps += 1
        longest = max(longest, time.monotonic() - start)
        (folder / str(rank)).touch()
        if stop.item():
            break
except RuntimeError as raised:
    error = f"{type(raised).__name__}: {str(raised).splitlines()[0]}"
report(rank, steps=steps, wrong=wrong, longest=longest, error=error, seconds=time.monotonic() - start)
os._exit(0)  # nobody says goodbye over a link that may be gone
