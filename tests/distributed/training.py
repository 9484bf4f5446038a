"""A small transformer, and its training: alone on the whole batch, or by several ranks on parts of it."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

WIDTH, WORDS, STEPS, BATCH = 32, 50, 4, 8
FLOAT32 = (2e-6, 2e-6)  # of losses, of weights
HALVES = (5e-3, 2e-2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.n1(x)
        q, k, v = (f(y).unflatten(-1, (-1, WIDTH // 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attention.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net(device="mps"):
    torch.manual_seed(0)
    return Net().to(device)


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9, **options)


def loss_of(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def batches(device="mps"):
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        yield torch.randint(WORDS, (BATCH, 9), generator=generator).to(device)


def own_part(ids):
    return ids.chunk(dist.get_world_size())[dist.get_rank()]


def train(model, optimizer, part=own_part, mean=True, clip=True):
    """The losses of all steps, averaged over the ranks where `mean`."""
    losses = []
    for ids in batches():
        loss = loss_of(model, part(ids))
        optimizer.zero_grad()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total = loss.detach().clone()
        if mean:
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
        losses.append(total.item())
    return losses


def alone(clip=True):
    """(losses, parameters by name) of one process on the whole batch."""
    model = net()
    losses = train(model, sgd(model.parameters()), part=lambda ids: ids, mean=False, clip=clip)
    return losses, full(model)


def full(model):
    """Whole parameters on the CPU by name, gathered where they are sharded; wrappers' prefixes are dropped."""
    result = {}
    for name, parameter in model.named_parameters():
        value = parameter.detach()
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        for prefix in ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module."):
            name = name.replace(prefix, "")
        name = name.removeprefix("module.")
        result[name] = value.float().cpu()
    return result


def difference(a, b):
    """(largest difference of losses, of a parameter) of two results of (losses, parameters)."""
    assert a[1].keys() == b[1].keys()
    losses = max(abs(x - y) for x, y in zip(a[0], b[0], strict=True))
    return losses, max((a[1][name] - b[1][name]).abs().max().item() for name in a[1])


reference = functools.cache(alone)


def agree(ranks, function, *args, bounds=FLOAT32):
    for losses, weights in ranks.run(function, *args):
        assert losses <= bounds[0] and weights <= bounds[1], (losses, weights)


def compared(model, optimizer, **options):
    losses = train(model, optimizer, **options)
    return difference((losses, full(model)), reference(options.get("clip", True)))
