"""torch.compile: the graph is captured and run by our kernels; inductor says in one sentence that it cannot."""

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("mps")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_training_with_captured_graphs(backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)).to("mps")
    x, y = torch.randn(10, 6, device="mps"), torch.randint(0, 3, (10,), device="mps")

    def loss_of(model, x, y):
        return nn.functional.cross_entropy(model(x), y)

    expected = loss_of(model, x, y)
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss = torch.compile(loss_of, backend=backend, fullgraph=True)(model, x, y)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_dynamic_shapes():
    @torch.compile(backend="aot_eager", dynamic=True)
    def f(x):
        return (x * 2).sum(0) + x.shape[0]

    for rows in (3, 5, 8):
        x = torch.randn(rows, 4, device="mps")
        torch.testing.assert_close(f(x), (x * 2).sum(0) + rows)


def test_inductor_says_that_it_cannot():
    compiled = torch.compile(lambda x: torch.sin(x) * 2)
    with pytest.raises(RuntimeError, match="inductor backend is not available for the mps device"):
        compiled(torch.ones(3, device="mps"))


def test_inductor_for_the_cpu_is_untouched():
    from torch._inductor.codegen import common

    common.init_backend_registration()
    assert common.get_scheduling_for_device("cpu") is not None
