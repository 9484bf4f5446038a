"""What products and convolutions do as they store their results, compiled: torch_anymps/inductor/epilogues.py."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from compiled import TOLERANCE, calls, compiled_agrees, kernel_count
from torch import nn
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.testing import assert_close

from torch_anymps.inductor import graph_passes

pytestmark = pytest.mark.usefixtures("mps", "epilogues_everywhere")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def infer(model, *inputs, dynamic=None):
    """The generated modules of a model without gradients, whose results agree with eager ones on the CPU in float32."""
    model.eval()
    expected = copy.deepcopy(model).cpu().float()(*(x.cpu().float() for x in inputs))
    torch._dynamo.reset()
    with torch.no_grad(), fresh_cache():
        result, codes = run_and_get_code(torch.compile(model, fullgraph=True, dynamic=dynamic), *inputs)
    limit = 2 * TOLERANCE.get(result.dtype, 2e-5)
    assert result.dtype == inputs[0].dtype
    assert_close(result.cpu().float(), expected, rtol=limit, atol=limit)
    return codes


def train(model, x, dtype=None):
    """The generated modules of a step, with autocast where a dtype is given; gradients agree with eager ones."""
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        module = copy.deepcopy(model)
        leaf = x.detach().clone().requires_grad_()

        def run(module=module, leaf=leaf, compiled=compiled):
            with torch.autocast("mps", dtype, enabled=dtype is not None):
                result = (torch.compile(module, fullgraph=True) if compiled else module)(leaf)
            return [result, *torch.autograd.grad(result.float().sin().sum(), [leaf, *module.parameters()])]

        with fresh_cache():
            found.append(run_and_get_code(run))
    (expected, _), (results, codes) = found
    limit = 2 * TOLERANCE.get(dtype, 2e-5)
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == want.dtype
        assert_close(got, want, rtol=limit, atol=limit * max(want.abs().max().item(), 1))
    return codes


class PreNorm(nn.Module):
    """Two blocks of a residual stream: x + f(norm(x))."""

    def __init__(self, width=32, count=2):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(count))
        self.inner = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(count))
        self.outer = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(count))

    def forward(self, x):
        for norm, inner, outer in zip(self.norms, self.inner, self.outer):
            x = x + outer(F.gelu(inner(norm(x))))
        return x


class GatedMlp(nn.Module):
    def __init__(self, function=F.silu, width=32):
        super().__init__()
        self.function = function
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(self.function(self.gate(x)) * self.up(x))


class ConvBlock(nn.Module):
    """Bottleneck of ResNet: convolution, batch norm, ReLU; a sum with what came in; and a convolution with a bias."""

    def __init__(self, channels=16, groups=1):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=groups)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.last = nn.Conv2d(channels, 8, 1)
        torch.manual_seed(1)
        for norm in self.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x):
        inner = F.relu(self.norms[0](self.first(x)))
        return torch.tanh(self.last(F.relu(self.norms[1](self.second(inner)) + x)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual_stream_without_gradients(dtype):
    codes = infer(PreNorm().to("mps", dtype), torch.randn(4, 16, 32, device="mps", dtype=dtype))
    assert calls(codes, "'gelu', None)") == 2
    assert calls(codes, "'add', ") == 2
    assert kernel_count(codes) == 1  # that of both norms


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function, name", [(F.silu, "silu_mul"), (F.gelu, "gelu_mul"), (torch.sigmoid, "sigmoid_mul")])
def test_gates_without_gradients(function, name, dtype):
    codes = infer(GatedMlp(function).to("mps", dtype), torch.randn(4, 16, 32, device="mps", dtype=dtype))
    assert calls(codes, "anymps.addmm_epilogue.default(") == 1
    assert kernel_count(codes) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_convolutions_with_batch_norm_without_gradients(dtype, groups, format):
    model = ConvBlock(groups=groups).to("mps", dtype)
    x = torch.randn(2, 16, 8, 8, device="mps", dtype=dtype).to(memory_format=format)
    codes = infer(model, x)
    assert calls(codes, "anymps.convolution_epilogue.default(") == 3
    assert calls(codes, "'relu', None)") == 1
    assert calls(codes, "'add relu', ") == 1
    assert calls(codes, "'tanh', None)") == 1
    assert kernel_count(codes) <= 2  # scales and shifts of channels


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_of_two_convolutions(dtype):
    """ResNet's blocks that change their size; and the beginning of a network, which a pool follows."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(3))
            self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
            self.last = nn.Conv2d(8, 8, 1)

        def forward(self, x):
            first, main, shortcut = (norm(conv(y)) for norm, conv, y in self.steps(x))
            return self.last(F.relu(main + shortcut)) + first.mean()

        def steps(self, x):
            pooled = F.max_pool2d(F.relu(self.norms[0](self.convs[0](x))), 2)
            return zip(self.norms, self.convs, (x, pooled, pooled))

    torch.manual_seed(0)
    codes = infer(Network().to("mps", dtype), torch.randn(2, 8, 8, 8, device="mps", dtype=dtype))
    assert calls(codes, "'add relu', ") == 1
    assert calls(codes, "'relu', None)") == 1
    assert calls(codes, "'', None)") >= 1


