"""Memory of long runs: many different shapes, many steps."""

from __future__ import annotations

import ctypes
import gc
import random

import torch
import torch.nn.functional as F

PAGE = 4096


class _Heap(ctypes.Structure):
    """glibc's struct mallinfo2."""

    names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "top")
    _fields_ = tuple(zip(names, 10 * (ctypes.c_size_t,)))


def heap_bytes() -> int:
    """What is allocated. Resident memory also has what the compiler of a late pipeline freed again, up to 17 MB."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Heap
    heap = mallinfo()
    return heap.used + heap.hblkhd


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def twenty_operators(x: torch.Tensor, w: torch.Tensor) -> None:
    """On a matrix [n, m] and one [m, k]."""
    y = x @ w
    z = F.softmax(F.layer_norm(y + 1.0, y.shape[-1:]), -1)
    z = torch.cat([z, z.sqrt()], 1).t().contiguous()
    z = F.gelu(z).exp() * z.sigmoid() - z.mean(0, keepdim=True)
    image = F.pad(z[None, None], (1, 1, 1, 1))
    image = F.max_pool2d(F.conv2d(image, torch.ones(2, 1, 3, 3, device=x.device)), 2, ceil_mode=True)
    image = F.interpolate(image, scale_factor=2, mode="nearest")
    values = image.flatten()
    torch.where(values > 0, values, values.cumsum(0)).sort()
    (
        values.argmax(),
        values.var(),
        values[::2].clone().fill_(1.0).any(),
        values.index_select(0, torch.tensor([0]).to(x.device)),
    )


def visit_shapes(count: int, device, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(count):
        n, m, k = (draw.randint(2, 90) for _ in range(3))
        twenty_operators(torch.ones(n, m, device=device), torch.ones(m, k, device=device))
    torch.mps.synchronize()


def test_new_shapes_cost_no_memory_and_few_pipelines(mps, pytestconfig):
    count = pytestconfig.getoption("--shapes")
    visit_shapes(count, mps, seed=0)  # every variant of a kernel that sizes can ask for
    gc.collect()
    heap, resident, pipelines = heap_bytes(), resident_bytes(), torch.ops.anymps.pipeline_count()
    visit_shapes(count, mps, seed=1)
    gc.collect()
    late = torch.ops.anymps.pipeline_count() - pipelines
    assert late <= 0.1 * pipelines
    assert heap_bytes() - heap < (4 + 2 * late) << 20  # a software driver's pipeline takes about a megabyte
    assert resident_bytes() - resident < 48 << 20


def test_a_thousand_steps_do_not_grow(mps):
    net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.LayerNorm(30), torch.nn.GELU(), torch.nn.Linear(30, 4))
    net.to(mps)
    optimizer = torch.optim.AdamW(net.parameters())
    x, y = torch.randn(16, 20, device=mps), torch.randint(0, 4, (16,), device=mps)

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        torch.mps.synchronize()
        gc.collect()
        return heap_bytes(), torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()

    before, *device = steps(100)
    resident, grown = resident_bytes(), []
    for _ in range(3):
        after, *device_after = steps(300)
        assert device_after == device
        grown.append(after - before)
        before = after
    # Half a kilobyte a step. A late pipeline's compiler keeps up to 16 MB once; what leaks does so in every round.
    assert min(grown) < 150 << 10, grown
    assert resident_bytes() - resident < 48 << 20


def test_a_large_block_serves_smaller_tensors(mps):
    """Best fit, whatever is left over: 12 and 48 MiB go where 64 were, and 64 again once they are gone."""
    torch.mps.empty_cache()
    torch.empty(64 << 20, dtype=torch.uint8, device=mps)
    reserved = torch.accelerator.memory_reserved()
    for sizes in ((12, 48), (64,)):
        tensors = [torch.empty(size << 20, dtype=torch.uint8, device=mps) for size in sizes]
        assert torch.accelerator.memory_reserved() == reserved
        del tensors
