"""The first test to run: each part of the way from Python to the device once, in a minute."""

import copy
import io

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.cuda_wheel, pytest.mark.usefixtures("mps", "no_fallback")]


def test_device_is_there():
    assert torch.backends.mps.is_built() and torch.backends.mps.is_available()
    assert torch.accelerator.current_accelerator().type == "mps"
    assert torch.mps.device_count() == torch.accelerator.device_count() == 1
    assert torch.backends.mps.get_name()


def test_printing():
    assert repr(torch.ones(1, device="mps")) == "tensor([1.], device='mps:0')"
    x = torch.arange(6.0, device="mps").reshape(2, 3)
    assert repr(x) == "tensor([[0., 1., 2.],\n        [3., 4., 5.]], device='mps:0')"
    assert repr(torch.empty(0, device="mps")) == "tensor([], device='mps:0')"


def test_copies():
    x = torch.randn(33, 65)
    on_device = x.to("mps")
    assert on_device.device == torch.device("mps:0")
    assert torch.equal(on_device.cpu(), x)
    assert torch.equal(on_device.t().cpu(), x.t())
    assert torch.equal(on_device[3:9, 1::7].cpu(), x[3:9, 1::7])
    assert torch.equal(on_device.half().float().cpu(), x.half().float())
    assert on_device[2, 5].item() == x[2, 5].item()


def test_arithmetic_with_broadcasting_and_strides():
    x, y = torch.randn(7, 1, 5), torch.randn(3, 5)
    a, b = x.to("mps"), y.to("mps")
    torch.testing.assert_close((a * 2 + b - 1).cpu(), x * 2 + y - 1)
    torch.testing.assert_close((a.transpose(0, 2) / (b.abs().t().unsqueeze(2) + 1)).cpu(),
                               x.transpose(0, 2) / (y.abs().t().unsqueeze(2) + 1))  # fmt: skip
    torch.testing.assert_close(torch.exp(a).sum((0, 2)).cpu(), torch.exp(x).sum((0, 2)))
    assert torch.equal((a > 0).cpu(), x > 0)


def test_matmul_and_softmax():
    x, y = torch.randn(2, 17, 33), torch.randn(2, 33, 9)
    torch.testing.assert_close((x.to("mps") @ y.to("mps")).cpu(), x @ y, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(x.to("mps").softmax(-1).cpu(), x.softmax(-1))


def test_autograd_through_a_small_net():
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))
    x, labels = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 1, 0])
    twin = copy.deepcopy(net).to("mps")
    loss = nn.functional.cross_entropy(net(x), labels)
    loss.backward()
    loss_on_device = nn.functional.cross_entropy(twin(x.to("mps")), labels.to("mps"))
    loss_on_device.backward()
    assert loss_on_device.item() == pytest.approx(loss.item(), abs=1e-5)
    for ours, theirs in zip(twin.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_optimizers_lower_the_loss(optimizer):
    net = nn.Linear(8, 1).to("mps")
    x, y = torch.randn(64, 8, device="mps"), torch.randn(64, 1, device="mps")
    step = optimizer(net.parameters(), lr=0.05)
    losses = []
    for _ in range(10):
        step.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_random_numbers_repeat_with_the_seed():
    torch.manual_seed(3)
    first = torch.rand(1000, device="mps")
    again = torch.rand(1000, device="mps")
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1000, device="mps").cpu(), first.cpu())
    assert not torch.equal(first.cpu(), again.cpu())
    assert 0.4 < first.mean().item() < 0.6


def test_save_and_load():
    x = torch.randn(10, device="mps")
    buffer = io.BytesIO()
    torch.save(x, buffer)
    for location in (None, "mps", "cpu"):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location)
        assert loaded.device.type == (location or "mps")
        assert torch.equal(loaded.cpu(), x.cpu())


def test_memory_is_given_back(no_garbage):
    before = torch.mps.current_allocated_memory()
    x = torch.zeros(1 << 20, device="mps")
    assert torch.mps.current_allocated_memory() >= before + x.nbytes
    del x
    assert torch.mps.current_allocated_memory() == before
    torch.mps.empty_cache()


def test_errors_are_pytorchs():
    with pytest.raises(TypeError, match="Cannot convert a MPS Tensor to float64 dtype"):
        torch.ones(1, dtype=torch.float64, device="mps")
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(2\) must match the size of tensor b \(3\)"):
        torch.ones(2, device="mps") + torch.ones(3, device="mps")