def test_convolutions_under_autocast():
    model, x = ConvBlock().to("mps").eval(), torch.randn(2, 16, 8, 8, device="mps")
    torch._dynamo.reset()
    with torch.no_grad(), torch.autocast("mps", torch.bfloat16), fresh_cache():
        result, codes = run_and_get_code(torch.compile(model, fullgraph=True), x)
        assert_close(result, model(x), rtol=6e-2, atol=6e-2)
    assert calls(codes, "anymps.convolution_epilogue.default(") >= 2


def test_depthwise_convolutions_keep_their_kernels():
    codes = infer(ConvBlock(groups=16).to("mps"), torch.randn(2, 16, 8, 8, device="mps"))
    assert calls(codes, "anymps.convolution_epilogue.default(") == 2


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.Sigmoid(), nn.Tanh(), nn.SiLU()])
def test_gradients_of_activations(activation, dtype):
    model = nn.Sequential(nn.Linear(32, 48), activation, nn.Linear(48, 32)).to("mps")
    codes = train(model, torch.randn(4, 16, 32, device="mps"), dtype)
    assert calls(codes, "anymps.addmm_epilogue") >= (2 if isinstance(activation, nn.GELU) else 1)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_gates_and_their_gradients(dtype):
    train(GatedMlp().to("mps"), torch.randn(4, 16, 32, device="mps"), dtype)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_residual_stream_and_its_gradients(dtype):
    train(PreNorm().to("mps"), torch.randn(4, 16, 32, device="mps"), dtype)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_convolutions_and_their_gradients(dtype):
    layers = (
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(8, 4, 1),
    )
    codes = train(nn.Sequential(*layers).to("mps"), torch.randn(2, 8, 8, 8, device="mps"), dtype)
    assert calls(codes, "anymps.convolution_epilogue.default(") == 3


@pytest.mark.parametrize(
    "model, size", [(PreNorm(), (4, 16, 32)), (ConvBlock(), (2, 16, 8, 8)), (GatedMlp(), (4, 9, 32))]
)
def test_dynamic_sizes(model, size):
    model = copy.deepcopy(model).to("mps").eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    with torch.no_grad(), fresh_cache():
        for batch in (2, 5, 3):
            x = torch.randn(batch, *size[1:], device="mps")
            torch._dynamo.mark_dynamic(x, 0)
            result, codes = run_and_get_code(compiled, x)
            assert_close(result, model(x), rtol=1e-4, atol=1e-4)
            assert batch != 2 or calls(codes, "_epilogue.default(") > 0


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (4, 1), (5, 0)])
def test_beside_matrix_units_products_of_few_rows_alone(monkeypatch, rows, count):
    config = dataclasses.replace(graph_passes.device_config(), matrix_units=True)
    monkeypatch.setattr(graph_passes, "device_config", lambda: config)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to("mps")
    codes = infer(model, torch.randn(rows, 16, device="mps"))
    assert calls(codes, "addmm_epilogue.default(") == count


def test_matrices_with_a_residual():
    """Inductor has a bias apart there: its sum is not taken for the residual's."""
    layer, x = nn.Linear(32, 32).to("mps"), torch.randn(16, 32, device="mps")
    after = nn.Linear(32, 8).to("mps")
    torch._dynamo.reset()
    with torch.no_grad(), fresh_cache():
        result, codes = run_and_get_code(torch.compile(lambda x: after(F.relu(layer(x) + x)), fullgraph=True), x)
        assert_close(result, after(F.relu(layer(x) + x)))
    assert calls(codes, "'add relu', ") == 1
    assert kernel_count(codes) == 0


