"""Fake quantization against the CPU: fixed, learnable and observed scales, and quantization-aware training."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from both_devices import agree, layouts
from torch.ao import quantization

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# Values that no scale below maps near a half, where a rounding more or less decides.
SCALE = 0.0713


def random(*shape, dtype=torch.float32):
    return (torch.randn(shape) * 6).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_per_tensor(dtype, mps, no_fallback):
    for x in layouts((7, 9, 5), dtype):
        agree(lambda x: torch.fake_quantize_per_tensor_affine(x * 6, SCALE, 11, 0, 127), x)
    call = aten.fake_quantize_per_tensor_affine_cachemask
    agree(lambda x: call(x, SCALE, -3, -8, 7), random(300, dtype=dtype), backward=False)
    agree(lambda x: call(x, SCALE, 0, 0, 0), random(0, 3, dtype=dtype), backward=False)
    scale, zero_point = torch.tensor(SCALE), torch.tensor(5, dtype=torch.int32)
    agree(
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, -128, 127),
        random(5, 70, dtype=dtype),
        scale,
        zero_point,
        backward=False,
    )
    for enabled in (torch.tensor([0]), torch.tensor([1])):
        tensors = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        agree(
            lambda x, s, z, e: tensors(x, s, z, e, 0, 63),  # noqa: B023
            random(40, dtype=dtype),
            scale.view(1),
            zero_point.view(1),
            enabled,
            backward=False,
        )


def test_special_values(mps):
    """Infinities are the ends of the range, as ATen's kernel for whole tensors has it; NaN is the lower one."""
    x = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0, -0.0, 1e-42])
    agree(lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, -8, 7), x, backward=False)
    ends = torch.fake_quantize_per_channel_affine(
        x[1:5].view(1, -1).to(mps),
        torch.tensor([0.1], device=mps),
        torch.tensor([3], dtype=torch.int32, device=mps),
        0,
        -8,
        7,
    )  # fmt: skip
    torch.testing.assert_close(ends.cpu(), torch.tensor([[0.4, -1.1, 0.4, -1.1]]))


def test_range_of_32_bits(mps):
    """Bounds that floats do not hold: what is inside is exact."""
    x = torch.tensor([2147483392.0, 2147483520.0, -2147483648.0, -2147483904.0, 100.0])
    low, high = -(2**31), 2**31 - 1
    agree(lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 1.0, 0, low, high), x, backward=False)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("zero_points", [torch.int32, torch.float32, torch.float16])
def test_per_channel(dtype, zero_points, mps, no_fallback):
    for axis, x in zip((0, 1, 2, 1), layouts((4, 6, 5), dtype)):
        channels = x.shape[axis]
        scale = torch.linspace(0.031, 0.117, channels)
        zero_point = torch.arange(channels).to(zero_points)
        if zero_points != torch.int32:
            zero_point = zero_point + 0.25
        agree(
            lambda x, s, z: torch.fake_quantize_per_channel_affine(x * 6, s, z, axis, 0, 31),  # noqa: B023
            x,
            scale,
            zero_point,
            backward=False,
        )
        agree(
            lambda x: torch.fake_quantize_per_channel_affine(
                x,
                scale.to(x.device),  # noqa: B023
                zero_point.to(x.device),  # noqa: B023
                axis,  # noqa: B023
                0,
                31,  # noqa: B023
            ),
            x,
        )


@pytest.mark.parametrize("grad_factor", [1.0, 0.37])
def test_learnable(grad_factor, mps, no_fallback):
    for zero in (2.3, -40.0, 900.0):
        agree(
            lambda x, s, z: torch._fake_quantize_learnable_per_tensor_affine(x, s, z, 0, 63, grad_factor),
            random(6, 50),
            torch.tensor([SCALE]),
            torch.tensor([zero]),
            tolerance=1e-4,
        )
    for axis in range(3):
        x = random(4, 6, 5)
        scale, zero_point = torch.linspace(0.031, 0.117, x.shape[axis]), torch.linspace(-3.0, 70.3, x.shape[axis])
        agree(
            lambda x, s, z, axis=axis: torch._fake_quantize_learnable_per_channel_affine(
                x, s, z, axis, 0, 63, grad_factor
            ),
            x,
            scale,
            zero_point,
            tolerance=1e-4,
        )


def observed(device, x, running, flags, per_row, symmetric, bounds, axis=0, zero_point=torch.int32):
    state = [torch.tensor(v, device=device, dtype=torch.float32) for v in running]
    state += [torch.ones_like(state[0]), torch.zeros_like(state[0], dtype=zero_point)]
    flags = [torch.tensor([f], device=device) for f in flags]
    output = torch.fused_moving_avg_obs_fake_quant(
        x.to(device), *flags, *state, 0.01, *bounds, axis, per_row, symmetric
    )
    return [t.detach().cpu() for t in (output, *state)]


def same_observation(mps, *arguments, **options):
    for got, want in zip(observed(mps, *arguments, **options), observed("cpu", *arguments, **options)):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bounds", [(0, 255), (-128, 127), (0, 127), (-8, 7)])
