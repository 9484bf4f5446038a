"""Activations of a norm's result under autocast compute it again for their gradient, and keep no float32."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from both_devices import kernels

ACTIVATIONS = {
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "relu6": F.relu6,
    "hardtanh": lambda x, inplace=False: F.hardtanh(x, -0.5, 0.7, inplace),
    "leaky_relu": lambda x, inplace=False: F.leaky_relu(x, 0.2, inplace),
}
MODULES = {"batch": lambda: torch.nn.BatchNorm2d(16), "group": lambda: torch.nn.GroupNorm(4, 16)}
SHAPES = [(4, 16, 33, 35), (16, 8, 24, 24), (4096, 20), (8, 12, 700), (2, 8, 16, 16, 17)]
NORMS = ["training", "evaluation", "plain", "frozen", "groups", "plain groups"]


class Step:
    """Norm and activation of 16 bits, with every gradient, under autocast."""

    def __init__(self, shape, norm, channels_last=False, dtype=torch.bfloat16):
        channels = shape[1]
        layout = {4: torch.channels_last, 5: torch.channels_last_3d}[len(shape)] if channels_last else None
        self.dtype, self.norm = dtype, norm
        self.x = (torch.randn(shape) * 2 + 0.5).to(dtype)
        self.grad = torch.randn(shape)
        if layout:
            self.x = self.x.contiguous(memory_format=layout)
        self.parameters = [] if "plain" in norm else [torch.randn(channels) for _ in range(2)]
        self.running = [torch.randn(channels), torch.rand(channels) + 0.5]

    def normalize(self, x, parameters):
        if "groups" in self.norm:
            return F.group_norm(x, 4, *parameters)
        fixed = self.norm in ("evaluation", "frozen")
        running = [t.to("mps") for t in self.running] if fixed else [None, None]
        return F.batch_norm(x, *running, *parameters, training=not fixed)

    def call(self, activation, in_place, x, parameters):
        with torch.autocast("mps", self.dtype):
            return ACTIVATIONS[activation](self.normalize(x, parameters), inplace=in_place)

    def run(self, activation, in_place, keep=None):
        x = self.x.to("mps").requires_grad_(self.norm != "frozen")
        parameters = [t.to("mps").requires_grad_() for t in self.parameters]
        inputs = [t for t in (x, *parameters) if t.requires_grad]
        if keep:  # hooks on what is saved: PyTorch's own way
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
                y = self.call(activation, in_place, x, parameters)
        else:
            y = self.call(activation, in_place, x, parameters)
        return [y, *torch.autograd.grad(y, inputs, self.grad.to("mps"))]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_results_are_those_of_pytorchs_own_way(activation, norm):
    for shape, in_place in itertools.product(SHAPES, (False, True)):
        for last in (False, True) if len(shape) > 3 else (False,):
            step = Step(shape, norm, last, torch.float16 if in_place else torch.bfloat16)
            got, own = step.run(activation, in_place), step.run(activation, in_place, keep=lambda t: t)
            for g, o in zip(got, own, strict=True):
                assert g.dtype == o.dtype and g.stride() == o.stride()
                torch.testing.assert_close(g, o, rtol=1e-6 if g.dtype == torch.float32 else 2**-8, atol=1e-5 * len(g))


@pytest.mark.parametrize("norm, in_place", itertools.product(MODULES, (False, True)))
def test_the_float32_result_is_not_kept(norm, in_place, no_garbage):
    count = 1 << 20
    norm = MODULES[norm]().to("mps")
    x = torch.randn(4, 16, 128, 128, device="mps", dtype=torch.bfloat16, requires_grad=True)
    before = torch.accelerator.memory_allocated()
    with torch.autocast("mps", torch.bfloat16):
        y = F.silu(norm(x), inplace=in_place)
    assert torch.accelerator.memory_allocated() - before < 4 * count + 4096
    total = y.sum()
    del y
    assert torch.accelerator.memory_allocated() - before < 4096
    names = kernels(lambda: total.backward())
    assert any("channel_norm_activation_backward" in name for name in names)


@pytest.mark.parametrize("activation, groups", itertools.product(ACTIVATIONS, (0, 2)))
def test_second_derivatives(activation, groups):
    shape = (8, 4, 48, 48)
    x = torch.randn(shape, dtype=torch.float16)
    weight, bias = torch.randn(4), torch.randn(4)

    def derivatives(device, autocast):
        inputs = [t.detach().to(device).requires_grad_() for t in (x, weight, bias)]
        with torch.autocast("mps", torch.float16, enabled=autocast):
            image = inputs[0] if autocast else inputs[0].float()
            if groups:
                y = F.group_norm(image, groups, *inputs[1:])
            else:
                y = F.batch_norm(image, None, None, *inputs[1:], training=True)
            y = ACTIVATIONS[activation](y)
        first = torch.autograd.grad(y.sin().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum((t.float() ** 2).sum() for t in first[1:]), inputs[1:])
        return [t.detach().cpu() for t in (*first[1:], *second)]

    for got, wanted in zip(derivatives("mps", True), derivatives("cpu", False), strict=True):
        scale = wanted.abs().max().item()
        torch.testing.assert_close(got, wanted, rtol=2e-3, atol=2e-3 * scale)


def test_a_result_that_changed_is_kept_as_it_is():
    """In place, with and without autograd; and a second activation of one result."""
    x = torch.randn(4, 16, 64, 64, device="mps", dtype=torch.bfloat16, requires_grad=True)

    def gradient(between, autocast):
        with torch.autocast("mps", torch.bfloat16, enabled=autocast):
            y = F.batch_norm(x if autocast else x.float(), None, None, training=True)
            between(y)
            z = F.silu(y) + F.hardswish(y)
        return torch.autograd.grad(z.square().sum(), x)[0]

    def scaled_outside(y):
        with torch.no_grad():
            y.mul_(3)

    def through_data(y):
        y.data.mul_(3)

    for between in (lambda y: None, lambda y: y.mul_(3), scaled_outside, through_data):
        torch.testing.assert_close(gradient(between, True), gradient(between, False), rtol=2**-7, atol=1e-3)


def test_what_was_saved_and_changed_raises():
    norm = torch.nn.BatchNorm2d(16).to("mps")
    image = torch.randn(4, 16, 64, 64, device="mps", dtype=torch.bfloat16, requires_grad=True) * 1
    with torch.autocast("mps", torch.bfloat16):
        y = F.silu(norm(image), inplace=True)
    image.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_checkpoints():
    norm = torch.nn.BatchNorm2d(16).to("mps")
    x = torch.randn(4, 16, 64, 64, device="mps", dtype=torch.bfloat16, requires_grad=True)
    gradients = []
    for use_reentrant in (None, False, True):
        block = lambda t: F.silu(norm(t), inplace=True)  # noqa: E731
        with torch.autocast("mps", torch.bfloat16):
            if use_reentrant is None:
                y = block(x)
            else:
                y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=use_reentrant)
        gradients.append(torch.autograd.grad(y.sum(), x)[0] if use_reentrant is not True else backward_of(y, x))
    assert all(torch.equal(g, gradients[0]) for g in gradients)


def backward_of(y, x):
    x.grad = None
    y.sum().backward()
    return x.grad
