"""Optimizers whose steps are compiled, beside the same steps on the CPU."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("slang")


def _steps(optimizer, device, compiled: bool, **options) -> list[torch.Tensor]:
    """Parameters and state after four steps, of which the learning rates of all but the first differ."""
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(5, 3, generator=generator).to(device))
    made = optimizer([parameter], **options)
    step = torch.compile(made.step) if compiled else made.step
    for n in range(4):
        parameter.grad = torch.randn(5, 3, generator=generator).to(device)
        step()
        made.param_groups[0]["lr"] = 0.01 * (n + 1)
    return [parameter.detach().cpu(), *(made.state[parameter][name].cpu() for name in ("step", "mu_product"))]


@pytest.mark.parametrize("foreach", (None, False))
def test_products_of_momenta_after_another_learning_rate(mps, foreach):
    """They are read where the steps are, which PyTorch moves as it compiles again."""
    expected = _steps(torch.optim.NAdam, "cpu", False, foreach=foreach)
    actual = _steps(torch.optim.NAdam, mps, True, foreach=foreach)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("foreach", (None, False, True))
@pytest.mark.parametrize("name", ("Adamax", "NAdam", "RAdam", "ASGD", "Rprop", "Adadelta", "RMSprop"))
def test_learning_rates_on_the_device(mps, name, foreach):
    """PyTorch traces steps that are capturable, with state of the CPU that is: Adamax could not be compiled."""

    def run(device, compiled):
        generator = torch.Generator().manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(n, generator=generator).to(device)) for n in ((5, 3), (4,))]
        rate = torch.tensor(0.01, device=device)
        made = getattr(torch.optim, name)(parameters, lr=rate if foreach is not True else 0.01, foreach=foreach)
        step = torch.compile(made.step) if compiled else made.step
        for n in range(7):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(device)
            (made.step if n == 5 else step)()
            rate.mul_(0.9)
        assert made.param_groups[0]["capturable"] is False
        return [*parameters, *(value for p in parameters for _, value in sorted(made.state[p].items()))]

    torch._dynamo.reset()
    expected, actual = run("cpu", False), run(mps, True)
    for got, want in zip(actual, expected, strict=True):
        torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=2e-5, atol=2e-6)
