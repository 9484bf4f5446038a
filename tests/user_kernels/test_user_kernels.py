"""torch.mps.compile_shader with kernels in Slang: arguments, launches, errors, caches, graphs, profiles."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import struct
import warnings

import pytest
import torch

import torch_anymps

pytestmark = pytest.mark.usefixtures("mps")

COPY = """
[shader("compute")] [numthreads(64, 1, 1)]
void scale(uniform float* x, uniform float* out, uniform float factor, uniform uint n, uint3 i : SV_DispatchThreadID)
{
    if (i.x < n)
        out[i.x] = x[i.x] * factor;
}
[shader("compute")] [numthreads(8, 8, 1)]
void coordinates(uniform int* out, uniform uint2 size, uint3 i : SV_DispatchThreadID, uint3 g : SV_GroupID)
{
    if (i.x < size.x && i.y < size.y)
        out[i.y * size.x + i.x] = int(i.x + 100 * i.y + 10000 * g.x + 1000000 * g.y);
}
"""


@pytest.fixture(scope="module")
def library(mps):
    return torch.mps.compile_shader(COPY)


@pytest.fixture(scope="module")
def examples():
    path = pathlib.Path(__file__).parents[2] / "examples" / "user_kernels.py"
    spec = importlib.util.spec_from_file_location("user_kernel_examples", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_example_add(examples):
    a, b = torch.randn(3, 333, device="mps"), torch.randn(3, 333, device="mps")
    assert torch.equal(examples.add(a, b), a + b)
    torch.testing.assert_close(examples.add(a, b, -0.5), a - 0.5 * b)


def test_example_row_sums(examples):
    for rows, columns in [(1, 1), (7, 300), (300, 127)]:
        x = torch.randn(rows, columns, device="mps")
        torch.testing.assert_close(examples.row_sums(x), x.sum(1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_example_of_metal_source(examples, dtype):
    x = torch.randn(1000, device="mps").to(dtype)
    expected = torch.nn.functional.gelu(x.float() * 1.5, approximate="tanh").to(dtype)
    torch.testing.assert_close(examples.gelu(x, 1.5), expected)


def test_what_a_library_has(library):
    assert dir(library) == ["coordinates", "scale"]
    assert hasattr(library, "scale") and not hasattr(library, "other")
    with pytest.raises(RuntimeError, match="other; there are"):
        _ = library.other
    assert library.scale.max_threads_per_threadgroup >= 128
    assert library.scale.thread_execution_width == json.loads(torch.ops.anymps.device_info())["subgroup_size"]
    assert library.scale.static_thread_group_memory_length == 0
    shared = 'groupshared float s[256];\n[shader("compute")] [numthreads(1, 1, 1)]\nvoid f(uniform float* x) {{ {} }}'
    kernel = torch.mps.compile_shader(shared.format("s[0] = x[0]; GroupMemoryBarrierWithGroupSync(); x[1] = s[0];")).f
    assert kernel.static_thread_group_memory_length == 1024


def test_storage_offsets_and_order(library):
    x, out = torch.arange(100.0, device="mps"), torch.zeros(100, device="mps")
    library.scale(x[10:], out[50:], 2, 20)
    library.scale(out[50:], out[70:], 5, 20)  # reads what the first one wrote
    out.add_(1)
    library.scale(out, x, 1, 100)
    expected = torch.zeros(100)
    expected[50:70] = torch.arange(10.0, 30) * 2
    expected[70:90] = torch.arange(10.0, 30) * 10
    assert torch.equal(x.cpu(), expected + 1)


def test_threads_and_group_sizes(library):
    def run(**launch):
        out = torch.zeros(20, 30, device="mps", dtype=torch.int32)
        library.coordinates(out, (30, 20), **launch)
        return out.cpu()

    y, x = torch.meshgrid(torch.arange(20), torch.arange(30), indexing="ij")
    for group in (None, (8, 8), (4, 16), (30, 1)):
        w, h = group or (8, 8)
        expected = x + 100 * y + 10000 * (x // w) + 1000000 * (y // h)
        assert torch.equal(run(threads=(30, 20), group_size=group).long(), expected)
    assert run(threads=(0, 20)).eq(0).all()
    a, out = torch.randn(1000, device="mps"), torch.zeros(1000, device="mps")
    library.scale(a, out, 1.0, 1000, group_size=[128])  # threads: as many as the first tensor has elements
    assert torch.equal(a, out)


ARGUMENTS = """
[shader("compute")] [numthreads(1, 1, 1)]
void gather(uniform float* out, uniform int8_t i8, uniform uint16_t u16, uniform half h, uniform bool flag,
            uniform int64_t i64, uniform float3 v, uniform float array[4], uniform int* list, uniform uint8_t* bytes)
{
    out[0] = i8; out[1] = u16; out[2] = float(h); out[3] = flag ? 1 : 0; out[4] = float(i64 >> 32);
    out[5] = v.x; out[6] = v.z; out[7] = array[0]; out[8] = array[3]; out[9] = list[1]; out[10] = bytes[2];
}
"""


def test_kinds_of_arguments():
    gather = torch.mps.compile_shader(ARGUMENTS).gather
    out = torch.zeros(11, device="mps")
    mask = torch.tensor([False, False, True], device="mps")
    gather(out, -5, 60000, 0.5, True, 7 << 32, (1.0, 2, 3), [4, 5, 6, 7.5], [8, 9], mask, threads=1)
    assert out.tolist() == [-5, 60000, 0.5, 1, 7, 1, 3, 4, 7.5, 9, 1]
    scalar, number = torch.tensor(0.25), torch.tensor(3)
    gather(out, number, 0, scalar, False, 0, (1, 2, 3), (0, 0, 0, 0), torch.zeros(2, dtype=torch.int32).to("mps"), mask)
    assert out[:4].tolist() == [3, 0, 0.25, 0]


def test_lists_of_tensors():
    sums = torch.mps.compile_shader("""
