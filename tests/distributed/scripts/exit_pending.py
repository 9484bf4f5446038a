"""Two processes end with collectives under way that have Python callbacks, one of which can never end."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing


def main(rank: int, store: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    dist.init_process_group(init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.ones(1 << 20, device="mps")
    for _ in range(2 + rank):
        dist.all_reduce(x, async_op=True).get_future().then(lambda future: None)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(main, (os.path.join(folder, "store"),), nprocs=2)
