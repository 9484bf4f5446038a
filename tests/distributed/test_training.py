"""Two ranks that train together give the losses and weights of one process on the whole batch.

Bounds: sums over the batch are taken in another order, so float32 differs in its last bits; half precision by its own.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import training
from ranks import Ranks
from torch.nn.parallel import DistributedDataParallel as DDP

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

FLOAT32 = (2e-6, 2e-6)  # of losses, of weights
HALVES = (5e-3, 2e-2)


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2, env={"OMP_NUM_THREADS": "1"}) as pool:
        yield pool


reference = functools.cache(training.alone)


def agree(ranks, function, *args, bounds=FLOAT32):
    for losses, weights in ranks.run(function, *args):
        assert losses <= bounds[0] and weights <= bounds[1], (losses, weights)


def compared(model, optimizer, **options):
    losses = training.train(model, optimizer, **options)
    return training.difference((losses, training.full(model)), reference(options.get("clip", True)))


# --- DistributedDataParallel


def ddp(options, hook=None):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DDP(training.net(), **options)
    if hook:
        model.register_comm_hook(None, getattr(default_hooks, hook))
    return compared(model, training.sgd(model.parameters()))


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
def test_ddp(ranks, options):
    agree(ranks, ddp, options)


@pytest.mark.parametrize("hook", ["allreduce_hook", "bf16_compress_hook", "fp16_compress_hook"])
def test_ddp_hooks(ranks, hook):
    agree(ranks, ddp, {"bucket_cap_mb": 0.02}, hook, bounds=FLOAT32 if hook == "allreduce_hook" else HALVES)


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
    return training.difference((losses, training.full(model)), reference())


def test_ddp_no_sync(ranks):
    agree(ranks, accumulate)


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


def test_ddp_unused_parameters(ranks):
    assert ranks.run(unused) == [[[1.0] * 4, [1.0] * 4, None]] * 2


def uneven():
    """join(): rank 1 has one more batch than rank 0."""
    torch.manual_seed(0)
    model = DDP(nn.Linear(3, 1).to("mps"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with model.join():
        for _ in range(2 + dist.get_rank()):
            optimizer.zero_grad()
            model(torch.ones(2, 3, device="mps")).sum().backward()
            optimizer.step()
    return [p.tolist() for p in model.module.parameters()]


def test_ddp_join(ranks):
    first, second = ranks.run(uneven)
    assert first == second


def sharded_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(training.net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    return compared(model, optimizer)


def test_zero_redundancy_optimizer(ranks):
    agree(ranks, sharded_optimizer)


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
    return compared(model, training.sgd(model.parameters()))


@pytest.mark.parametrize("kind", ["plain", "kept", "bf16", "checkpointed", "offload"])
def test_fully_shard(ranks, kind):
    agree(ranks, sharded, kind, bounds=HALVES if kind == "bf16" else FLOAT32)


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
        return training.difference((losses, training.full(model)), reference(clip=False))


@pytest.mark.parametrize("offload", [False, True])
def test_fsdp1(ranks, offload):
    agree(ranks, fsdp1, offload)


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


def test_checkpoints(ranks):
    with tempfile.TemporaryDirectory() as folder:
        (same, saved), (also, _) = ranks.run(save, folder)
        assert same and also
        for loaded in ranks.run(load_alone, folder):
            assert all(torch.equal(loaded[name], saved[name]) for name in saved)


# --- parallel tensors and pipelines


def tensor_parallel(sequence):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("mps", (2,))
    model = training.net()
    columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
    for block in model.blocks:
        plan = {"q": columns, "k": columns, "v": columns, "o": rows, "up": columns, "down": rows}
        if sequence:
            plan["n1"] = plan["n2"] = SequenceParallel()
            for name in ("q", "k", "v", "up"):
                plan[name] = ColwiseParallel(input_layouts=Shard(1))
        parallelize_module(block, mesh, plan)
    if sequence:
        parallelize_module(
            model,
            mesh,
            {
                "blocks.0": PrepareModuleInput(
                    input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True
                ),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            },
        )
    # Lists of tensors may not have both kinds of parameters, on no device.
    optimizer = training.sgd(model.parameters(), foreach=False)
    return compared(model, optimizer, part=lambda ids: ids, clip=False)


def test_tensor_parallel(ranks):
    agree(ranks, tensor_parallel, False)


def test_sequence_parallel(ranks):
    agree(ranks, tensor_parallel, True)


class Stage(nn.Module):
    """The first or the last half of the network."""

    def __init__(self, whole, rank):
        super().__init__()
        self.whole, self.rank = whole, rank
        unused = [whole.head, whole.blocks[1]] if rank == 0 else [whole.embed, whole.blocks[0]]
        for module in unused:
            module.requires_grad_(False)

    def forward(self, x):
        if self.rank == 0:
            return self.whole.blocks[0](self.whole.embed(x))
        return self.whole.head(self.whole.blocks[1](x))


def pipeline(schedule_name):
    from torch.distributed import pipelining

    rank = dist.get_rank()
    model = training.net()
    stage = pipelining.PipelineStage(Stage(model, rank), rank, 2, torch.device("mps"))
    loss_fn = lambda logits, ids: nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())  # noqa: E731
    schedule = getattr(pipelining, schedule_name)(stage, n_microbatches=4, loss_fn=loss_fn)
    optimizer = training.sgd(p for p in model.parameters() if p.requires_grad)
    losses = []
    for ids in training.batches():
        optimizer.zero_grad()
        parts = []
        if rank == 0:
            schedule.step(ids[:, :-1].contiguous())
        else:
            schedule.step(target=ids[:, 1:].contiguous(), losses=parts)
        optimizer.step()
        losses.append(sum(part.item() for part in parts) / 4)
    weights = training.full(model)
    mine = ("embed", "blocks.0") if rank == 0 else ("head", "blocks.1")
    expected_losses, expected = reference(clip=False)
    worst = max((weights[n] - expected[n]).abs().max().item() for n in weights if n.startswith(mine))
    off = max(abs(a - b) for a, b in zip(losses, expected_losses, strict=True)) if rank else 0.0
    return off, worst


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipeline(ranks, schedule):
    agree(ranks, pipeline, schedule)


def operators():
    """Operators with kernels of ours and a derivative, on tensors that both ranks share: what differs, by name."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    functional = nn.functional
    torch.manual_seed(0)
    w, b = torch.randn(8, 8), torch.randn(8)
    calls = {
        "linear": lambda x, w, b: functional.linear(x, w, b),
        "silu": lambda x, w, b: functional.silu(x),
        "mish": lambda x, w, b: functional.mish(x),
        "rms_norm": lambda x, w, b: functional.rms_norm(x, (8,), b),
        "layer_norm": lambda x, w, b: functional.layer_norm(x, (8,), b, b),
        "softmax": lambda x, w, b: x.softmax(-1),
        "attention": lambda x, w, b: functional.scaled_dot_product_attention(*[x.view(2, 4, 2, 8)] * 3),
        "dropout": lambda x, w, b: functional.dropout(x, 0.0),
        "gelu": lambda x, w, b: functional.gelu(x) @ w,
    }
    wrong = {}
    mesh = init_device_mesh("mps", (2,))
    x = torch.randn(2, 8, 8)
    for name, call in calls.items():
        plain = [t.to("mps").requires_grad_() for t in (x, w, b)]
        parallel = [
            distribute_tensor(t.to("mps"), mesh, [p]) for t, p in zip((x, w, b), (Shard(0), Replicate(), Replicate()))
        ]
        results = []
        for leaves in (plain, [t.requires_grad_() for t in parallel]):
            y = call(*leaves)
            y.sin().sum().backward()
            tensors = [y.detach(), *(t.grad for t in leaves if t.grad is not None)]
            results.append([t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors])
        error = max((p - q).abs().max().item() for p, q in zip(*results, strict=True))
        if error > 2e-5:
            wrong[name] = error
    return wrong


def test_operators_on_parallel_tensors(ranks):
    assert ranks.run(operators) == [{}, {}]
