"""Four ranks, each way by itself, and as a mesh of two by two: sharding beside replication or tensor parallelism."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import training
from ranks import Ranks
from test_parallel import pipeline, tensor_parallel
from test_parallel_training import ddp, sharded

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(scope="module")
def four():
    with Ranks(4) as pool:
        yield pool


def collectives():
    rank, world = dist.get_rank(), dist.get_world_size()
    summed = torch.full((1000,), rank + 1.0, device="mps")
    dist.all_reduce(summed)
    gathered = torch.empty(3 * world, device="mps")
    dist.all_gather_into_tensor(gathered, torch.full((3,), float(rank), device="mps"))
    averaged = torch.empty(5, device="mps", dtype=torch.bfloat16)
    ones = torch.full((5 * world,), rank + 1.0, device="mps", dtype=torch.bfloat16)
    dist.reduce_scatter_tensor(averaged, ones, op=dist.ReduceOp.AVG)
    exchanged = torch.empty(world, device="mps")
    dist.all_to_all_single(exchanged, torch.arange(world, device="mps") + 10.0 * rank)
    return [t.unique().tolist() for t in (summed, gathered, averaged, exchanged)]


def test_collectives_of_four(four):
    for rank, result in enumerate(four.run(collectives)):
        assert result == [[10.0], [0.0, 1.0, 2.0, 3.0], [2.5], [10.0 * peer + rank for peer in range(4)]]


def replicated_shards():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("mps", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = training.net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = training.train(model, training.sgd(model.parameters()))
    return training.difference((losses, training.full(model)), training.alone())


def sharded_and_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("mps", (2, 2), mesh_dim_names=("data", "tensor"))
    model = training.net()
    columns, rows = ColwiseParallel(), RowwiseParallel()
    for block in model.blocks:
        plan = {"q": columns, "k": columns, "v": columns, "o": rows, "up": columns, "down": rows}
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    part = mesh["data"].get_local_rank()
    optimizer = training.sgd(model.parameters(), foreach=False)
    losses = training.train(model, optimizer, part=lambda ids: ids.chunk(2)[part], clip=False)
    return training.difference((losses, training.full(model)), training.alone(clip=False))


@pytest.mark.parametrize("call", [replicated_shards, sharded_and_parallel], ids=lambda call: call.__name__)
def test_meshes(four, call):
    for losses, weights in four.run(call):
        assert losses <= 2e-6 and weights <= 2e-6, (losses, weights)


ONE_WAY = {
    "ddp": (ddp, {"bucket_cap_mb": 0.01}),
    "fully_shard": (sharded, "plain"),
    "tensor_parallel": (tensor_parallel, False),
    "sequence_parallel": (tensor_parallel, True),
    "gpipe": (pipeline, "ScheduleGPipe"),
    "1f1b": (pipeline, "Schedule1F1B"),
}


@pytest.mark.parametrize("way", ONE_WAY)
def test_four_ranks_train_as_one(four, way):
    training.agree(four, *ONE_WAY[way])


@pytest.fixture
def fake_group():
    """A group that sends nothing, of tests and of dry runs in one process."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


def test_fake_group(fake_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("mps", (4,))
    assert mesh.get_group()._get_backend(torch.device("mps")).name() == "fake"
    part = distribute_tensor(torch.zeros(8, 3, device="mps"), mesh, [Shard(0)])
    assert part.to_local().shape == (2, 3) and part.sum(dim=0).full_tensor().device.type == "mps"
