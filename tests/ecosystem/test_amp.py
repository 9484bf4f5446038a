"""autocast and GradScaler on mps."""

import copy

import pytest
import torch
from torch import nn

pytestmark = [pytest.mark.cuda_wheel, pytest.mark.usefixtures("mps", "no_fallback")]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_chooses_dtypes(dtype):
    model = net().to("mps")
    x = torch.randn(8, 16, device="mps")
    with torch.autocast("mps", dtype=dtype):
        hidden = model[0](x)
        assert hidden.dtype == dtype
        assert torch.nn.functional.mse_loss(hidden, hidden).dtype == torch.float32
        assert (x @ x.T).dtype == dtype
        with torch.autocast("mps", enabled=False):
            assert (x @ x.T).dtype == torch.float32
    torch.testing.assert_close(hidden.float(), model[0](x), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("form", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"])
def test_trains_with_a_scaler(dtype, optimizer, form):
    reference = net()
    model = copy.deepcopy(reference).to("mps")
    x, y = torch.randn(32, 16), torch.randint(0, 4, (32,))

    def train(model, device, autocast):
        scaler = torch.amp.GradScaler(device, enabled=autocast, init_scale=1024.0, growth_interval=4)
        step = optimizer(model.parameters(), lr=1e-2, **form)
        a, b = x.to(device), y.to(device)
        losses = []
        for _ in range(10):
            step.zero_grad()
            with torch.autocast(device, dtype=dtype, enabled=autocast):
                loss = nn.functional.cross_entropy(model(a), b)
            scaler.scale(loss).backward()
            scaler.step(step)
            scaler.update()
            losses.append(loss.item())
        return losses, scaler

    losses, scaler = train(model, "mps", True)
    expected, _ = train(reference, "cpu", False)
    assert losses == pytest.approx(expected, rel=0.03)
    assert losses[-1] < losses[0]
    assert scaler.get_scale() == 4096.0  # grown twice in ten steps


@pytest.mark.parametrize("form", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"])
def test_steps_with_inf_are_skipped(form):
    model = nn.Linear(4, 1).to("mps")
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **form)
    scaler = torch.amp.GradScaler("mps", init_scale=2.0**10)
    x = torch.ones(2, 4, device="mps")

    scaler.scale(model(x * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**9
    for name, parameter in model.state_dict().items():
        assert torch.equal(parameter.cpu(), before[name].cpu())

    optimizer.zero_grad()
    scaler.scale(model(x).sum()).backward()
    scaler.unscale_(optimizer)
    torch.testing.assert_close(model.weight.grad.cpu(), torch.full((1, 4), 2.0))
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**9
    assert not torch.equal(model.weight.detach().cpu(), before["weight"].cpu())


def test_scaler_state_round_trip():
    scaler = torch.amp.GradScaler("mps", init_scale=8.0)
    scaler.scale(torch.ones(1, device="mps"))
    other = torch.amp.GradScaler("mps")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 8.0
