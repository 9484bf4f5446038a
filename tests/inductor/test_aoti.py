"""AOTInductor on mps: packages of exported models from Python, in processes without compilers, and from C++."""

from __future__ import annotations

import io
import pathlib
import subprocess

import pytest
import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch._inductor import cpp_builder
from torch.testing import assert_close

from torch_anymps._load import LIBRARY, file_for, package_file
from torch_anymps.inductor import device

pytestmark = pytest.mark.usefixtures("slang")
PROGRAM = pathlib.Path(__file__).parent / "aoti_program" / "main.cpp"


class Block(nn.Module):
    """A block of a transformer, causal."""

    def __init__(self, width: int = 32, heads: int = 4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.heads = heads

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 5), nn.Softmax(-1)), (6, 16)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3),
            nn.Flatten(), nn.Linear(36, 7)
        ),
        (2, 3, 10, 10),
    ),
    "transformer": (Block, (2, 6, 32)),
}  # fmt: skip


@pytest.fixture(scope="module")
def packaged(mps, tmp_path_factory):
    """packaged(name, dynamic=False) -> (model on mps, an input, path of its package), each compiled once."""
    made = {}

    def package(name: str, dynamic: bool = False):
        if (name, dynamic) not in made:
            torch.manual_seed(0)
            make, shape = MODELS[name]
            model, x = make().eval().requires_grad_(False).to(mps), torch.randn(*shape, device=mps)
            shapes = ({0: torch.export.Dim("batch", min=1, max=64)},) if dynamic else None
            program = torch.export.export(model, (x,), dynamic_shapes=shapes)
            path = tmp_path_factory.mktemp(name) / "model.pt2"
            # A precompiled header takes longer than it saves three modules; the JIT's is tested below.
            with inductor_config.patch({"aot_inductor.precompile_headers": False}):
                torch._inductor.aoti_compile_and_package(program, package_path=str(path))
            made[name, dynamic] = model, x, path
        return made[name, dynamic]

    return package


@pytest.mark.parametrize("name", MODELS)
def test_a_package_computes_what_its_model_does(packaged, name):
    model, x, path = packaged(name, dynamic=name == "transformer")
    run = torch._inductor.aoti_load_package(str(path))
    for _ in range(2):
        assert_close(run(x), model(x))


def test_one_package_serves_all_batches(packaged):
    model, x, path = packaged("transformer", dynamic=True)
    run = torch._inductor.aoti_load_package(str(path))
    for batch in (1, 3, 17):
        more = torch.randn(batch, *x.shape[1:], device=x.device)
        assert_close(run(more), model(more))


def test_constants_are_those_of_the_model_until_others_are_loaded(packaged):
    model, x, path = packaged("mlp")
    run = torch._inductor.aoti_load_package(str(path))
    other = MODELS["mlp"][0]().requires_grad_(False).to(x.device)
    constants = other.state_dict()
    # An element of its storage comes before the weight.
    constants["0.weight"] = torch.cat([torch.ones(1, device=x.device), constants["0.weight"].flatten()])[1:].view(
        32, 16
    )
    assert run.get_constant_fqns() and set(run.get_constant_fqns()) <= set(constants)
    run.load_constants({name: constants[name] for name in run.get_constant_fqns()}, check_full_update=True)
    with torch.no_grad():
        kept = {name: t for name, t in model.state_dict().items() if name not in run.get_constant_fqns()}
        other.load_state_dict(constants | kept)
    assert_close(run(x), other(x))


LOADED_ALONE = """
import sys, torch
sys.modules["slangpy"] = None  # as if it were not installed
x, expected = torch.load({file!r})
result = torch._inductor.aoti_load_package({package!r})(x.to("mps"))
torch.testing.assert_close(result.cpu(), expected)
print("libslang" in open("/proc/self/maps").read(), "torch_anymps.inductor" in sys.modules)
"""


