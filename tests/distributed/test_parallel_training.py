"""Two ranks that train together give the losses and weights of one process on the whole batch.

Bounds: sums over the batch are taken in another order, so float32 differs in its last bits; half precision by its own.
"""

from __future__ import annotations

import contextlib
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import training
from torch.nn.parallel import DistributedDataParallel as DDP

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

# --- DistributedDataParallel


def ddp(options, hook=None):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DDP(training.net(), **options)
    if hook:
        model.register_comm_hook(None, getattr(default_hooks, hook))
    return training.compared(model, training.sgd(model.parameters()))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.01},
        {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"device_ids": [0]},
    ],
    ids=lambda options: ",".join(options) or "default",
)
def test_ddp(pair, options):
    training.agree(pair, ddp, options)


@pytest.mark.parametrize("hook", ["allreduce_hook", "bf16_compress_hook", "fp16_compress_hook"])
def test_ddp_hooks(pair, hook):
    training.agree(
        pair,
        ddp,
        {"bucket_cap_mb": 0.02},
        hook,
        bounds=training.FLOAT32 if hook == "allreduce_hook" else training.HALVES,
    )


def accumulate():
    """Two backward passes a step, the first of them without communication."""
    model = DDP(training.net())
    optimizer = training.sgd(model.parameters())
    losses = []
    for ids in training.batches():
        halves = training.own_part(ids).chunk(2)
        total = 0.0
        for i, half in enumerate(halves):
            with contextlib.nullcontext() if i else model.no_sync():
                loss = training.loss_of(model, half) / 2
                loss.backward()
                total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        losses.append(total.item())
    return training.difference((losses, training.full(model)), training.reference())


def test_ddp_no_sync(pair):
    training.agree(pair, accumulate)


def unused():
    """One branch a rank: gradients of the other come from the peer, those of neither stay None."""
    torch.manual_seed(0)
    branches = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)).to("mps")

    class Pick(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = branches

        def forward(self, x):
            return self.branches[dist.get_rank()](x)

    model = DDP(Pick(), find_unused_parameters=True)
    model(torch.ones(2, 4, device="mps")).sum().backward()
    return [None if b.bias.grad is None else b.bias.grad.tolist() for b in branches]


def test_ddp_unused_parameters(pair):
    assert pair.run(unused) == [[[1.0] * 4, [1.0] * 4, None]] * 2


def small_step(model, optimizer, losses):
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
    return [p.detach().cpu().flatten() for p in model.parameters()]


def small():
    torch.manual_seed(0)
    model = nn.Linear(3, 1).to("mps")
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


COUNTS = (2, 4)  # batches of the ranks


def uneven(by_all):
    """join(): rank 1 has more batches than rank 0. The weights' largest difference from those of one process."""
    batch = lambda rank, step: (torch.arange(6.0).view(2, 3) / 6 + rank - step / 3).to("mps")  # noqa: E731
    model, optimizer = small()
    for step in range(max(COUNTS)):
        parts = [model(batch(rank, step)).square().mean() for rank, count in enumerate(COUNTS) if step < count]
        expected = small_step(model, optimizer, [part / (2 if by_all else len(parts)) for part in parts])
    model, optimizer = small()
    model = DDP(model)
    with model.join(divide_by_initial_world_size=by_all):
        for step in range(COUNTS[dist.get_rank()]):
            small_step(model, optimizer, [model(batch(dist.get_rank(), step)).square().mean()])
    found = [p.detach().cpu().flatten() for p in model.parameters()]
    return max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("by_all", [True, False], ids=["all", "present"])
def test_ddp_join(pair, by_all):
    assert max(pair.run(uneven, by_all)) < 1e-6


def sampled():
    """Two epochs of 10 shuffled rows, the last batch of an epoch is smaller; as above."""
    from torch.utils.data import DataLoader, DistributedSampler

    rows = torch.randn(10, 3, generator=torch.Generator().manual_seed(3))
    samplers = [DistributedSampler(rows, num_replicas=2, rank=rank, seed=5) for rank in range(2)]
    model, optimizer = small()
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        for batches in zip(*(DataLoader(rows, 2, sampler=sampler) for sampler in samplers), strict=True):
            expected = small_step(model, optimizer, [model(x.to("mps")).square().mean() / 2 for x in batches])
    model, optimizer = small()
    model, own, seen = DDP(model), DistributedSampler(rows, seed=5), []
    for epoch in range(2):
        own.set_epoch(epoch)
        seen.append(list(own))
        for x in DataLoader(rows, 2, sampler=own):
            found = small_step(model, optimizer, [model(x.to("mps")).square().mean()])
    return max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True)), seen


