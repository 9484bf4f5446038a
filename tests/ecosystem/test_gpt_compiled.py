"""A small GPT as people write it: memory-mapped tokens, plain torch.compile, autocast, warm-up, fused AdamW."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from . import agree

pytestmark = pytest.mark.usefixtures("mps", "no_fallback")
WIDTH, HEADS, LENGTH, VOCABULARY = 32, 4, 16, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(2)), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_trains(half, tmp_path):
    np.resize(np.arange(VOCABULARY, dtype=np.uint16) * 5 % VOCABULARY, 2000).tofile(tmp_path / "train.bin")
    data = np.memmap(tmp_path / "train.bin", dtype=np.uint16, mode="r")

    def run(device):
        torch._dynamo.reset()
        compile_it = torch.compile if device.type == "mps" else lambda model: model
        model = GPT().to(device)
        compiled = compile_it(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), fused=True)
        losses = []
        for step in range(8):
            optimizer.param_groups[0]["lr"] = 1e-2 * min(step + 1, 3) / 3 * (1 + math.cos(step / 8 * math.pi)) / 2
            starts = torch.randint(len(data) - LENGTH - 1, (4,)).tolist()
            rows = torch.stack([torch.from_numpy(data[i : i + LENGTH + 1].astype(np.int64)) for i in starts]).to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
                loss = compiled(rows[:, :-1], rows[:, 1:])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        return losses

    agree(run, tolerance=2e-2 if half else 1e-3)
