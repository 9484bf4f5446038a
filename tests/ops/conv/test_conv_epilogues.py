"""torch.ops.anymps.convolution_epilogue, against the operators that it stands for."""

import pytest
import torch
import torch.nn.functional as F
from compare import SUMMED as TOLERANCE
from epilogue_functions import FUNCTIONS, after
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("mps", "all_bits_of_f32")

convolution_epilogue = torch.ops.anymps.convolution_epilogue
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# batch, channels, filters, size, taps, stride, groups: tiles without and with shared memory, edges of them, positions
# that are not vectors, groups, and a sum that is split over k.
SHAPES = [
    (2, 3, 5, 7, 3, 1, 1),
    (2, 32, 64, 8, 1, 1, 1),
    (2, 64, 64, 8, 3, 1, 1),
    (1, 64, 72, 9, 3, 2, 1),
    (2, 16, 24, 6, 3, 1, 2),
    (1, 1024, 8, 3, 3, 1, 1),
]


def problem(shape, dtype, format=torch.contiguous_format):
    """image, weight, bias, scale, shift and an operand of the results' sizes, on the CPU; results are about 1."""
    batch, channels, filters, size, taps, stride, groups = shape
    torch.manual_seed(sum(shape))
    image = torch.randn(batch, channels, size, size).to(dtype).to(memory_format=format)
    weight = torch.randn(filters, channels // groups, taps, taps).div((channels // groups * taps * taps) ** 0.5)
    out = (size + 2 * (taps // 2) - taps) // stride + 1
    operand = torch.randn(batch, filters, out, out).to(dtype).to(memory_format=format)
    return (
        image,
        weight.to(dtype),
        torch.randn(filters).to(dtype),
        torch.rand(filters) + 0.5,
        torch.randn(filters),
        operand,
    )


def agree(shape, dtype, steps, with_scale=True, with_bias=True, format=torch.contiguous_format):
    image, weight, bias, scale, shift, operand = problem(shape, dtype, format)
    taps, stride, groups = shape[4:]
    reads = any(step in ("add", "mul") or step.rpartition("_")[2] in ("mul", "add", "backward") for step in steps)
    expected = F.conv2d(image.float(), weight.float(), bias.float() * with_bias, stride, taps // 2, 1, groups)
    if with_scale:
        expected = expected * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)
    expected = after(steps, expected, operand.float())
    on_device = [t.to("mps") for t in (image, weight, bias, scale, shift, operand)]
    image, weight, bias, scale, shift, operand = on_device
    factors = (scale, shift) if with_scale else (None, None)
    result = convolution_epilogue(
        image, weight, bias if with_bias else None, [stride] * 2, [taps // 2] * 2, [1, 1], groups, *factors,
        " ".join(steps), operand if reads else None,
    )  # fmt: skip
    assert result.dtype == dtype
    assert result.is_contiguous(memory_format=format)
    limit = 2 * TOLERANCE[dtype]
    assert_close(result.cpu().float(), expected, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [["relu"], ["add", "relu"], ["silu", "mul"]])
def test_steps_of_a_convolution(shape, dtype, steps):
    agree(shape, dtype, steps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_channels_last(shape, dtype):
    agree(shape, dtype, ["add", "relu"], format=torch.channels_last)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_a_convolution(name):
    agree((2, 16, 32, 8, 1, 1, 1), torch.float32, [name], with_scale=False, with_bias=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [[], ["relu"]])
def test_bias_or_scale_alone(steps, dtype):
    for with_scale, with_bias in ((True, False), (False, True)):
        agree((2, 64, 64, 8, 3, 1, 1), dtype, steps, with_scale, with_bias)


def test_products_that_may_lose_what_tf32_does(tf32):
    for shape in ((2, 64, 64, 16, 3, 1, 1), (2, 128, 256, 16, 1, 1, 1), (2, 256, 64, 16, 1, 1, 1)):
        image, weight, bias, scale, shift, operand = problem(shape, torch.float32)
        taps = shape[4]
        expected = F.conv2d(image, weight, bias, 1, taps // 2) * scale.view(-1, 1, 1) + shift.view(-1, 1, 1) + operand
        image, weight, bias, scale, shift, operand = (t.to("mps") for t in (image, weight, bias, scale, shift, operand))
        result = convolution_epilogue(
            image, weight, bias, [1, 1], [taps // 2] * 2, [1, 1], 1, scale, shift, "add relu", operand
        )
        assert_close(result.cpu(), F.relu(expected), rtol=3e-3, atol=3e-3)


def test_depthwise_convolutions_are_products_too():
    agree((2, 8, 8, 8, 3, 1, 8), torch.float32, ["relu"])


def test_empty_results():
    image, weight = torch.empty(0, 3, 4, 4, device="mps"), torch.empty(5, 3, 1, 1, device="mps")
    arguments = ([1, 1], [0, 0], [1, 1], 1, None, None)
    assert convolution_epilogue(image, weight, None, *arguments, "relu").shape == (0, 5, 4, 4)


def test_errors():
    image, weight = torch.ones(1, 3, 4, 4, device="mps"), torch.ones(5, 3, 1, 1, device="mps")
    geometry = ([1, 1], [0, 0], [1, 1], 1)
    five = torch.ones(5, device="mps")
    with pytest.raises(ValueError, match="there is no epilogue elu"):
        convolution_epilogue(image, weight, None, *geometry, None, None, "elu")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        convolution_epilogue(image, weight.cpu(), None, *geometry, None, None, "relu")
    with pytest.raises(RuntimeError, match="do not fit"):
        convolution_epilogue(image, weight[:, :2], None, *geometry, None, None, "relu")
    with pytest.raises(RuntimeError, match="or neither"):
        convolution_epilogue(image, weight, None, *geometry, five, None, "relu")
    with pytest.raises(RuntimeError, match="scale and shift of 5 channels"):
        convolution_epilogue(image, weight, None, *geometry, five, five[:4], "relu")
    with pytest.raises(RuntimeError, match="expected an operand of"):
        convolution_epilogue(image, weight, None, *geometry, None, None, "add", image)
    with pytest.raises(RuntimeError, match="floating point"):
        convolution_epilogue(image.int(), weight.int(), None, *geometry, None, None, "relu")