[shader("compute")] [numthreads(64, 1, 1)]
void sums(uniform float* out, uniform float** rows, uniform uint count, uint3 i : SV_DispatchThreadID)
{
    float sum = 0;
    for (uint k = 0; k < count; ++k)
        sum += rows[k][i.x];
    out[i.x] = sum;
    rows[0][i.x] = -1;
}""").sums
    rows = [torch.randn(64, device="mps") for _ in range(70)]
    out, expected = torch.zeros(64, device="mps"), torch.stack(rows).sum(0)
    rows[0] += 1
    sums(out, rows, 70, group_size=64)
    torch.testing.assert_close(out, expected + 1, rtol=1e-5, atol=1e-5)
    assert (rows[0] * 2).eq(-2).all()
    for wrong in ([rows[0], 1.0], [rows[0].cpu()]):
        with pytest.raises(RuntimeError, match="argument 1 must be tensors on mps"):
            sums(out, wrong, 1)


def test_under_torch_compile(library):
    def f(x):
        y = x * 2
        out = torch.empty_like(y)
        library.scale(y, out, 3.0, y.numel())
        return out + 1

    x = torch.randn(100, device="mps")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(torch.compile(f, backend="eager")(x), x * 6 + 1)


def test_as_a_custom_operator(library):
    @torch.library.custom_op("user_kernel_test::scale", mutates_args=())
    def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
        out = torch.empty_like(x)
        library.scale(x, out, factor, x.numel())
        return out

    scale.register_fake(lambda x, factor: torch.empty_like(x))
    scale.register_autograd(
        lambda ctx, grad: (scale(grad.contiguous(), ctx.factor), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    x = torch.randn(100, device="mps", requires_grad=True)
    y = torch.compile(lambda x: scale(x * 2, 3.0) + 1, backend="aot_eager", fullgraph=True)(x)
    y.sum().backward()
    torch.testing.assert_close(y, x * 6 + 1)
    assert x.grad.eq(6).all()


def test_floats_beyond_the_type_are_infinite(library):
    x, out = torch.ones(1, device="mps"), torch.zeros(1, device="mps")
    library.scale(x, out, 1e300, 1)
    assert out.item() == float("inf")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda k, x: k(x, x, 1.0), TypeError, r"scale\(\) takes 4 arguments but 3 were given"),
        (lambda k, x: k(x, x, 1.0, 1, 2), TypeError, "takes 4 arguments but 5"),
        (lambda k, x: k(x.cpu(), x, 1.0, 1), RuntimeError, "argument 0 must be a tensor on mps, and is on cpu"),
        (lambda k, x: k(x.half(), x, 1.0, 1), RuntimeError, "expected scalar type Float but found Half"),
        (lambda k, x: k(x.int(), x, 1.0, 1), RuntimeError, "expected scalar type Float but found Int"),
        (lambda k, x: k(x, x, 1.0, 2.5), TypeError, "argument 3 must be int, not float"),
        (lambda k, x: k(x, x, x, 1), TypeError, "argument 2 must be a number"),
        (lambda k, x: k(x, x, "1", 1), RuntimeError, "unsupported argument type str"),
        (lambda k, x: k(x, x, [], 1), RuntimeError, "an empty list"),
        (lambda k, x: k(x, x, [1.0, 2.0], 1), TypeError, "must be 1 numbers, not 2"),
        (lambda k, x: k(1, x, 1.0, [1, 2]), TypeError, "must be 1 numbers"),
        (lambda k, x: k(1, 2, 3.0, 4), RuntimeError, "Number of threads is undefined"),
        (lambda k, x: k(x, x, 1.0, 1, threads=(1, 2, 3, 4)), RuntimeError, "wrong dimension"),
        (lambda k, x: k(x, x, 1.0, 1, threads=(4, 4), group_size=4), RuntimeError, "same number of dimensions"),
        (lambda k, x: k(x, x, 1.0, 1, threads=-1), ValueError, "below"),
        (lambda k, x: k(x, x, 1.0, 1, threads=1 << 40), ValueError, "below"),
        (lambda k, x: k(x, x, 1.0, 1, group_size=1 << 20), ValueError, "exceeds the limit of"),
        (lambda k, x: k(x, x, 1.0, 1, group_size=0), ValueError, "exceeds the limit of"),
        (lambda k, x: k(x, x, 1.0, 1, threads=1 << 30), ValueError, "have its threads loop"),
        (lambda k, x: k(x, x, 1.0, 1, arg_casts="fp8"), RuntimeError, "Unsupported cast instruction fp8"),
        (lambda k, x: k(x, x, 1.0, 1, arg_casts=3), RuntimeError, "Unexpected caster arg type int"),
        (lambda k, x: k(x, x, 1.0, 1, error_buf_idx=0), NotImplementedError, "Metal only"),
    ],
)
def test_wrong_arguments(library, call, error, words):
    with pytest.raises(error, match=words):
        call(library.scale, torch.ones(4, device="mps"))


def test_the_compilers_words():
    with pytest.raises(SyntaxError, match="undefined identifier 'y'"):
        torch.mps.compile_shader('[shader("compute")] [numthreads(1,1,1)] void f(uniform float* x) { x[0] = y; }')
    with pytest.raises(SyntaxError, match="uses a descriptor"):
        torch.mps.compile_shader(
            'RWStructuredBuffer<float> b; [shader("compute")] [numthreads(1,1,1)] void f() { b[0] = 1; }'
        )
    with pytest.raises(TypeError, match="must be str, not int"):
        torch.mps.compile_shader(3)


def test_what_to_install(run_python):
    done = run_python(
        "import torch, torch_anymps.compiler as c\n"
        "c.compiler_library = lambda: None\n"
        "try: torch.mps.compile_shader('kernel void f(device float* x) {}')\n"
        "except RuntimeError as error: print(error)"
    )
    assert "compile_shader on mps needs the Slang compiler" in done.stdout and "[compile]" in done.stdout, done.stderr


def test_the_cache_on_disk(run_python, tmp_path):
    lines = f"""import torch
