"""A process ends with messages that nobody receives or sends, while the other process of the group lives on.

exit_messages.py [destroyed]   "destroyed": after destroy_process_group(). Prints its exit code as JSON, null: it hung
"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
from report import report

PATIENCE = 120  # seconds, of the 30 minutes that gloo would wait


def main(rank: int, folder: str, destroyed: bool) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    dist.init_process_group(init_method=f"file://{folder}/store", rank=rank, world_size=2)
    x = torch.ones(1000, device="mps")
    dist.all_reduce(x)
    if rank == 1:
        while not os.path.exists(os.path.join(folder, "ended")):
            time.sleep(0.01)
        return
    dist.isend(x, 1, tag=1)  # nobody holds the Works of these
    dist.irecv(torch.empty_like(x), 1, tag=2)
    held = [dist.isend(x, 1, tag=3), dist.irecv(torch.empty_like(x), tag=4)]
    asked = [dist.isend(x, 1, tag=5), dist.irecv(torch.empty_like(x), 1, tag=6)]
    asked[1].get_future().then(lambda future: None)
    assert not asked[0].is_completed() and len(held) == 2
    if destroyed:
        dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        context = torch.multiprocessing.spawn(main, (folder, "destroyed" in sys.argv), nprocs=2, join=False)
        context.processes[0].join(PATIENCE)
        report(0, exit=context.processes[0].exitcode)
        if context.processes[0].exitcode is None:
            context.processes[0].kill()
        open(os.path.join(folder, "ended"), "w").close()
        context.processes[1].join()
