"""What a first compilation makes, and what a second process finds of it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache, run_and_get_code

TRAINING = """
import json, torch
from torch import nn
from torch._dynamo.utils import counters

torch.manual_seed(0)
layer = lambda: nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(24))
model = torch.compile(nn.Sequential(*(layer() for _ in range(3))).to("mps"))
for _ in range(2):
    with torch.autocast("mps", torch.bfloat16):
        loss = model(torch.randn(40, 24).to("mps")).float().square().mean()
    loss.backward()
names = ("fxgraph_cache_hit", "fxgraph_cache_miss", "autograd_cache_hit", "autograd_cache_miss")
found = {name: sum(group[name] for group in counters.values()) for name in names}
print(json.dumps({"loss": loss.item(), "slang": torch.ops.anymps.slang_compilations(), **found}))
"""


def test_a_second_process_compiles_nothing(mps, run_python, tmp_path):
    folders = {"ANYMPS_CACHE_DIR": str(tmp_path / "ours"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    runs = []
    for _ in range(2):
        done = run_python(TRAINING, env=folders)
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    first, second = runs
    assert first["slang"] > 0 and (first["fxgraph_cache_miss"], first["autograd_cache_miss"]) == (2, 1)
    assert second == {
        "loss": first["loss"],
        "slang": 0,
        "fxgraph_cache_hit": 2,
        "fxgraph_cache_miss": 0,
        "autograd_cache_hit": 1,
        "autograd_cache_miss": 0,
    }


def generated_kernels(layers: int) -> list[int]:
    """Kernels in the modules of a training step: of the forward, of the backward."""
    torch._dynamo.reset()
    layer = [(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32)) for _ in range(layers)]
    model = torch.compile(nn.Sequential(*(module for one in layer for module in one)).to("mps"))
    with fresh_cache():
        _, codes = run_and_get_code(lambda: model(torch.randn(64, 32, device="mps")).sum().backward())
    return [code.count("= mps_kernel(") for code in codes]


def test_equal_layers_have_the_kernels_of_one(mps):
    assert generated_kernels(4) == generated_kernels(7)


@pytest.mark.parametrize("shape", [(64,), (8, 12)])
def test_dropouts_of_one_kernel_draw_different_numbers(mps, shape):
    x = torch.ones(shape, device="mps")

    def masks(x):
        return [torch.dropout(x, 0.5, True) for _ in range(4)]

    found = [tuple(mask.flatten().tolist()) for mask in torch.compile(masks)(x)]
    assert len(set(found)) == 4
