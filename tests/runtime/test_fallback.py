"""Operators without an mps kernel: the error, and PYTORCH_ENABLE_MPS_FALLBACK=1.

Operators made here have a CPU kernel only, so they cover what signatures there can be whatever the package implements.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from compare import same
from op_db_support import OPS

LIBRARY = torch.library.Library("anymps_test", "DEF")


def define(schema: str, kernel) -> None:
    LIBRARY.define(schema)
    LIBRARY.impl(schema.split("(")[0], kernel, "CPU")


def overwrite_all(xs: list[torch.Tensor], ys: list[torch.Tensor]) -> None:
    torch._foreach_copy_(xs, ys)


define("twice(Tensor x) -> Tensor", lambda x: x * 2)
define("add_into(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x.add_(y))
define("add_out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)", lambda x, y, *, out: torch.add(x, y, out=out))
define("overwrite_all(Tensor(a!)[] xs, Tensor[] ys) -> ()", overwrite_all)
define("sum_nested(Tensor first, Tensor[][] xs) -> Tensor", lambda first, xs: first + sum(x for row in xs for x in row))
define("sum_present(Tensor?[] xs) -> Tensor", lambda xs: sum(x for x in xs if x is not None))
define("maybe(Tensor? x, Tensor y) -> Tensor", lambda x, y: y + 1 if x is None else x + y)
define("pieces(Tensor x) -> Tensor[]", lambda x: [x[:1] * 1, x[1:] * 1])
define("counting(Tensor x, *, Device device) -> Tensor", lambda x, *, device: torch.arange(len(x), device=device))
define(
    "noise(Tensor x, *, Generator? generator=None) -> Tensor",
    lambda x, *, generator=None: torch.rand(x.shape, generator=generator),
)
define("window(Tensor(a) x) -> Tensor(a)", lambda x: x[1:3])
define("address(Tensor x, Tensor(a!) out) -> int[]", lambda x, out: [x.data_ptr(), out.data_ptr()])
define("itself(Tensor x) -> Tensor", lambda x: x)
define("power(Tensor x, Tensor y) -> Tensor", lambda x, y: x.pow(y))
define("strided(Tensor x) -> Tensor", lambda x: (x * 1).t())
define("spread(Tensor x) -> Tensor", lambda x: x[:1].clone().expand(3))
define("as_double(Tensor x) -> Tensor", lambda x: x.double())
define("nothing(Tensor x) -> (Tensor, int, Tensor?)", lambda x: (x + 1, 3, None))
define("swap(Tensor(a!) x, Tensor(b!) y) -> ()", lambda x, y: overwrite_all([x, y], [y.clone(), x.clone()]))
ops = torch.ops.anymps_test


@pytest.fixture
def enabled(monkeypatch):
    monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*will fall back to run on the CPU")
        yield


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).to("mps")


def test_error_has_the_words_of_pytorch(mps, monkeypatch):
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    with torch.library._scoped_library("aten", "FRAGMENT") as library:
        library.define("anymps_never(Tensor x) -> Tensor")
        for value in (None, "0"):
            if value is not None:
                monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", value)
            with pytest.raises(NotImplementedError) as error:
                torch.ops.aten.anymps_never(numbers(3))
            assert str(error.value) == (
                "The operator 'aten::anymps_never' is not currently implemented for the MPS device. If you want this "
                "op to be considered for addition please comment on https://github.com/pytorch/pytorch/issues/141287 "
                "and mention use-case, that resulted in missing op as well as commit hash "
                f"{torch.version.git_version}. As a temporary fix, you can set the environment variable "
                "`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. WARNING: this will be "
                "slower than running natively on MPS."
            )


def test_error_of_another_library_names_it(mps, monkeypatch):
    monkeypatch.delenv("PYTORCH_ENABLE_MPS_FALLBACK", raising=False)
    with torch.library._scoped_library("some_codec", "FRAGMENT") as library:
        library.define("decode(Tensor x) -> Tensor")
        library.impl("decode", lambda x: x + 1, "CPU")
        with pytest.raises(NotImplementedError) as error:
            torch.ops.some_codec.decode(numbers(3))
        text = str(error.value)
        assert "'some_codec::decode' of the library some_codec is not implemented for the MPS device" in text
        assert "ask the maintainers of some_codec" in text and "PYTORCH_ENABLE_MPS_FALLBACK=1" in text
        assert "github.com/pytorch" not in text
        monkeypatch.setenv("PYTORCH_ENABLE_MPS_FALLBACK", "1")
        assert torch.ops.some_codec.decode(numbers(3)).tolist() == [1, 2, 3]


def test_one_warning_an_operator_and_a_count(mps, run_python):
    script = """