library = torch.mps.compile_shader({COPY!r})
x, out = torch.ones(3, device="mps"), torch.zeros(3, device="mps")
library.scale(x, out, 2, 3)
torch.mps.compile_shader({COPY!r}).scale(out, x, 2, 3)
print(torch.ops.anymps.slang_compilations(), x.tolist())
"""
    for compilations in (1, 0):
        done = run_python(lines, env={"ANYMPS_CACHE_DIR": str(tmp_path)})
        assert done.stdout.split(" ", 1) == [str(compilations), "[4.0, 4.0, 4.0]\n"], done.stderr


def test_graphs_replay_it(library):
    x, out = torch.ones(1000, device="mps"), torch.zeros(1000, device="mps")
    library.scale(x, out, 3, 1000)
    graph = torch.accelerator.Graph()
    with graph:
        library.scale(x, out, 3, 1000)
        out += 1
    x.fill_(5)
    out.zero_()
    for _ in range(2):
        graph.replay()
    assert out.eq(16).all()


def test_graphs_keep_lists():
    kernel = torch.mps.compile_shader("""
[shader("compute")] [numthreads(64, 1, 1)]
void f(uniform float* out, uniform float* w, uniform uint n, uint3 i : SV_DispatchThreadID)
{
    if (i.x < n)
        out[i.x] += w[i.x];
}""").f
    out = torch.zeros(3, device="mps")
    graph = torch.accelerator.Graph()
    with graph:
        kernel(out, [1.0, 2.0, 3.0], 3)
    others = [torch.full((3,), 7.0, device="mps") for _ in range(50)]
    for _ in range(2):
        graph.replay()
    assert out.tolist() == [2, 4, 6] and len(others) == 50


def test_profiles_name_it(library):
    x = torch.ones(1000, device="mps")
    with torch_anymps.profile() as profile:
        library.scale(x, x, 3, 1000)
    assert [kernel.name for kernel in profile.kernels] == ["scale"]
    with torch.profiler.profile() as profiler:
        library.scale(x, x, 3, 1000)
        torch.mps.synchronize()
    assert any("scale" in event.key for event in profiler.key_averages())


def test_what_is_read_stays_shared(library):
    """The compiler's code says which tensors are written: the others need no barrier, and no copy of their own."""
    x, out = torch.ones(16, device="mps"), torch.zeros(16, device="mps")
    lazy = torch._lazy_clone(x)
    library.scale(lazy, out, 2, 16)
    assert torch._C._is_cow_tensor(lazy) and out.eq(2).all()


def test_copy_on_write(library):
    x, ones = torch.ones(16, device="mps"), torch.ones(16, device="mps")
    lazy = torch._lazy_clone(x)
    library.scale(ones, lazy, 2, 16)
    assert x.eq(1).all() and lazy.eq(2).all()


def test_empty_tensors(library):
    empty = torch.empty(0, device="mps")
    library.scale(empty, empty, 1, 0)
    library.scale(empty, empty, 1, 0, threads=64)
    torch.mps.synchronize()


def test_structs_are_bytes():
    source = """struct P { int a; float2 b; }
[shader("compute")] [numthreads(1, 1, 1)] void f(uniform float* out, uniform P p) { out[0] = p.a + p.b.y; }"""
    kernel = torch.mps.compile_shader(source).f
    out = torch.zeros(1, device="mps")
    kernel(out, struct.pack("i4x2f", 2, 0.0, 1.0))
    assert out.item() == 3
    with pytest.raises(TypeError, match="must be bytes of length 16"):
        kernel(out, b"123")
