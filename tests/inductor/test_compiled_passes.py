"""What torch_anymps/inductor/graph_passes.py does to graphs: conversions of weights, and gradients of weights."""

import copy

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.testing import assert_close

from torch_anymps.inductor import graph_passes

pytestmark = pytest.mark.usefixtures("mps")


def gradients(model, x, compiled, dtype=torch.bfloat16):
    """Of a sum of the model's results under autocast; (result, gradients, generated modules)."""
    torch._dynamo.reset()
    model = copy.deepcopy(model)

    def run():
        with torch.autocast("mps", dtype):
            result = (torch.compile(model, fullgraph=True) if compiled else model)(x)
        return result, torch.autograd.grad(result.float().sin().sum(), list(model.parameters()))

    with fresh_cache():
        (result, grads), codes = run_and_get_code(run)
    return result, grads, codes


def agree(model, x, dtype=torch.bfloat16, tolerance=3e-2):
    """Compiled as not compiled; the generated modules."""
    expected, expected_grads, _ = gradients(model, x, False, dtype)
    result, grads, codes = gradients(model, x, True, dtype)
    assert_close(result, expected, rtol=tolerance, atol=tolerance)
    for got, want in zip(grads, expected_grads, strict=True):
        assert got.dtype == want.dtype == torch.float32
        assert_close(got, want, rtol=tolerance, atol=tolerance * want.abs().max().item())
    return codes


def layers(count=3):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)) for _ in range(count))).to("mps")


def calls(codes, word):
    return sum(code.count(word) for code in codes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_converted_by_one_launch(dtype):
    codes = agree(layers(), torch.randn(64, 32, device="mps"), dtype)
    assert calls(codes, "anymps.convert_all.default(") == 1


def test_conversions_of_many_bytes_are_several_launches(monkeypatch):
    monkeypatch.setattr(graph_passes, "MAX_CONVERTED_BYTES", 3 * 2 * 32 * 32)
    codes = agree(layers(6), torch.randn(64, 32, device="mps", dtype=torch.bfloat16))
    assert calls(codes, "anymps.convert_all.default(") == 3


def test_gradients_of_weights_are_written_as_float32():
    codes = agree(layers(), torch.randn(64, 32, device="mps"))
    assert calls(codes, "out_dtype=torch.float32") == 3


def test_conversions_that_fuse_are_left_to_fusion():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (nn.Parameter(torch.randn(8, 8)) for _ in range(2))

        def forward(self, x):
            return x * self.a.bfloat16() + self.b.bfloat16()

    codes = agree(Scaled().to("mps"), torch.randn(8, 8, device="mps", dtype=torch.bfloat16))
    assert calls(codes, "convert_all") == 0


def test_rounding_as_in_eager_mode_is_kept():
    with torch._inductor.config.patch(emulate_precision_casts=True):
        codes = agree(layers(), torch.randn(64, 32, device="mps"))
    assert calls(codes, "out_dtype") == 0
