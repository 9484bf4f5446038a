"""Kernels from C and C++: <anymps/kernel.h> by ctypes, <anymps/torch.h> by the example, and NumPy on mps's memory."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import pathlib
import subprocess

import numpy as np
import pytest
import torch

import torch_anymps

pytestmark = pytest.mark.usefixtures("mps")
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "cpp_extension"
OK, INVALID_VALUE, ERROR = 0, 1, 3


class Access(ctypes.Structure):
    _fields_ = [
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("write", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


Create = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p)
)
Dispatch = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
)


class Api(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("create", Create),
        ("dispatch", Dispatch),
        ("last_error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    ]


@pytest.fixture(scope="module")
def api(mps):
    return Api.from_address(torch.ops.anymps.kernel_api())


@pytest.fixture(scope="module")
def spirv(mps) -> bytes:
    [(name, words)] = torch_anymps.compile_spirv((EXAMPLE / "axpy.slang").read_text()).items()
    assert name == "axpy" and words[:4] == b"\x03\x02\x23\x07"
    return words


def create(api, spirv: bytes, words: int | None = None):
    kernel = ctypes.c_void_p()
    status = api.create(b"axpy", spirv, len(spirv) // 4 if words is None else words, 0, ctypes.byref(kernel))
    return status, kernel


def three(*values: int):
    return ctypes.byref((ctypes.c_uint32 * 3)(*values))


class Args(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("x", "y", "out")] + [("a", ctypes.c_float), ("n", ctypes.c_uint32)]


def test_the_header_is_c(tmp_path):
    [folder] = torch_anymps.include_paths()
    source = tmp_path / "header.c"
    source.write_text("#include <anymps/kernel.h>\nint main(void) { return ANYMPS_OK; }\n")
    subprocess.run(
        ["gcc", "-std=c99", "-Wall", "-pedantic", "-Werror", f"-I{folder}", "-fsyntax-only", source], check=True
    )


def test_a_dispatch_from_c(api, spirv):
    assert (api.version, api.bytes) == (1, ctypes.sizeof(Api))
    status, kernel = create(api, spirv)
    assert status == OK
    x, y, out = torch.randn(1000, device="mps"), torch.randn(1000, device="mps"), torch.zeros(1000, device="mps")
    args = Args(x.data_ptr(), y.data_ptr(), out.data_ptr(), 2.0, 1000)
    tensors = [(x, 0), (y, 0), (out, 1)]
    accesses = (Access * 3)(*[(t.data_ptr(), t.untyped_storage().nbytes(), w, 0) for t, w in tensors])
    for size, groups in [(None, 4), (three(64, 1, 1), 16)]:
        out.zero_()
        status = api.dispatch(kernel, three(groups, 1, 1), size, ctypes.byref(args), ctypes.sizeof(args), accesses, 3)
        assert status == OK
        torch.testing.assert_close(out, 2 * x + y)
    assert api.dispatch(kernel, three(0, 1, 1), None, ctypes.byref(args), ctypes.sizeof(args), accesses, 3) == OK


def test_errors_are_codes_and_sentences(api, spirv):
    def words() -> str:
        return api.last_error().decode()

    assert create(api, b"not SPIR-V, but long enough to be")[0] == INVALID_VALUE and "is no SPIR-V module" in words()
    assert create(api, b"")[0] == INVALID_VALUE
    assert create(api, spirv[:20] + bytes(4))[0] == ERROR and "damaged" in words()
    assert create(api, spirv[:20])[0] == INVALID_VALUE
    assert create(api, spirv.replace(b"main", b"mine"))[0] == INVALID_VALUE and '"main"' in words()
    assert api.create(None, spirv, len(spirv) // 4, 0, ctypes.byref(ctypes.c_void_p())) == INVALID_VALUE
    kernel = create(api, spirv)[1]
    assert api.dispatch(None, three(1, 1, 1), None, None, 0, None, 0) == INVALID_VALUE
    assert api.dispatch(kernel, three(1 << 20, 1, 1), None, None, 0, None, 0) == INVALID_VALUE
    assert "65535 in a dimension" in words()
    assert api.dispatch(kernel, three(1, 1, 1), three(1 << 12, 1, 1), None, 0, None, 0) == INVALID_VALUE
    assert "exceeds the limit of" in words()


def test_a_launch_does_not_change_the_module(spirv):
    """compile_spirv gives what the source says, whatever sizes its kernel was launched with."""
    source = (EXAMPLE / "axpy.slang").read_text()
    x = torch.ones(4, device="mps")
    torch.mps.compile_shader(source).axpy(x, x, x, 1.0, 4, group_size=32)
    assert torch_anymps.compile_spirv(source)["axpy"] == spirv


def test_the_example_extension(tmp_path):
    spec = importlib.util.spec_from_file_location("build_axpy", EXAMPLE / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.ops.load_library(module.build(tmp_path))
    axpy = torch.ops.example.axpy
    x, y = torch.randn(7, 100, device="mps"), torch.randn(7, 100, device="mps")
    torch.testing.assert_close(axpy(3.0, x, y), 3 * x + y)
    torch.testing.assert_close(axpy(3.0, x[2:3], axpy(2.0, x[1:2], y[:1])), 3 * x[2:3] + 2 * x[1:2] + y[:1])
    with torch_anymps.profile() as profile:
        axpy(1.0, x, y)
    assert [kernel.name for kernel in profile.kernels] == ["axpy"]
    with pytest.raises(RuntimeError, match="one is on cpu|'CPU' backend"):
        axpy(1.0, x.cpu(), y.cpu())
    with pytest.raises(RuntimeError, match="one is on cpu"):
        axpy(1.0, x, y.cpu())
    graph = torch.accelerator.Graph()
    with graph:
        out = axpy(2.0, x, y)
    y.fill_(1)
    graph.replay()
    torch.testing.assert_close(out, 2 * x + 1)


@pytest.fixture
def shared_memory(mps):
    """Skips where torch_anymps.numpy() must refuse, after it has."""
    if not json.loads(torch.ops.anymps.device_info())["features"]["UMA"]:
        with pytest.raises(RuntimeError, match="needs unified memory"):
            torch_anymps.numpy(torch.ones(1, device=mps))
        pytest.skip("the host does not share this device's memory")


def test_numpy_shares_memory(shared_memory):
    x = torch.arange(12.0, device="mps").view(3, 4)
    array = torch_anymps.numpy(x)
    assert array.dtype == np.float32 and array.shape == (3, 4) and array[1, 2] == 6
    array[0, 0] = 100
    x[0, 1] = 200
    torch.mps.synchronize()
    assert x[0, 0].item() == 100 and array[0, 1] == 200
    column = torch_anymps.numpy(x[1:, 2])  # strides and an offset
    assert column.tolist() == [6, 10] and column.strides == (16,)
    assert torch_anymps.numpy(torch.tensor(3, device="mps")).item() == 3
    assert torch_anymps.numpy(torch.empty(0, 3, device="mps")).shape == (0, 3)
    for dtype in (torch.bool, torch.int64, torch.float16, torch.complex64):
        y = torch.ones(3, device="mps").to(dtype)
        assert torch.equal(torch.from_numpy(torch_anymps.numpy(y)), y.cpu())


def test_numpy_keeps_memory_alive_and_waits(shared_memory, no_garbage):
    before = torch.mps.current_allocated_memory()
    array = torch_anymps.numpy(torch.ones(1 << 20, device="mps") * 2)  # the tensor is gone, the multiplication recorded
    others = [torch.full((1 << 20,), 7.0, device="mps") for _ in range(4)]
    torch.mps.synchronize()
    assert (array == 2).all() and len(others) == 4
    del array, others
    assert torch.mps.current_allocated_memory() == before


def test_numpy_of_a_copy_on_write_tensor(shared_memory):
    x = torch.ones(4, device="mps")
    array = torch_anymps.numpy(torch._lazy_clone(x))
    array[0] = 5
    assert x.eq(1).all()


def test_numpy_refuses(shared_memory):
    with pytest.raises(RuntimeError, match="got one on cpu"):
        torch_anymps.numpy(torch.ones(1))
    with pytest.raises(TypeError, match="must be Tensor, not list"):
        torch_anymps.numpy([1.0])
    with pytest.raises(RuntimeError, match="requires grad"):
        torch_anymps.numpy(torch.ones(1, device="mps", requires_grad=True))
    with pytest.raises(TypeError, match="BFloat16"):
        torch_anymps.numpy(torch.ones(1, device="mps", dtype=torch.bfloat16))