def test_distributed_sampler(pair):
    (off, first), (also, second) = pair.run(sampled)
    assert max(off, also) < 1e-6
    assert first[0] != first[1]
    for epoch in zip(first, second, strict=True):
        assert sorted(sum(epoch, [])) == list(range(10))


def sharded_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(training.net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    return training.compared(model, optimizer)


def test_zero_redundancy_optimizer(pair):
    training.agree(pair, sharded_optimizer)


# --- sharded parameters


def shard(model, **options):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def sharded(kind):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    options, model = {}, training.net()
    if kind == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if kind == "offload":
        options["offload_policy"] = CPUOffloadPolicy()
    if kind == "checkpointed":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, training.Block))
    if kind == "kept":
        options["reshard_after_forward"] = False
    model = shard(model, **options)
    return training.compared(model, training.sgd(model.parameters()))


@pytest.mark.parametrize("kind", ["plain", "kept", "bf16", "checkpointed", "offload"])
def test_fully_shard(pair, kind):
    training.agree(pair, sharded, kind, bounds=training.HALVES if kind == "bf16" else training.FLOAT32)


def inputs_of_the_cpu():
    model, ids = shard(training.net()), torch.arange(6).view(2, 3)
    return [result.device.type for result in (model(ids), model(ids=ids))]


def test_fully_shard_moves_inputs(pair):
    assert pair.run(inputs_of_the_cpu) == [["mps", "mps"]] * 2


def scaled():
    """Gradients of one rank are infinite in the second of three steps, which all ranks pass over."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    model = fully_shard(torch.nn.Linear(4, 2, bias=False).to("mps"))
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), ShardedGradScaler("mps", init_scale=4.0)
    scales, weights = [], [model.weight.full_tensor().sum().item()]
    for step in range(3):
        inputs = torch.full((2, 4), float("inf") if step == 1 and dist.get_rank() else 1.0, device="mps")
        optimizer.zero_grad()
        scaler.scale(model(inputs).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        weights.append(model.weight.full_tensor().sum().item())
    return scales, [after - before for before, after in zip(weights, weights[1:], strict=False)]


@pytest.mark.filterwarnings("ignore:Found a non-scalar tensor")
def test_sharded_gradient_scaler(pair):
    for scales, steps in pair.run(scaled):
        assert scales == [4.0, 2.0, 2.0]
        assert steps == pytest.approx([-1.6, 0.0, -1.6], abs=1e-5)


def fsdp1(offload):
    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        training.net(),
        auto_wrap_policy=ModuleWrapPolicy({training.Block}),
        device_id=torch.device("mps", 0),
        use_orig_params=True,
        cpu_offload=CPUOffload(offload_params=offload),
    )
    optimizer = training.sgd(model.parameters())
    losses = training.train(model, optimizer, clip=False)
    with FullyShardedDataParallel.summon_full_params(model):
        return training.difference((losses, training.full(model)), training.reference(clip=False))


@pytest.mark.parametrize("offload", [False, True])
def test_fsdp1(pair, offload):
    training.agree(pair, fsdp1, offload)


def save(folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = shard(training.net())
    optimizer = torch.optim.AdamW(model.parameters())
    training.train(model, optimizer)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"weights": weights, "state": state}, checkpoint_id=folder)
    before = training.full(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"weights": weights, "state": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    after = training.full(model)
    return all(torch.equal(before[name], after[name]) for name in before), before


def load_alone(folder):
    """The same checkpoint in one unsharded model."""
    import torch.distributed.checkpoint as dcp

    model = training.net()
    weights = model.state_dict()
    dcp.load({"weights": weights}, checkpoint_id=folder)
    model.load_state_dict(weights)
    return training.full(model)


def test_checkpoints(pair):
    with tempfile.TemporaryDirectory() as folder:
        (same, saved), (also, _) = pair.run(save, folder)
        assert same and also
        for loaded in pair.run(load_alone, folder):
            assert all(torch.equal(loaded[name], saved[name]) for name in saved)
