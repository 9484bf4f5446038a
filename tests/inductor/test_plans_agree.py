"""Every plan that the tuner and mode="max-autotune" may take computes what the planner's own does."""

import pytest
import torch
import torch.nn.functional as F
from compare import ROUNDED

from torch_anymps.inductor.plans import listed_plans

CASES = {
    "mm": (torch.mm, [(72, 200), (200, 96)]),
    "wide": (torch.mm, [(256, 1024), (1024, 384)]),
    "addmm": (torch.addmm, [(96,), (72, 200), (200, 96)]),
    "transposed": (lambda a, b: a.T @ b.T, [(200, 72), (96, 200)]),
    "bmm": (torch.bmm, [(3, 65, 48), (3, 48, 64)]),
    "1x1 of 64": (F.conv2d, [(2, 64, 28, 28), (64, 64, 1, 1)]),
    "1x1 of 128": (F.conv2d, [(2, 128, 28, 28), (96, 128, 1, 1)]),
    "1x1 of 512": (F.conv2d, [(2, 512, 14, 14), (64, 512, 1, 1)]),
    "3x3": (lambda x, w: F.conv2d(x, w, padding=1), [(2, 64, 28, 28), (64, 64, 3, 3)]),
    "strided": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), [(2, 32, 28, 28), (48, 32, 3, 3)]),
    "transposed convolution": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(2, 32, 14, 14), (32, 48, 2, 2)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_every_plan_agrees(mps, case, dtype):
    function, shapes = CASES[case]
    made = [torch.randn(shape).div(shape[-1] ** 0.5).to(dtype).to(mps) for shape in shapes]
    agree(function, made, dtype)
    if made[0].dim() == 4:
        agree(function, [x.contiguous(memory_format=torch.channels_last) for x in made], dtype)


def agree(function, inputs, dtype):
    expected = function(*inputs)
    bound = ROUNDED[dtype] * expected.abs().max().item()
    for plan in listed_plans(lambda: function(*inputs)):
        torch.ops.anymps.want_plan(torch.ops.anymps.plan_number(plan))
        try:
            got = function(*inputs)
        finally:
            torch.ops.anymps.want_plan(0)
        worst = (got.float() - expected.float()).abs().max().item()
        assert worst <= bound, f"{plan}: {worst:.2g} where {bound:.2g} is allowed"
