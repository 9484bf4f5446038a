"""What torch_anymps/inductor/graph_passes.py does to graphs: conversions of weights, and gradients of weights."""

import copy
import math
import re

import pytest
import torch
from compiled import calls, compiled_agrees
from torch import nn
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.testing import assert_close

from torch_anymps.inductor import graph_passes

pytestmark = pytest.mark.usefixtures("mps", "epilogues_everywhere")


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


def mlp(activation):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), activation, nn.Linear(48, 32)).to("mps")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gelu_and_its_gradient_are_parts_of_products(approximate, dtype):
    codes = agree(mlp(nn.GELU(approximate)), torch.randn(4, 16, 32, device="mps"), dtype)
    name = "gelu" if approximate == "none" else "gelu_tanh"
    assert calls(codes, "anymps.addmm_epilogue_and_first.default(") == calls(codes, f"'{name}', None)") == 1
    assert calls(codes, f"'{name}_backward', ") == 1
    assert calls(codes, "anymps.convert_all.default(") == 1 and not re.search(r"mps_fused__to_copy_\d", "".join(codes))
    assert not re.search(r"let tmp\d+ = .*gelu", "".join(codes))


class WrittenOut(nn.Module):
    """gelu by its formula with tanh, of which power and sum are float32 under autocast."""

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gelu_that_is_written_out_is_a_part_of_products(dtype):
    codes = agree(mlp(WrittenOut()), torch.randn(4, 16, 32, device="mps"), dtype)
    assert calls(codes, "'gelu_tanh', None)") == 1
    assert calls(codes, "'gelu_tanh_backward', ") == 1


@pytest.mark.parametrize(
    "formula",
    [
        lambda x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 2.0)))),
        lambda x: 0.5 * x.sin() * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    ],
)
def test_what_is_nearly_the_formula_of_gelu_is_kept(formula):
    x = torch.randn(64, device="mps")
    torch._dynamo.reset()
    with fresh_cache():
        result, codes = run_and_get_code(lambda: torch.compile(formula, fullgraph=True)(x))
    assert_close(result, formula(x))
    assert calls(codes, "gelu") == 0


@pytest.mark.parametrize("changed", ["x", "half", "last"])
def test_gelu_that_is_written_out_with_writes_between(changed):
    def function(x):
        half = 0.5 * x
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        last = 1.0 + torch.tanh(inner)
        {"x": x, "half": half, "last": last}[changed][0].zero_()
        return half * last

    compiled_agrees(function, torch.randn(4, 16))


@pytest.mark.filterwarnings("error:Raw SymInt value")
@pytest.mark.parametrize("sizes, fused", [((0,), 1), ((0, 1), 0)])
def test_dynamic_sizes(sizes, fused):
    """One that is dynamic is no hindrance; with more there is no reshape of products without arithmetic of sizes."""
    x = torch.randn(4, 16, 32, device="mps")
    for dim in sizes:
        torch._dynamo.mark_dynamic(x, dim)
    codes = agree(mlp(nn.GELU()), x)
    assert calls(codes, "'gelu', None)") == fused


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU()])
def test_activation_without_gradients_keeps_nothing(activation):
    model, x = mlp(activation), torch.randn(16, 32, device="mps")
    torch._dynamo.reset()
    with torch.no_grad(), fresh_cache():
        result, codes = run_and_get_code(lambda: torch.compile(model, fullgraph=True)(x))
        assert_close(result, model(x))
    name = type(activation).__name__.lower()
    assert calls(codes, "anymps.addmm_epilogue.default(") == calls(codes, f"'{name}', None)") == 1


def test_activation_that_fuses_with_more_is_left_to_fusion():
    layer, x = nn.Linear(32, 32).to("mps"), torch.randn(16, 32, device="mps")
    torch._dynamo.reset()
    with torch.no_grad(), fresh_cache():
        result, codes = run_and_get_code(torch.compile(lambda: nn.functional.gelu(layer(x)) * 2 + x, fullgraph=True))
        assert_close(result, nn.functional.gelu(layer(x)) * 2 + x)
    assert calls(codes, "addmm_epilogue") == 0
