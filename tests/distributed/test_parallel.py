"""Tensors, pipelines and norms that two ranks share give what one process computes.

Bounds: sums are taken in another order, so float32 differs in its last bits.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import training

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


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

    mesh = init_device_mesh("mps", (dist.get_world_size(),))
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
    return training.compared(model, optimizer, part=lambda ids: ids, clip=False)


def test_tensor_parallel(pair):
    training.agree(pair, tensor_parallel, False)


def test_sequence_parallel(pair):
    training.agree(pair, tensor_parallel, True)


# The modules of each stage, by the number of ranks.
STAGES = {2: ["embed blocks.0", "blocks.1 head"], 4: ["embed", "blocks.0", "blocks.1", "head"]}


def pipeline(schedule_name):
    from torch.distributed import pipelining

    rank, ranks = dist.get_rank(), dist.get_world_size()
    last = ranks - 1
    model = training.net()
    mine = tuple(STAGES[ranks][rank].split())
    part = nn.Sequential(*map(model.get_submodule, mine))
    stage = pipelining.PipelineStage(part, rank, ranks, torch.device("mps"))
    loss_fn = lambda logits, ids: nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())  # noqa: E731
    schedule = getattr(pipelining, schedule_name)(stage, n_microbatches=4, loss_fn=loss_fn)
    optimizer = training.sgd(part.parameters())
    losses = []
    for ids in training.batches():
        optimizer.zero_grad()
        parts = []
        if rank == 0:
            schedule.step(ids[:, :-1].contiguous())
        elif rank == last:
            schedule.step(target=ids[:, 1:].contiguous(), losses=parts)
        else:
            schedule.step()
        optimizer.step()
        losses.append(sum(part.item() for part in parts) / 4)
    weights = training.full(model)
    expected_losses, expected = training.reference(clip=False)
    worst = max((weights[n] - expected[n]).abs().max().item() for n in weights if n.startswith(mine))
    off = max(abs(a - b) for a, b in zip(losses, expected_losses, strict=True)) if rank == last else 0.0
    return off, worst


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipeline(pair, schedule):
    training.agree(pair, pipeline, schedule)


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


def test_operators_on_parallel_tensors(pair):
    assert pair.run(operators) == [{}, {}]


def batch_norm(momentum):
    """Uneven batches, whose values lie far from zero: relative differences from batch norm of the whole."""
    torch.manual_seed(0)
    whole = torch.randn(7, 4, 3, 3) + 1e3
    sizes = (2, 5)
    rank = dist.get_rank()
    layers = [nn.BatchNorm2d(4, momentum=momentum), nn.SyncBatchNorm(4, momentum=momentum).to("mps")]
    inputs = [whole.clone().requires_grad_(), whole.split(sizes)[rank].to("mps").requires_grad_()]
    outputs = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    for y, factors in zip(outputs, (torch.arange(7.0), torch.arange(7.0, device="mps").split(sizes)[rank])):
        (y.sin() * factors.view(-1, 1, 1, 1)).sum().backward()
    gradients = [layers[1].weight.grad, layers[1].bias.grad]
    for gradient in gradients:
        dist.all_reduce(gradient)
    alone, together = layers
    pairs = {
        "output": (outputs[0].split(sizes)[rank], outputs[1]),
        "input.grad": (inputs[0].grad.split(sizes)[rank], inputs[1].grad),
        "weight.grad": (alone.weight.grad, gradients[0]),
        "bias.grad": (alone.bias.grad, gradients[1]),
        "running_mean": (alone.running_mean, together.running_mean),
        "running_var": (alone.running_var, together.running_var),
        "eval": (alone.eval()(whole.split(sizes)[rank]), together.eval()(whole.split(sizes)[rank].to("mps"))),
    }
    return {name: ((a - b.cpu()).abs().max() / a.abs().max()).item() for name, (a, b) in pairs.items()}


@pytest.mark.parametrize("momentum", [0.1, None])
def test_sync_batch_norm(pair, momentum):
    # Values of 1e3 are exact to 6e-5 in float32, in units of their deviation; E[x^2] - m^2 would be off by 0.1.
    for differences in pair.run(batch_norm, momentum):
        assert max(differences.values()) < 5e-4, differences


def causal_attention_of_sharded_heads():
    """Largest differences of the result and gradients to those of whole tensors."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("mps", (2,))
    torch.manual_seed(5)
    inputs = [torch.randn(2, 4, 6, 8).to("mps") for _ in range(3)]
    whole = [x.clone().requires_grad_() for x in inputs]
    heads = [distribute_tensor(x, mesh, [Shard(1)]).requires_grad_() for x in inputs]
    results = []
    for q, k, v in (whole, heads):
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y.square().sum().backward()
        results.append([y, q.grad, k.grad, v.grad])
    return [(a - b.full_tensor()).abs().max().item() for a, b in zip(*results, strict=True)]