import os, warnings, torch, torch_anymps
os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"  # after the import: libraries set it late
x, b = torch.eye(3).to_sparse_csr().to("mps"), torch.ones(3, 1, device="mps")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        torch.triangular_solve(b, x)
print([w.category.__name__ for w in caught])
print(str(caught[0].message).split(" (")[0])
print(torch_anymps.fallbacks())
"""
    done = run_python(script, env={"PYTORCH_ENABLE_MPS_FALLBACK": None})
    assert done.stdout.splitlines() == [
        "['UserWarning']",
        "The operator 'aten::triangular_solve.X' is not currently supported on the MPS backend and "
        "will fall back to run on the CPU. This may have performance implications.",
        "{'aten::triangular_solve.X': 3}",
    ], done.stderr


def test_in_place_and_aliases(mps, enabled):
    x = numbers(4)
    assert ops.add_into(x, x) is x  # one tensor, twice
    same(x, torch.tensor([0.0, 2, 4, 6]))
    base = numbers(6)
    ops.add_into(base[:3], base[3:])  # two views of one storage
    same(base, torch.tensor([3.0, 5, 7, 3, 4, 5]))
    with pytest.raises(RuntimeError, match="unsupported operation: some elements of the input tensor"):
        ops.add_into(base[:4], base[2:])  # as on the CPU, which sees the overlap
    halves = numbers(8)
    ops.swap(halves[:4], halves[4:])
    same(halves, torch.tensor([4.0, 5, 6, 7, 0, 1, 2, 3]))
    columns = numbers(3, 4)
    ops.add_into(columns[:, 1], columns[:, 3])  # strided: its neighbours stay
    expected = torch.arange(12.0).reshape(3, 4)
    expected[:, 1] += expected[:, 3]
    same(columns, expected)


def test_work_in_flight_is_waited_for(mps, enabled):
    x = torch.zeros(1 << 16, device="mps")
    for _ in range(100):
        x = x + 1
        ops.add_into(x, x)
        x = x * 0.5
    same(x, torch.full((1 << 16,), 100.0))


@pytest.mark.parametrize("shape", [(0,), (3, 4), (2, 3, 4), (4,)], ids=str)
def test_out_is_resized(mps, enabled, shape):
    x, y = numbers(3, 4), numbers(4)
    out = torch.empty(shape, device="mps")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="An output with one or more elements was resized")
        assert ops.add_out(x, y, out=out) is out
    same(out, x.cpu() + y.cpu())
    same(out + 1, x.cpu() + y.cpu() + 1)
    with_offset = torch.zeros(20, device="mps")
    ops.add_out(x, y, out=with_offset[5:17].view(3, 4))
    same(with_offset[5:17].view(3, 4), x.cpu() + y.cpu())
    same(with_offset[[0, 4, 17, 19]], torch.zeros(4))


def test_lists(mps, enabled):
    xs = [numbers(3) * 0, numbers(2, 2) * 0]
    ops.overwrite_all(xs, [numbers(3), numbers(2, 2)])
    same(xs[0], torch.arange(3.0))
    same(xs[1], torch.arange(4.0).reshape(2, 2))
    one = numbers(3)
    same(ops.sum_nested(one, [[one, one + 1], [], [one]]), torch.tensor([1.0, 5, 9]))
    same(ops.sum_present([None, one, None, one]), torch.tensor([0.0, 2, 4]))
    same(ops.maybe(None, one), torch.tensor([1.0, 2, 3]))
    same(ops.maybe(one, one), torch.tensor([0.0, 2, 4]))
    first, rest = ops.pieces(one)
    assert first.device.type == rest.device.type == "mps"
    same(rest, torch.tensor([1.0, 2]))
    result, number, absent = ops.nothing(one)
    same(result, torch.tensor([1.0, 2, 3]))
    assert number == 3 and absent is None


def test_devices(mps, enabled):
    x = ops.counting(numbers(3), device=mps)
    assert x.device == torch.device("mps:0") and x.cpu().tolist() == [0, 1, 2]
    assert ops.counting(numbers(3), device="cpu").device.type == "cpu"
    same(torch.tril_indices(3, 3, device=mps), torch.tril_indices(3, 3))


def test_generators(mps, enabled):
    x = numbers(1000)
    g = torch.Generator(device="mps").manual_seed(1)
    first, second = ops.noise(x, generator=g).cpu(), ops.noise(x, generator=g).cpu()
    assert not torch.equal(first, second)
    assert torch.equal(first, ops.noise(x, generator=torch.Generator(device="mps").manual_seed(1)).cpu())
    torch.mps.manual_seed(5)
    default = ops.noise(x).cpu()
    assert not torch.equal(default, ops.noise(x).cpu())
    torch.mps.manual_seed(5)
    assert torch.equal(default, ops.noise(x).cpu())
    assert default.min() >= 0 and default.max() < 1 and abs(default.mean() - 0.5) < 0.05


def test_views_share_the_storage(mps, enabled):
    x = numbers(5)
    view = ops.window(x)
    view += 10
    same(x, torch.tensor([0.0, 11, 12, 3, 4]))
    assert ops.itself(x).data_ptr() == x.data_ptr()


def test_unified_memory_is_not_copied(mps, enabled):
    """What the CPU's kernel gets is the device's memory itself, batches and results too; so do the host's operators."""
    x, out = numbers(4, 5, 6), numbers(4, 6, 5)
    found = ops.address(x[1:], out[2:].mT)
    if '"UMA": false' in torch.ops.anymps.device_info():
        assert x.data_ptr() + 120 not in found
        return
    assert found == [torch.ops.anymps.host_alias(x).data_ptr() + 120, torch.ops.anymps.host_alias(out).data_ptr() + 240]


