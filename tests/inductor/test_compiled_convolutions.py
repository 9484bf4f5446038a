"""Convolutions in compiled graphs: strides of results are those that generated code counts on."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from compiled import calls, compiled_agrees
from torch._subclasses import FakeTensorMode

FORMATS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


def images(*sizes, formatted="contiguous"):
    return torch.randn(sizes).to(memory_format=FORMATS[formatted])


@pytest.mark.parametrize("transposed", (False, True))
@pytest.mark.parametrize("spatial", (1, 2, 3))
def test_shape_functions_give_the_strides_of_eager_convolutions(mps, spatial, transposed):
    def operands(sizes, device="mps"):
        plain = torch.randn(sizes, device=device)
        yield plain
        yield plain.transpose(-1, -2).contiguous().transpose(-1, -2)
        if spatial > 1:
            last = torch.channels_last if spatial == 2 else torch.channels_last_3d
            yield plain.to(memory_format=last)

    ones, padding = [1] * spatial, [0] * spatial
    for x, w in itertools.product(operands([2, 4] + [6] * spatial), operands([4, 4] + [3] * spatial)):
        grad = torch.convolution(x, w, None, ones, ones, ones, transposed, padding, 1)

        def results(x, w, grad):
            out = torch.convolution(x, w, None, ones, ones, ones, transposed, padding, 1)
            return [
                out,
                *torch.ops.aten.convolution_backward(
                    grad, x, w, [4], ones, ones, ones, transposed, padding, 1, [True] * 3
                ),
            ]

        eager = results(x, w, grad)
        with FakeTensorMode() as mode:
            fake = results(*(mode.from_tensor(t) for t in (x, w, grad)))
        assert [t.stride() for t in fake] == [t.stride() for t in eager]


@pytest.mark.parametrize("of_weight", FORMATS)
@pytest.mark.parametrize("of_input", FORMATS)
def test_convolutions_between_pointwise_kernels(mps, of_input, of_weight):
    def block(x, w, b):
        return F.relu(F.conv2d(x.sin(), w * 2, b, padding=1)) + 1

    x, w = images(2, 4, 7, 7, formatted=of_input), images(6, 4, 3, 3, formatted=of_weight)
    arguments = [t.requires_grad_() for t in (x, w, torch.randn(6))]
    compiled_agrees(block, *arguments, backward=True, tolerance=2e-3)


def test_transposed_convolution_of_one_spatial_dimension(mps):
    def block(x, w):
        return F.conv_transpose1d(x.cos(), w, stride=2).exp()

    compiled_agrees(
        block,
        torch.randn(2, 3, 9, requires_grad=True),
        torch.randn(3, 4, 3).mul(0.1).requires_grad_(),
        backward=True,
        tolerance=2e-3,
    )


def test_a_residual_block_in_channels_last_trains(mps):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
            self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in range(2))

        def forward(self, x):
            y = F.relu(self.norms[0](self.first(x)))
            return F.relu(x + self.norms[1](self.second(y)))

    torch.manual_seed(0)
    x = images(2, 8, 6, 6, formatted="channels last")
    reference = Block().to(memory_format=torch.channels_last)
    model = Block()
    model.load_state_dict(reference.state_dict())
    model = model.to("mps", memory_format=torch.channels_last)
    compiled = torch.compile(model, fullgraph=True)
    for _ in range(2):
        for net, call, data in ((reference, reference, x), (model, compiled, x.to("mps"))):
            net.zero_grad()
            call(data).square().sum().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 1e-3 * parameter.grad
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=2e-3, atol=2e-3)


def test_gradients_of_depthwise_convolutions_in_channels_last_are_not_copied(mps):
    """The gradient of such a weight has the strides of NCHW, too."""

    def block(x, w, scale):
        y = F.conv2d(x * 2, w, padding=1, groups=8)
        return F.layer_norm(y.permute(0, 2, 3, 1), (8,)) * scale

    x, w = images(2, 8, 7, 7, formatted="channels last"), images(8, 1, 3, 3)
    arguments = [t.requires_grad_() for t in (x, w, torch.randn(8))]
    codes = compiled_agrees(block, *arguments, backward=True, tolerance=2e-3)
    assert calls(codes, "convolution_backward.default(") == 1
    assert calls(codes, "empty_strided_mps((2, 8, 7, 7), (392, 49, 7, 1)") == 0
