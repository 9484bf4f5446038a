"""max_unpool and fractional_max_pool in two and three dimensions."""

import pytest
import torch
import torch.nn.functional as F
from both_devices import agree, layouts


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_unpool_inverts_pool(spatial, mps, no_fallback):
    pool = getattr(F, f"max_pool{spatial}d")
    unpool = getattr(F, f"max_unpool{spatial}d")
    shape = (2, 3, 6, 8, 4)[: spatial + 2]
    _, indices = pool(torch.randn(shape), 2, return_indices=True)
    for x in layouts(tuple(indices.shape)):
        agree(lambda x, i: unpool(x, i, 2), x, indices)
    agree(lambda x, i: unpool(x, i, 2), torch.randn(indices.shape[1:]), indices[0])
    larger = [n + 1 for n in shape[2:]]
    agree(lambda x, i: unpool(x, i, 2, output_size=larger), torch.randn(indices.shape), indices)
    agree(lambda x, i: unpool(x, i, 2), torch.randn((0, *indices.shape[1:])), indices[:0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_unpool_low_precision(dtype, mps):
    _, indices = F.max_pool2d(torch.randn(2, 3, 6, 8), 2, return_indices=True)
    agree(lambda x, i: F.max_unpool2d(x, i, 2), torch.randn(indices.shape).to(dtype), indices)


def test_unpool_errors(mps):
    x, i = torch.ones(1, 1, 2, 2, device=mps), torch.zeros(1, 1, 2, 2, dtype=torch.int64, device=mps)
    with pytest.raises(NotImplementedError, match="\"max_unpool2d\" not implemented for 'Int'"):
        F.max_unpool2d(x.int(), i, 2)
    with pytest.raises(RuntimeError, match="elements in indices should be type int64 but got: Int"):
        F.max_unpool2d(x, i.int(), 2)
    with pytest.raises(RuntimeError, match="elements in indices should be type int64 but got: Int"):
        F.max_unpool3d(x[None], i[None].int(), 2)
    with pytest.raises(torch.AcceleratorError, match="max_unpool2d"):
        F.max_unpool2d(x, i + 99, 2)
        torch.mps.synchronize()


@pytest.mark.parametrize("spatial", [2, 3])
@pytest.mark.parametrize("output", [1, 2, 4])
def test_fractional_pool(spatial, output, mps, no_fallback):
    pool = getattr(F, f"fractional_max_pool{spatial}d")
    shape = (2, 3, 7, 9, 10)[: spatial + 2]
    samples = torch.rand(2, 3, spatial)
    sizes = [output + k for k in range(spatial)]
    for x in layouts(shape):
        agree(lambda x, s: pool(x, 3, sizes, return_indices=True, _random_samples=s.detach()), x, samples)
    agree(lambda x, s: pool(x, 2, sizes, _random_samples=s.detach()), torch.randn(shape[1:]), samples[:1])


@pytest.mark.parametrize("spatial", [2, 3])
def test_fractional_pool_of_nan(spatial, mps):
    x = torch.randn((1, 1, 6, 6, 6)[: spatial + 2])
    x.view(-1)[::7] = float("nan")
    pool = getattr(F, f"fractional_max_pool{spatial}d")
    agree(
        lambda x, s: pool(x, 2, 3, return_indices=True, _random_samples=s.detach()),
        x,
        torch.rand(1, 1, spatial),
        backward=False,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fractional_pool_low_precision(dtype, mps):
    x, samples = torch.randn(2, 3, 9, 9).to(dtype), torch.rand(2, 3, 2).to(dtype)
    agree(lambda x, s: F.fractional_max_pool2d(x, 2, 5, return_indices=True, _random_samples=s.detach()), x, samples)


def test_fractional_pool_errors(mps):
    with pytest.raises(RuntimeError, match="Expect _random_samples to have the same dtype as input"):
        F.fractional_max_pool2d(
            torch.ones(1, 1, 4, 4, device=mps), 2, 2, _random_samples=torch.ones(1, 1, 2, device=mps).half()
        )
