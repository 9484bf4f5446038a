"""The Khronos validation layer, with synchronization validation, has nothing to say."""

import os

import pytest

SCRIPT = """
import torch, torch.nn.functional as F
net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
                          torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.LayerNorm(64), torch.nn.Dropout(0.1),
                          torch.nn.Linear(64, 10)).to("mps")
x, y = torch.randn(8, 1, 8, 8, device="mps"), torch.randint(0, 10, (8,), device="mps")
for options in ({"fused": True}, {"foreach": True}):
    optimizer = torch.optim.AdamW(net.parameters(), **options)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
a = torch.randn(5, 7, device="mps")
a.t()[a.t() > 0].sum().item()
a[torch.tensor([1, 0, 1], device="mps")] += 1
torch.sort(a)[0].cumsum(1).topk(2)[0].half().cpu()
torch.cat([a, a]).scatter_add(0, torch.zeros(1, 7, dtype=torch.int64, device="mps"), a).norm().item()
q = torch.randn(1, 2, 5, 8, device="mps", requires_grad=True)
F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
F.embedding(torch.tensor([1, 2], device="mps"), q[0, 0]).sum().backward()
big = torch.randn(3, 1 << 20).to("mps")
assert torch.equal(big.cpu(), big.clone().cpu())
graph = torch.accelerator.Graph()
with graph:
    b = F.dropout(a @ a.t(), 0.5).softmax(0).clone() + torch.cat([a, a], 1).sum()
    c = F.conv2d(torch.rand(1, 4, 8, 8, device="mps"), torch.tensor([[[[2.0]]] * 4]).to("mps"))
for _ in range(3):
    graph.replay()
    graph.replay()
    a += b.sum()
assert b.isfinite().all().item() and c.isfinite().all().item()
print("finished")
"""
COMPILED = """
import torch, torch.nn.functional as F
def step(x, w, b):
    y = F.gelu(x @ w + b)
    return (y + x).softmax(1), (y * 2).sum(0), y
function = torch.compile(step, mode="reduce-overhead")
w, b = torch.randn(64, 64, device="mps"), torch.randn(64, device="mps")
with torch.no_grad():
    for _ in range(4):
        x = torch.randn(48, 64, device="mps")
        for found, expected in zip(function(x, w, b), step(x, w, b)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
w.requires_grad_()
torch.compile(step)(x, w, b)[0].square().sum().backward()
assert w.grad.isfinite().all().item()
print("finished")
"""


def validation_folder():
    """Where the loader finds the layer, or None."""
    folders = [
        "/usr/share/vulkan/explicit_layer.d",
        "/etc/vulkan/explicit_layer.d",
        "/usr/local/share/vulkan/explicit_layer.d",
    ]
    return next((f for f in folders if os.path.exists(os.path.join(f, "VkLayer_khronos_validation.json"))), None)


@pytest.mark.skipif(validation_folder() is None, reason="no validation layer (vulkan-validationlayers)")
@pytest.mark.parametrize("script", [SCRIPT, COMPILED], ids=["eager", "compiled"])
def test_training_indexing_copies_and_compiled_graphs_are_valid(run_python, script):
    environment = {
        "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
        "VK_LAYER_ENABLES": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
    }
    result = run_python(script, env=environment)
    assert result.stdout.strip() == "finished", result.stdout + result.stderr
    assert "Validation" not in result.stderr, result.stderr