@pytest.mark.parametrize("name", ["convolutions"])
def test_a_new_process_needs_no_compiler(packaged, run_python, tmp_path, name):
    model, x, path = packaged(name)
    torch.save((x.cpu(), model(x).cpu()), tmp_path / "data.pt")
    text = LOADED_ALONE.format(file=str(tmp_path / "data.pt"), package=str(path))
    done = run_python(text, env={"PATH": str(tmp_path), "ANYMPS_CACHE_DIR": str(tmp_path / "cache")})
    assert done.stdout.splitlines()[-1:] == ["False False"], done.stderr


def test_a_program_in_cpp_runs_a_package(packaged, tmp_path):
    model, x, path = packaged("mlp")
    home, library = pathlib.Path(torch.__file__).parent, package_file(file_for(LIBRARY, str(torch.__version__)))
    folders = [str(home / "lib"), str(library.parent)]
    command = ["g++", "-std=c++20", "-o", "main", str(PROGRAM), "-Wl,--no-as-needed", f"-Wl,-rpath,{':'.join(folders)}"]
    command += [f"-isystem{home / 'include'}", f"-isystem{home / 'include/torch/csrc/api/include'}"]
    command += [*(f"-L{folder}" for folder in folders), f"-l{library.stem.removeprefix('lib')}"]
    command += ["-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "input").write_bytes(_pickled(x.cpu()))
    done = subprocess.run(["./main", str(path), "input", "output"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_close(torch.load(tmp_path / "output", weights_only=True), model(x).cpu())


def test_what_is_wrong_with_a_call_is_said(packaged):
    _, x, path = packaged("mlp")
    run = torch._inductor.aoti_load_package(str(path))
    with pytest.raises(RuntimeError, match="on the same device, but got mat1 is on cpu"):
        run(x.cpu())


@inductor_config.patch({"aot_inductor.precompile_headers": False})
def test_a_package_of_another_device_is_refused(mps, tmp_path, monkeypatch):
    other = device.DeviceConfig(**{**vars(device.device_config()), "name": "Another", "subgroup": 3})
    monkeypatch.setattr("torch_anymps.inductor.cpp_wrapper.device_config", lambda: other)
    program = torch.export.export(nn.Sigmoid(), (torch.ones(3, device=mps),))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    with pytest.raises(RuntimeError, match="compiled for Another, and the device is"):
        torch._inductor.aoti_load_package(path)(torch.ones(3, device=mps))


@inductor_config.patch({"cpp.cxx": ("no-such-compiler",)})
def test_without_a_cpp_compiler_one_sentence(mps):
    cpp_builder.cpp_compiler_search.cache_clear()
    try:
        with pytest.raises(RuntimeError, match="need a C\\+\\+ compiler, and there is none: install g\\+\\+"):
            program = torch.export.export(nn.Sigmoid(), (torch.ones(3, device=mps),))
            torch._inductor.aoti_compile_and_package(program, package_path="never.pt2")
    finally:
        cpp_builder.cpp_compiler_search.cache_clear()


@inductor_config.patch({"cpp_wrapper": True})
def test_cpp_wrapper_trains_and_reports_errors_of_kernels(mps):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(mps)

    def step(x, scale, rows):
        return (model(x).softmax(-1)[rows] * scale).square().sum() + torch.cumsum(x, 0)[-1].sum()

    x, scale, rows = torch.randn(9, 8, device=mps), torch.tensor(1.5), torch.tensor([0, 8, 3], device=mps)
    results = []
    for call in (step, torch.compile(step, fullgraph=True, dynamic=True)):
        model.zero_grad()
        loss = call(x, scale, rows)
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    assert_close(results[1], results[0])
    with pytest.raises(RuntimeError, match="index out of bounds"):
        call(x, scale, rows + 1).cpu()
    torch._dynamo.reset()


@inductor_config.patch({"cpp_wrapper": True})
def test_cpp_wrapper_calls_operators_with_lists_of_sizes(mps):
    model = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, bias=False), nn.BatchNorm2d(32)).to(mps).eval()
    x = torch.rand(3, 3, 32, 32, device=mps)
    torch._dynamo.reset()
    with torch.no_grad():
        assert_close(torch.compile(model)(x), model(x))


def _pickled(tensor: torch.Tensor) -> bytes:
    """What torch::pickle_load reads."""
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    return buffer.getvalue()