def test_what_is_not_in_memory_is_no_operand():
    """A factor that would have to be stored first is left to fusion."""
    layer, after = (nn.Linear(32, 32).to("mps") for _ in range(2))
    x, y = (torch.randn(16, 32, device="mps") for _ in range(2))
    torch._dynamo.reset()
    with torch.no_grad(), fresh_cache():
        result, codes = run_and_get_code(torch.compile(lambda x, y: after(layer(x) * (y.sin() + 1))), x, y)
        assert_close(result, after(layer(x) * (y.sin() + 1)), rtol=1e-4, atol=1e-5)
    assert calls(codes, "addmm_epilogue") == 0


def test_results_that_others_read_are_kept_as_they_are():
    layer, after = (nn.Linear(32, 32).to("mps") for _ in range(2))
    x = torch.randn(16, 32, device="mps")

    def function(x):
        hidden = layer(x)
        return after(F.silu(hidden)), hidden.softmax(-1)

    torch._dynamo.reset()
    with torch.no_grad(), fresh_cache():
        result, _ = run_and_get_code(torch.compile(function, fullgraph=True), x)
        for got, want in zip(result, function(x), strict=True):
            assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("convolution", [False, True])
def test_sizes_as_summands_and_factors(convolution):
    x, w = torch.randn(4, 6, 8, 8, device="mps"), torch.randn(6, 6, 3, 3, device="mps")
    inputs = (x, w) if convolution else (x[0, 0], w[0, :, 0, 0].expand(8, 6))

    def function(a, b):
        y = F.conv2d(a, b) if convolution else a @ b
        return y + a.size(0), a.size(0) + y.relu(), y * a.size(1)

    for got, want in zip(torch.compile(function, dynamic=True)(*inputs), function(*inputs), strict=True):
        assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_operands_that_were_reshaped():
    """As many dimensions as the results, and other sizes."""
    x, w, y, v = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(2, 4, 4, 9), torch.randn(2, 4, 1, 1)
    image = lambda x, w, y, v: F.conv2d(F.relu(F.conv2d(x, w, padding=1) + y.view(2, 4, 6, 6)), v)
    assert calls(compiled_agrees(image, x, w, y, v, tolerance=1e-4), "convolution_epilogue")
    x, w, y, v = torch.randn(5, 6), torch.randn(6, 8), torch.randn(8, 5), torch.randn(8, 4)
    product = lambda x, w, y, v: F.relu(x @ w + y.view(5, 8)) @ v
    assert calls(compiled_agrees(product, x, w, y, v), "addmm_epilogue")


def test_summands_of_a_wider_dtype():
    """A bias of float32 behind a product of 16 bits, whose sum is float32."""
    x, w, v = torch.randn(5, 6).bfloat16(), torch.randn(6, 8).bfloat16(), torch.randn(8, 4)
    function = lambda x, w, bias, v: F.relu(x @ w + bias) @ v
    compiled_agrees(function, x, w, torch.randn(8), v, tolerance=TOLERANCE[torch.bfloat16] * 2)


@pytest.mark.parametrize("step", [lambda x, y: x + y, lambda x, y: F.gelu(x)])
def test_steps_that_are_not_worth_it_are_done_once(step):
    """The convolution adds its bias; what a norm reads is computed twice sooner than stored."""
    function = lambda x, w, b, y: F.group_norm(step(F.conv2d(x, w, b, padding=1), y), 8)
    inputs = torch.randn(4, 16, 8, 8), torch.randn(8, 16, 3, 3), torch.randn(8), torch.randn(4, 8, 8, 8)
    assert calls(compiled_agrees(function, *inputs, tolerance=1e-4), "anymps.convolution_epilogue.default(") == 1


@torch._inductor.config.patch(implicit_fallbacks=False)
def test_without_implicit_fallbacks(mps):
    """Operators that passes put into graphs have lowerings of their own."""
    image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).to(mps)
    assert calls(infer(image, torch.rand(2, 3, 9, 9, device=mps)), "anymps.convolution_epilogue.default(") == 1
    rows = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to(mps)
    assert calls(train(rows, torch.rand(12, 16, device=mps), torch.bfloat16), "anymps.convert_all.default(") == 1
