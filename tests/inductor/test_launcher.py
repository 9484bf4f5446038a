"""torch_anymps._launcher: launches of run-time kernels from Python."""

from __future__ import annotations

import pytest
import torch
from slang_fixtures import SCALE

import torch_anymps
from torch_anymps.inductor.runtime import launcher

ops = torch.ops.anymps
_launcher = launcher()
pytestmark = pytest.mark.usefixtures("slang", "mps")


def make(source=SCALE, name="scale", tensors=2, written=0b10, ints=2, grid=(0,), rows_per_group=64):
    handle = ops.create_kernel(name, source, [64, 0])
    return _launcher.make(handle, ops.launch_function(), tensors, written, ints, grid, rows_per_group)


@pytest.fixture
def scale():
    return make()


def test_a_launch(scale):
    x, out = torch.randn(1000, device="mps"), torch.empty(1000, device="mps")
    assert scale(x, out, 1000, 3) is None
    assert torch.equal(out, x * 3)


def test_storage_offsets_and_hazards(scale):
    x, out = torch.arange(100.0, device="mps"), torch.zeros(100, device="mps")
    scale(x[10:], out[50:], 20, 2)
    scale(out[50:], out[70:], 20, 5)  # reads what the first one wrote
    assert torch.equal(out[50:90].cpu(), torch.cat([torch.arange(10.0, 30) * 2, torch.arange(10.0, 30) * 10]))
    assert out[:50].eq(0).all() and out[90:].eq(0).all()


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def test_kinds_of_ints(scale):
    x, out = torch.ones(1, device="mps"), torch.empty(1, device="mps")
    for value, expected in [(True, 1.0), (-7, -7.0), (Index(5), 5.0), (torch.tensor(9), 9.0)]:
        scale(x, out, 1, value)
        assert out.item() == expected
    with pytest.raises(OverflowError):
        scale(x, out, 1, 1 << 63)


def test_floats_are_float32_in_the_low_half():
    source = SCALE.replace("int64_t factor;", "float factor; uint unused;").replace("float(args.factor)", "args.factor")
    kernel = make(source.replace("args.a[i] *", "float(args.unused) + args.a[i] *"), "scale_float")
    x, out = torch.ones(3, device="mps"), torch.empty(3, device="mps")
    kernel(x, out, 3, 0.1)
    assert torch.equal(out.cpu(), torch.full((3,), 0.1))
    with pytest.raises(TypeError, match="argument 2 is a factor of the number of rows and must be an int"):
        kernel(x, out, 3.0, 0.1)


def test_wrong_arguments(scale):
    x, out = torch.ones(3, device="mps"), torch.full((3,), 7.0, device="mps")
    for arguments in [(), (x, out, 3), (x, out, 3, 1, 1)]:
        with pytest.raises(TypeError, match=f"2 tensors and 2 numbers, and {len(arguments)} arguments"):
            scale(*arguments)
    with pytest.raises(TypeError, match="argument 1 must be a tensor, not int"):
        scale(x, 3, 3, 1)
    with pytest.raises(TypeError, match="argument 3 must be an int or a float, not str"):
        scale(x, out, 3, "1")
    with pytest.raises(TypeError, match="argument 2 must be an int or a float, not NoneType"):
        scale(x, out, None, 1)
    with pytest.raises(RuntimeError, match="argument 1 must be a tensor on mps, and is on cpu"):
        scale(x, out.cpu(), 3, 1)
    with pytest.raises(RuntimeError, match="argument 0 must be a tensor on mps, and is on meta"):
        scale(x.to("meta"), out, 3, 1)
    with pytest.raises(RuntimeError, match="sparse|storage"):
        scale(torch.eye(3, device="mps").to_sparse(), out, 3, 1)
    with pytest.raises(ValueError, match="argument 2 makes the number of rows negative or too large: -3"):
        scale(x, out, -3, 1)
    with pytest.raises(TypeError, match="keyword"):
        scale(x, out, 3, factor=1)
    assert out.eq(7).all()


def test_wrong_descriptions():
    for wrong in [{"tensors": -1}, {"ints": -1}, {"rows_per_group": 0}, {"grid": (2,)}, {"grid": (-1,)},
                  {"tensors": 60, "ints": 5}]:  # fmt: skip
        with pytest.raises(ValueError):
            make(**wrong)
    with pytest.raises(TypeError):
        make(grid=[0])
    with pytest.raises(ValueError, match="specialization constant -1"):
        ops.create_kernel("scale", SCALE, [-1])


def test_no_rows_and_many(scale):
    x, out = torch.ones(70, device="mps"), torch.full((70,), 7.0, device="mps")
    scale(x, out, 0, 3)
    assert out.eq(7).all()
    grid = make(grid=(0, 1), rows_per_group=64)
    grid(x, out, 65, 0)  # 65 * 0 rows
    assert out.eq(7).all()
    grid(x, out, 35, 2)  # 70 rows in two groups
    assert out[:35].eq(2).all() and out[35:].eq(7).all()
    with pytest.raises(ValueError, match="too large"):
        grid(x, out, 1 << 62, 4)


def test_tensors_without_elements(scale):
    x, out = torch.empty(0, device="mps"), torch.full((3,), 7.0, device="mps")
    scale(x, out, 3, 5)  # reads the zeros that stand for no memory
    assert out.eq(0).all()


MANY = """
struct Args { float* in[15]; float* out; int64_t n; int64_t scale; }

[shader("compute")]
[numthreads(64, 1, 1)]
void main_kernel(uint3 group_id : SV_GroupID, uint thread : SV_GroupIndex, uniform Args* args)
{
    int64_t i = int64_t(group_id.x) * 64 + thread;
    if (i >= args.n)
        return;
    float sum = 0;
    for (int k = 0; k < 15; ++k)
        sum += args.in[k][i];
    args.out[i] = sum * float(args.scale);
}
"""