def test_layouts(mps, enabled):
    x = numbers(3, 4)
    assert ops.strided(x).stride() == (1, 4)
    same(ops.strided(x), x.cpu().t())
    for view in (x.t(), x[:, ::2], x[1:, 1:], x.flip(0), x[:1].expand(3, 4), x.as_strided((2, 2), (1, 1), 3)):
        same(ops.twice(view), view.cpu() * 2)
    same(ops.spread(x[0]), torch.zeros(3))
    last = numbers(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert ops.twice(last).is_contiguous(memory_format=torch.channels_last)
    assert ops.twice(numbers(0, 3)).shape == (0, 3)
    assert ops.twice(numbers(1)[0]).shape == ()


def test_dtypes(mps, enabled):
    for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int64, torch.float16, torch.bfloat16):
        x = torch.tensor([0, 1, 1], dtype=dtype)
        same(ops.twice(x.to(mps)), x * 2)
    with pytest.raises(TypeError, match="doesn't support float64"):
        ops.as_double(numbers(2))


def test_wrapped_numbers_do_not_promote(mps, enabled):
    half = torch.ones(3, dtype=torch.float16, device="mps")
    assert ops.power(half, torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float16
    assert torch.pow(half, 2.0).dtype == torch.float16


def test_negative_bit(mps, enabled):
    z = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64)
    same(ops.twice(z.to(mps).conj().imag), z.conj().imag * 2)
    same(ops.twice(z.to(mps)), z * 2)


def test_collectives_stay_out(mps, enabled):
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("anymps_probe(Tensor x) -> Tensor")
    library.impl("anymps_probe", lambda x: x, "CPU")
    with pytest.raises(NotImplementedError, match="not currently implemented for the MPS device"):
        torch.ops.c10d.anymps_probe(numbers(2))