def test_causal_attention_of_sharded_heads(pair):
    for differences in pair.run(causal_attention_of_sharded_heads):
        assert max(differences) < 1e-5


def split_sequences(causal: bool, balanced: bool, rotation: str, heads: int, dropout: float):
    """Results of context_parallel and of one process, and their gradients, in the order of the sequence."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention, context_parallel

    attention, mesh = torch.nn.functional, init_device_mesh("mps", (2,))
    options = {"is_causal": causal, "enable_gqa": heads != 4, "dropout_p": dropout}
    torch.manual_seed(6)
    whole = [torch.randn(2, count, 16, 8).to("mps").requires_grad_() for count in (4, heads, heads)]
    grad = torch.randn(2, 4, 16, 8).to("mps")
    y = attention.scaled_dot_product_attention(*whole, **options)
    y.backward(grad)
    parts = [x.detach().clone() for x in (*whole, grad)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_attention._cp_options, "enable_load_balance", balanced)
        _attention.set_rotate_method(rotation)
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 4):
            q, k, v = (x.detach().clone().requires_grad_() for x in parts[:3])
            z = attention.scaled_dot_product_attention(q, k, v, **options)
            z.backward(parts[3])
            found = [z.detach(), q.grad, k.grad, v.grad]
            found = _attention.context_parallel_unshard(mesh, found, [2] * 4)
    return found, [y, *(x.grad for x in whole)], whole, grad


def compare_split_sequences(*how):
    found, expected, _, _ = split_sequences(*how, 0.0)
    return [(a - b).abs().max().item() for a, b in zip(found, expected, strict=True)]


@pytest.mark.parametrize("rotation", ["allgather", "alltoall"])
@pytest.mark.parametrize(
    ("causal", "balanced", "heads"), [(True, True, 4), (True, True, 2), (True, False, 4), (False, False, 4)]
)
def test_context_parallel(pair, causal, balanced, rotation, heads):
    for differences in pair.run(compare_split_sequences, causal, balanced, rotation, heads):
        assert max(differences) < 3e-6


def drop_of_split_sequences():
    """The result is linear in the values: with one mask for both directions the two sums are the same."""
    (y, _, _, grad_of_values), _, (_, _, values), grad = split_sequences(True, True, "allgather", 4, 0.5)
    return (y * grad).sum().item(), (values * grad_of_values).sum().item()


def test_context_parallel_drops_the_same_in_both_directions(pair):
    for forward, backward in pair.run(drop_of_split_sequences):
        assert abs(forward - backward) < 1e-4


def refused_of_split_sequences():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention, context_parallel

    mesh, x = init_device_mesh("mps", (2,)), torch.randn(1, 1, 8, 8, device="mps")
    found = []
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
        with pytest.raises(NotImplementedError, match="attn_bias is not supported yet"):
            torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=x[0, 0] > 0)
        plan = _attention._ContextParallel(2, _attention._ContextParallel.AttentionType.SDPA)
        found.append(plan._apply(nn.Identity(), mesh))
        with pytest.raises(NotImplementedError, match="context_parallel"):
            found[0](x)
    return len(found)


def test_context_parallel_refuses_what_would_be_wrong(pair):
    assert pair.run(refused_of_split_sequences) == [1, 1]
