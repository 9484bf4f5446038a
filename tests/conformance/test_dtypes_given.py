"""Tensors of another dtype or device than a kernel reads and writes: errors, as on the CPU, and not their bytes."""

import pytest
import torch
import torch.nn.functional as F

aten = torch.ops.aten


def ones(device, *sizes, dtype=torch.float32):
    return torch.ones(sizes, dtype=dtype, device=device)


WINDOW = ([2, 2], [2, 2], [0, 0], [1, 1], False)
CUBE = ([2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False)
# Of a device and the dtype of the tensor that is not float32.
CALLS = {
    "max_pool2d_with_indices_backward": lambda d, t: aten.max_pool2d_with_indices_backward(
        ones(d, 1, 2, 2, dtype=t), ones(d, 1, 4, 4), *WINDOW, ones(d, 1, 2, 2, dtype=torch.int64)
    ),
    "its indices": lambda d, t: aten.max_pool2d_with_indices_backward(
        ones(d, 1, 2, 2), ones(d, 1, 4, 4), *WINDOW, ones(d, 1, 2, 2, dtype=t)
    ),
    "max_pool3d_with_indices": lambda d, t: aten.max_pool3d_with_indices.out(
        ones(d, 1, 4, 4, 4), *CUBE, out=ones(d, 1, 2, 2, 2, dtype=t), indices=ones(d, 1, 2, 2, 2, dtype=torch.int64)
    ),
    "avg_pool2d_backward": lambda d, t: aten.avg_pool2d_backward(
        ones(d, 1, 2, 2, dtype=t), ones(d, 1, 4, 4), [2, 2], [2, 2], [0, 0], False, True, None
    ),
    "max_unpool2d": lambda d, t: aten.max_unpool2d.out(
        ones(d, 1, 2, 2), ones(d, 1, 2, 2, dtype=torch.int64), [4, 4], out=ones(d, 1, 4, 4, dtype=t)
    ),
    "reflection_pad1d_backward": lambda d, t: aten.reflection_pad1d_backward(
        ones(d, 1, 6, dtype=t), ones(d, 1, 4), [1, 1]
    ),
    "replication_pad2d_backward": lambda d, t: aten.replication_pad2d_backward(
        ones(d, 1, 6, 6, dtype=t), ones(d, 1, 4, 4), [1, 1, 1, 1]
    ),
    "grid_sampler_2d_backward": lambda d, t: aten.grid_sampler_2d_backward(
        ones(d, 1, 1, 2, 2, dtype=t), ones(d, 1, 1, 4, 4), ones(d, 1, 2, 2, 2), 0, 0, False, [True, True]
    ),
    "nll_loss_backward": lambda d, t: aten.nll_loss_backward(
        ones(d), ones(d, 3, 4, dtype=t), ones(d, 3, dtype=torch.int64), None, 1, -100, ones(d)
    ),
    "nll_loss2d_forward": lambda d, t: aten.nll_loss2d_forward.output(
        ones(d, 1, 4, 2, 2), ones(d, 1, 2, 2, dtype=torch.int64), None, 1, -100,
        output=ones(d, dtype=t), total_weight=ones(d),
    ),
    "im2col": lambda d, t: aten.im2col.out(
        ones(d, 1, 1, 3, 3), [2, 2], [1, 1], [0, 0], [1, 1], out=ones(d, 1, 4, 4, dtype=t)
    ),
    "addbmm": lambda d, t: torch.addbmm(ones(d, 2, 2, dtype=t), ones(d, 1, 2, 2), ones(d, 1, 2, 2)),
    "addbmm into": lambda d, t: torch.addbmm(
        ones(d, 2, 2), ones(d, 1, 2, 2), ones(d, 1, 2, 2), out=ones(d, 2, 2, dtype=t)
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_other_dtypes_raise(name, dtype, mps):
    for device in (torch.device("cpu"), mps):
        with pytest.raises(RuntimeError):
            CALLS[name](device, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32], ids=str)
def test_a_summand_is_converted(dtype, mps):
    """As the CPU does, where the result that is given has the dtype of the factors."""
    summand, factor = torch.arange(4).view(2, 2).to(dtype), torch.rand(3, 2, 2)
    got = torch.addbmm(summand.to(mps), factor.to(mps), factor.to(mps), out=torch.empty(2, 2, device=mps))
    torch.testing.assert_close(got.cpu(), torch.addbmm(summand, factor, factor, out=torch.empty(2, 2)))


NORMS = {
    "LayerNormKernelImpl": lambda x: F.layer_norm(x, (3,)),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(3, device=x.device), torch.ones(3, device=x.device)),
}


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_integers_raise(name, dtype, mps):
    for device in ("cpu", mps):
        with pytest.raises(NotImplementedError, match=f'"{name}" not implemented for'):
            NORMS[name](torch.ones(2, 3, dtype=dtype, device=device))


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64, torch.int32], ids=str)
@pytest.mark.parametrize("of_a", [torch.float32, torch.complex64], ids=str)
def test_right_sides_have_the_dtype_of_the_triangle(of_a, dtype, mps):
    a, b = torch.rand(3, 3).add(torch.eye(3)).to(of_a), torch.arange(6).view(3, 2).to(dtype)
    want = torch.linalg.solve_triangular(a, b, upper=True)
    got = torch.linalg.solve_triangular(a.to(mps), b.to(mps), upper=True)
    torch.testing.assert_close(got.cpu(), want)


@pytest.mark.parametrize("call", [torch.std, torch.var, torch.bernoulli], ids=lambda f: f.__name__)
def test_results_on_another_device_raise(call, mps):
    dims = () if call is torch.bernoulli else (0,)
    for source, out in ((mps, "cpu"), ("cpu", mps)):
        with pytest.raises(RuntimeError, match="same device"):
            call(torch.ones(3, 3, device=source), *dims, out=torch.ones(3, 3, device=out)[0 if dims else ...])
