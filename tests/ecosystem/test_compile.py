"""torch.compile as people call it; without the Slang compiler, aot_eager and one warning."""

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


def agree(function, *arguments, **options):
    torch.testing.assert_close(torch.compile(function, **options)(*arguments), function(*arguments))


@pytest.mark.parametrize(
    "options",
    [{}, {"dynamic": True}, {"fullgraph": True}, {"mode": "reduce-overhead"}, {"mode": "max-autotune"}]
    + [{"options": {"max_autotune": True, "triton.cudagraphs": True}}, {"backend": "inductor"}],
    ids=str,
)
def test_the_default_backend_runs_every_kind_of_graph(options):
    x = torch.randn(3, 4, device="mps")
    agree(lambda x: (x.sin() * 2).sum(0) + x.std() + x.softmax(1).amax(), x, **options)
    agree(lambda n: torch.arange(n, device="mps").sum() + n, 5, **options)  # no tensor among the inputs
    agree(lambda a, b: (a.sum() + 1, b.to("mps").cumsum(0)), torch.ones(3), torch.ones(4), **options)  # mixed


def test_training_with_a_compiled_module_and_a_compiled_optimizer():
    def losses(compiled):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)).to("mps")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        step = optimizer.step
        if compiled:
            model.compile()
            step = torch.compile(step)
        found = []
        for rows in (6, 6, 5):  # another batch size
            optimizer.zero_grad()
            loss = model(torch.linspace(-1, 1, 4 * rows, device="mps").reshape(rows, 4)).square().mean()
            loss.backward()
            step()
            found.append(loss.item())
        return found

    # A captured step has its bias corrections in float32 tensors, an eager one in Python's numbers.
    assert losses(True) == pytest.approx(losses(False), rel=1e-4)


def test_compiled_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = torch.randn(3, 1, 2, 16, 8, device="mps")
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="mps")
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(torch.compile(flex_attention)(q, k, v, block_mask=mask), expected)


WITHOUT_SLANG = """
import sys, torch, warnings
sys.modules["slangpy"] = None  # as if it were not installed
warnings.simplefilter("always")
"""


def test_without_the_slang_compiler_one_warning_and_aot_eager(run_python):
    source = (
        WITHOUT_SLANG
        + """
for function in (torch.sin, lambda x: x.sum() + 1, lambda x: x.mean() * 2):
    x = torch.ones(3, device="mps", requires_grad=True)
    result = torch.compile(function)(x)
    torch.testing.assert_close(result, function(x))
    result.sum().backward()
print(x.grad.tolist(), torch.compile(lambda x: x + 1)(torch.ones(2)).tolist())
"""
    )
    done = run_python(source)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[2 * torch.tensor(1 / 3).item()] * 3} [2.0, 2.0]\n"
    assert done.stderr.count("torch.compile needs the Slang compiler") == 1
    assert "pip install 'torch-anymps[compile]'" in done.stderr


MAKE_A_LIBRARY = """
program = torch.export.export(torch.nn.Linear(3, 2, device="mps"), (torch.ones(2, 3, device="mps"),))
try:
    torch._inductor.aoti_compile_and_package(program, package_path="model.pt2")
except Exception as error:
    print(str(error).split("\\n")[0])
"""


def test_aot_inductor_without_the_slang_compiler_says_what_to_install(run_python):
    done = run_python(WITHOUT_SLANG + MAKE_A_LIBRARY)
    assert "AOTInductor on mps needs the Slang compiler" in done.stdout, done.stderr
    assert "pip install 'torch-anymps[compile]'" in done.stdout


def test_inductor_for_the_cpu_is_untouched():
    from torch._inductor.codegen import common

    common.init_backend_registration()
    assert common.get_scheduling_for_device("cpu") is not None