def test_an_error_on_the_cpu_is_the_error(mps, enabled):
    with pytest.raises(RuntimeError, match="must match the size"):
        ops.add_into(numbers(3), numbers(4))
    with pytest.raises(NotImplementedError, match=r"anymps_test::unknown.*'CPU' backend"):
        LIBRARY.define("unknown(Tensor x) -> Tensor")
        ops.unknown(numbers(3))


def test_gradients_through_the_fallback(mps, enabled):
    x = torch.tensor([[4.0, 1.0], [1.0, 3.0]], device=mps, requires_grad=True)
    y = x.detach().cpu().requires_grad_()
    torch.linalg.cholesky(x).sum().backward()
    torch.linalg.cholesky(y).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), y.grad)


FAMILIES = ("linalg.", "fft.", "special.", "hist", "kthvalue", "mode", "cummin", "cumprod", "unique", "cross", "renorm")
# ifft, ihfft and hfft conjugate on the device, which is no matter of the fallback.
CONJUGATE = ("fft.ifft", "fft.ihfft", "fft.hfft")
FALLING_BACK = [
    op
    for op in OPS.values()
    if op.name.startswith(FAMILIES) and not op.name.startswith(CONJUGATE) and torch.float32 in op.dtypes
]


@pytest.mark.parametrize("op", FALLING_BACK, ids=lambda op: f"{op.name}_{op.variant_test_name}".strip("_"))
def test_op_db(mps, enabled, op):
    """Samples of families that mostly have no kernel: the fallback must not change what the CPU gives."""
    samples = list(op.sample_inputs("cpu", torch.float32))[:6]
    for sample in samples:
        try:
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except (RuntimeError, TypeError):
            continue
        moved = sample.transform(lambda t: t.to(mps) if isinstance(t, torch.Tensor) else t)
        try:
            actual = op(moved.input, *moved.args, **moved.kwargs)
        except TypeError as error:
            assert "float64" in str(error)
            continue
        torch.testing.assert_close(
            torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, actual),
            expected,
            rtol=1e-3,
            atol=1e-3,
            equal_nan=True,
        )


def sparse_entries(key: str) -> list[str]:
    """Operators with a kernel for a key, as "aten::name.overload"; those of memory and of views have no values."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return [name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]


@pytest.mark.parametrize("key", ["SparseCPU", "SparseCsrCPU"])
def test_every_operator_of_sparse_tensors_is_there(mps, key):
    """Of its own or through the fallback, which serves these keys, too."""
    entries = sparse_entries(key)
    assert len(entries) > 100
    on_mps = key.replace("CPU", "MPS")
    missing = {n for n in entries if not torch._C._dispatch_has_kernel_for_dispatch_key(n, on_mps)}
    left_to_it = {"aten::triangular_solve.X"}
    assert missing - left_to_it == {"aten::_pin_memory", "aten::is_pinned"}  # composites, where there is no kernel
    with pytest.raises(NotImplementedError, match="is not currently implemented for the MPS device"):
        if key == "SparseCPU":
            torch.lgamma(torch.eye(3, device=mps).to_sparse())
        else:
            torch.triangular_solve(torch.ones(3, 1, device=mps), torch.eye(3, device=mps).to_sparse_csr())


def test_sparse_tensors_on_the_cpu_and_back(mps, enabled):
    matrix = torch.tensor([[4.0, 0, 1], [0, 3, 0], [1, 0, 5]])
    compressed, coordinates = matrix.to_sparse_csr(), matrix.to_sparse()
    product = torch._sparse_csr_prod(compressed.to(mps), (1,), True)
    assert product.layout == torch.sparse_csr and product.device.type == "mps"
    assert product.to_dense().tolist() == torch._sparse_csr_prod(compressed, (1,), True).to_dense().tolist()
    assert torch.ops.aten._nnz(coordinates.to(mps)) == 5
    define("double_values(Tensor(a!) x) -> Tensor(a!)", lambda x: x)
    LIBRARY.impl("double_values", lambda x: x.mul_(2), "SparseCPU")
    LIBRARY.impl("double_values", lambda x: x.mul_(2), "SparseCsrCPU")
    for given in (compressed, coordinates):
        on_mps = given.to(mps)
        assert ops.double_values(on_mps) is on_mps
        assert on_mps.to_dense().tolist() == (matrix * 2).tolist()