def test_observer_per_tensor(symmetric, bounds, mps, flushes, no_fallback):
    """Bit by bit, as PyTorch chooses the scale in doubles."""
    infinite = ([math.inf], [-math.inf])
    for scale in (*(() if flushes else (1e-42,)), 1e-6, 0.001, 1.0, 7.0, 1e30):
        for x in (random(64), random(64).abs(), -random(64).abs(), torch.tensor([-1.0, 1.0]), torch.zeros(5)):
            same_observation(mps, x * scale, infinite, (1, 1), False, symmetric, bounds)
            same_observation(mps, x * scale, ([-2.5], [3.75]), (1, 1), False, symmetric, bounds)
    for flags in ((0, 0), (0, 1), (1, 0)):
        same_observation(mps, random(9, 3), ([-2.5], [3.75]), flags, False, symmetric, bounds, zero_point=torch.int64)


@pytest.mark.parametrize("symmetric", [False, True])
def test_observer_per_channel(symmetric, mps, no_fallback):
    for shape in ((3, 70), (5, 2, 3, 3)):
        same_observation(mps, random(*shape), ([], []), (1, 1), True, symmetric, (-128, 127))
    running = ([-1.0] * 300, [2.0] * 300)
    same_observation(mps, random(300, 7), running, (1, 1), True, symmetric, (-128, 127))
    same_observation(mps, random(300, 7), running, (0, 1), True, symmetric, (-128, 127))
    same_observation(mps, random(300, 7), running, (1, 0), True, symmetric, (-128, 127))


def test_ranges_with_a_middle(mps, no_fallback):
    """Zero points of ranges that 0 halves lie between two integers, where the last bit of a double decides."""
    edges = torch.rand(2000) + 1e-3
    x = torch.stack([-edges, edges], 1)
    same_observation(mps, x, ([], []), (1, 1), True, False, (0, 255))
    same_observation(mps, x * torch.tensor([1.0, 3.0]), ([], []), (1, 1), True, False, (-128, 127))


def test_gradient_and_functional_form(mps):
    def loss(x):
        state = [torch.tensor([v], device=x.device) for v in (-3.0, 5.0, 1.0)] + [torch.tensor([0], device=x.device)]
        flags = [torch.tensor([1], device=x.device)] * 2
        return torch.fused_moving_avg_obs_fake_quant(x, *flags, *state, 0.01, 0, 255, 0, False, False)

    agree(loss, random(40, 3))
    state = [torch.tensor([v], device=mps) for v in (-3.0, 5.0, 1.0)] + [torch.tensor([0], device=mps)]
    flags = [torch.tensor([1], device=mps)] * 2
    x = torch.linspace(-9.0, 9.0, 50, device=mps)
    found = aten._fused_moving_avg_obs_fq_helper_functional(x, *flags, *state, 0.01, 0, 255, 0, False, False)
    assert len(found) == 6 and state[2].item() == 1.0 and found[4].item() != 1.0


def test_errors(mps, raises_as_on_the_cpu):
    raises_as_on_the_cpu(lambda ones: torch.fake_quantize_per_tensor_affine(ones(2), 0.1, 9, -8, 7))
    raises_as_on_the_cpu(lambda ones: torch.fake_quantize_per_tensor_affine(ones(2), 0.1, 0, 8, 7))
    raises_as_on_the_cpu(lambda ones: torch.fake_quantize_per_tensor_affine(ones(2).int(), 0.1, 0, -8, 7))
    channel = torch.fake_quantize_per_channel_affine
    raises_as_on_the_cpu(lambda ones: channel(ones(2, 3), ones(3), ones(3).int() * 9, 1, -8, 7))
    raises_as_on_the_cpu(lambda ones: channel(ones(2, 3), ones(2), ones(2).int(), 1, -8, 7))
    raises_as_on_the_cpu(lambda ones: channel(ones(2, 3), ones(3).half(), ones(3).int(), 1, -8, 7))
    raises_as_on_the_cpu(lambda ones: channel(ones(2, 3), ones(3), ones(3).long(), 1, -8, 7))
    with pytest.raises(torch.AcceleratorError, match="min should be less than or equal to max"):
        observed(mps, torch.tensor([math.nan]), ([math.inf], [-math.inf]), (1, 1), False, False, (0, 255))


def prepared(fused: bool):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3)
    )
    model.train()
    model = quantization.fuse_modules_qat(model, [["0", "1", "2"]])
    backend = quantization.get_default_qat_qconfig("x86", version=1 if fused else 0)
    model.qconfig = backend
    return quantization.prepare_qat(model)


@pytest.mark.parametrize("fused", [True, False])
def test_training(fused, mps, no_fallback):
    """Convolution, batch norm and linear with x86's configuration: fused, and observer plus fake quantizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = prepared(fused)
        x, y = torch.randn(8, 2, 6, 6), torch.randint(3, (8,))
        found = []
        for device in ("cpu", mps):
            ours = copy.deepcopy(model).to(device)
            optimizer = torch.optim.SGD(ours.parameters(), lr=0.05)
            losses = []
            for _ in range(5):
                loss = torch.nn.functional.cross_entropy(ours(x.to(device)), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            found.append((losses, {k: v.cpu() for k, v in ours.state_dict().items()}))
    (expected, state), (actual, ours) = found
    # A value at the edge of a step may fall to the other side of it: then by a step, some thousandths.
    assert actual == pytest.approx(expected, abs=5e-3)
    assert ours.keys() == state.keys()
    scales = [k for k in state if k.endswith(".scale")]
    assert scales
    for name in scales:
        torch.testing.assert_close(ours[name], state[name], rtol=2e-2, atol=1e-5)