def test_a_kernel_reports_an_error():
    source = """import lib.geometry;
struct Args { float* a; int64_t n; uint64_t error; uint code; uint unused; }
[shader("compute")] [numthreads(64, 1, 1)]
void main_kernel(uint thread : SV_GroupIndex, uniform Args args)
{
    if (thread < args.n && args.a[thread] < 0)
        report_error(args.error, args.code);
}
"""
    check = make(source, "check", tensors=1, written=0, ints=3)
    slot = ops.message_slot("an element is negative")
    assert ops.message_slot("an element is negative") == slot
    check(torch.ones(9, device="mps"), 9, *slot)
    torch.mps.synchronize()
    check(torch.tensor([1.0, -1.0], device="mps"), 2, *slot)
    with pytest.raises(torch.AcceleratorError, match="an element is negative"):
        torch.mps.synchronize()
    torch.mps.synchronize()


def test_arguments_beyond_the_push_constants():
    kernel = make(MANY, "many", tensors=16, written=1 << 15, ints=2)
    tensors = [torch.full((100,), float(i), device="mps") for i in range(15)]
    out = torch.empty(100, device="mps")
    for scale in range(1, 40):  # slices of the argument ring, before any has been read
        kernel(*tensors, out, 100, scale)
    assert out.eq(105 * 39).all()


def test_groups_beyond_one_dimension():
    # The tensors' sizes end where the groups do: what the encoder rounds up is beyond n.
    source = SCALE.replace("int64_t(group_id.x) * 64", "int64_t(linear_group_id(group_id)) * 64")
    kernel = make("import lib.geometry;" + source, "scale_wide", rows_per_group=1)
    out = torch.zeros(70000, device="mps")
    kernel(torch.ones(70000, device="mps"), out, 70000, 3)
    assert out.eq(3).all()


def test_a_copy_on_write_storage_gets_memory_of_its_own(scale):
    x = torch.ones(64, device="mps")
    lazy = torch._lazy_clone(x)
    scale(x, lazy, 64, 4)
    assert x.eq(1).all() and lazy.eq(4).all()


def test_the_same_kernel_is_made_once():
    first = ops.create_kernel("scale", SCALE, [64, 0])
    assert first == ops.create_kernel("scale", SCALE, [64, 0])
    assert len({first, ops.create_kernel("other", SCALE, [64, 0]), ops.create_kernel("scale", SCALE, [64])}) == 3


def test_profiles_name_the_kernel(scale):
    x, out = torch.ones(1000, device="mps"), torch.empty(1000, device="mps")
    with torch_anymps.profile() as profile:
        for _ in range(3):
            scale(x, out, 1000, 3)
    [kernel] = [k for k in profile.kernels if k.name == "scale"]
    assert (kernel.variant, kernel.calls, kernel.shape) == ("64,0", 3, "[1000, 3]")
    assert kernel.bytes == x.untyped_storage().nbytes() + out.untyped_storage().nbytes()


def test_launchers_are_freed():
    import gc
    import weakref

    x = torch.ones(1, device="mps")
    alive = weakref.ref(x)
    for _ in range(100):
        make()(x, x, 1, 2)
    del x
    gc.collect()
    assert alive() is None


def test_empty_strided():
    for sizes, strides, dtype in [((2, 3), (3, 1), torch.float32), ((4,), (2,), torch.bfloat16), ((), (), torch.bool),
                                  ((0, 5), (5, 1), torch.int64)]:  # fmt: skip
        x = _launcher.empty_strided(sizes, strides, dtype)
        twin = torch.empty_strided(sizes, strides, dtype=dtype, device="mps")
        assert type(x) is torch.Tensor and x.device == twin.device and x.dtype == dtype
        assert x.shape == twin.shape and x.stride() == twin.stride()
        assert x.untyped_storage().nbytes() == twin.untyped_storage().nbytes()
    assert _launcher.empty_strided((3,), (1,), torch.float32).fill_(2).sum().item() == 6
    for wrong in [([2], (1,), torch.float32), ((2,), (1,), "float32"), ((2,), (1,)), (("a",), (1,), torch.float32)]:
        with pytest.raises(TypeError):
            _launcher.empty_strided(*wrong)
    with pytest.raises(RuntimeError, match="mismatch in length of strides and shape"):
        _launcher.empty_strided((2,), (1, 1), torch.float32)
    with pytest.raises(TypeError, match="doesn't support float64"):
        _launcher.empty_strided((2,), (1,), torch.float64)
    with pytest.raises(RuntimeError):
        _launcher.empty_strided((-2,), (1,), torch.float32)


def test_where_tensors_are():
    x = torch.zeros(8, device="mps")
    tensors = [x, 3, x[2:], torch.empty(0, device="mps")]
    at = tuple(tensors[i].data_ptr() for i in (0, 2, 3))
    assert _launcher.are_at(tensors, (0, 2, 3), at) is True and _launcher.are_at(tensors, (), ()) is True
    assert _launcher.are_at(tensors, (2, 0), (at[1], at[0] + 4)) is False
    assert _launcher.are_at([x.clone()], (0,), (at[0],)) is False
    for wrong in [((x,), (0,), (1,)), (tensors, (0,), ()), (tensors, (1,), (1,)), (tensors, (0,), ("a",)), (tensors,)]:
        with pytest.raises(TypeError):
            _launcher.are_at(*wrong)
    with pytest.raises(IndexError):
        _launcher.are_at(tensors, (4,), (1,))
