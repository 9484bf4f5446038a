"""Bugs that other backends shipped, mostly silent ones: one small test for each that no other file has."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch
import torch.nn.functional as F
from compare import close


def both(function, *tensors, tolerance=1e-5):
    """Compares a function of tensors on the device with the CPU."""
    expected = function(*tensors)
    actual = function(*(t.to("mps") for t in tensors))
    close(actual, expected, tolerance)


def fill_cache_with_nan(megabytes: int = 8) -> None:
    """Leaves NaN in the memory that the allocator hands out next."""
    blocks = [torch.full((size,), float("nan"), device="mps") for size in (64, 1000, 4096, 65536, megabytes << 18)]
    torch.mps.synchronize()
    del blocks


# --- memory handed out again


@pytest.mark.parametrize("seed", range(6))
def test_products_over_recycled_memory(seed, mps):
    """Wrong by 10-30 % elsewhere, depending on what the allocator handed out; batches over 8 wrong altogether."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 40, (4,), generator=generator).tolist()
    batch, m, n, k = sizes[0] + 8, *sizes[1:]
    a = torch.randn(batch, k, m, generator=generator).transpose(1, 2)
    b = torch.randn(batch, k + 3, n * 2, generator=generator)[:, 3:, ::2]
    fill_cache_with_nan()
    both(torch.bmm, a, b, tolerance=1e-4)
    fill_cache_with_nan()
    both(lambda x, y: torch.mm(x[0], y[1]), a, b, tolerance=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(1),
        lambda x: F.softmax(x, -1),
        lambda x: F.layer_norm(x, x.shape[1:]),
        lambda x: x.cumsum(1),
        lambda x: x.sort(1).values,
        lambda x: F.avg_pool1d(x[None], 3)[0],
        lambda x: torch.cat([x, x.T[:, :1].expand(-1, 37)]),
        lambda x: F.conv1d(x[None], torch.ones(2, 5, 3, device=x.device), padding=1),
        lambda x: x.new_zeros(5, 5).index_add(0, torch.tensor([0, 0, 4], device=x.device), x[:3, :5]),
        lambda x: F.pad(x, (3, 2)),
        lambda x: F.embedding(torch.tensor([1, 4], device=x.device), x),
    ],
)
def test_results_over_recycled_memory(function, mps, all_bits_of_f32):
    x = torch.randn(5, 37)
    fill_cache_with_nan()
    both(function, x)


def test_memory_stays_flat_over_many_shapes(mps):
    """Apple's backend grew by gigabytes an epoch; caches keyed by shapes or numbers must not exist."""

    def step(i: int) -> None:
        x = torch.ones(1 + i % 61, 1 + i % 83, device=mps)
        (x * (i / 7.0) + i).sum()

    for i in range(100):
        step(i)
    torch.mps.synchronize()
    before = torch.mps.driver_allocated_memory()
    for i in range(100, 2100):
        step(i)
    torch.mps.synchronize()
    assert torch.mps.driver_allocated_memory() <= before + (4 << 20)


def test_statistics_return_to_their_start(mps):
    """Allocator statistics after a training loop are those before it; empty_cache gives memory back."""

    def train() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).to(mps)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            target = torch.zeros(16, dtype=torch.long, device=mps)
            F.cross_entropy(model(torch.randn(16, 32, device=mps)), target).backward()
            optimizer.step()

    train()  # what is made once
    gc.collect()
    torch.mps.synchronize()
    start = torch.mps.current_allocated_memory()
    train()
    gc.collect()
    torch.mps.synchronize()
    assert torch.mps.current_allocated_memory() == start
    big = torch.empty(64 << 20, dtype=torch.uint8, device=mps)
    held = torch.mps.driver_allocated_memory()
    del big
    torch.mps.empty_cache()
    assert torch.mps.driver_allocated_memory() <= held - (64 << 20)


def test_out_of_memory_is_an_error_and_the_next_op_works(mps):
    torch.mps.set_per_process_memory_fraction(1.0)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 46, dtype=torch.uint8, device=mps)
        assert (torch.ones(3, device=mps) + 1).tolist() == [2, 2, 2]
    finally:
        torch.mps.set_per_process_memory_fraction(1.7)


def test_a_tensor_beyond_the_largest_buffer_is_named_so(mps):
    """Out of memory would send people to free memory, which does not help; what the limit allows is given."""
    for size in (1 << 32, (1 << 32) - (1 << 20)):
        try:
            x = torch.empty(size, dtype=torch.uint8, device=mps)
        except torch.OutOfMemoryError as error:
            limit = torch.mps.driver_allocated_memory() + size
            assert "max allowed" in str(error) and torch.mps.recommended_max_memory() < limit
        except RuntimeError as error:
            assert str(error).startswith("Invalid buffer size: 4.00 GiB (") and f"({size} bytes)" in str(error)
            assert "allows at most" in str(error) and size > torch._C._mps_maxBufferLength()
        else:
            x[-3:] = 7
            assert x[-4:].sum().item() >= 21
            del x
            torch.mps.empty_cache()
    assert (torch.ones(3, device=mps) + 1).tolist() == [2, 2, 2]


def test_the_cache_is_freed_before_out_of_memory(run_python):
    """An allocation that fits only without the cache succeeds; the fraction and the watermark are obeyed."""
    source = """
import torch
limit = torch.mps.recommended_max_memory()
fraction = (96 << 20) / limit
torch.mps.set_per_process_memory_fraction(fraction)
first = torch.empty(60 << 20, dtype=torch.uint8, device="mps")
try:
    torch.empty(60 << 20, dtype=torch.uint8, device="mps")
except torch.OutOfMemoryError as error:
    print("refused")
del first
second = torch.empty(50 << 20, dtype=torch.uint8, device="mps")
print(torch.mps.driver_allocated_memory() <= 97 << 20)
"""
    result = run_python(source)
    assert result.stdout.split() == ["refused", "True"], result.stderr
    source = 'import torch; torch.empty(1 << 30, dtype=torch.uint8, device="mps")'
    ratios = {"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.001", "PYTORCH_MPS_LOW_WATERMARK_RATIO": "0.0"}
    result = run_python(source, env=ratios)
    assert "OutOfMemoryError" in result.stderr


# --- many calls without a synchronisation


def test_reductions_in_rapid_succession(mps):
    """Apple's sum, mean, trace and count_nonzero were wrong when called quickly: 10,000 calls, all compared."""
    x = torch.randn(50, 6, 6)
    device = x.to(mps)
    functions = (torch.sum, torch.mean, torch.nansum, torch.trace, torch.count_nonzero)
    results = [functions[i % 5](device[i % 50]) for i in range(10_000)]
    expected = torch.tensor([float(functions[i % 5](x[i % 50])) for i in range(250)])
    actual = torch.stack([r.to(torch.float32) for r in results]).cpu().view(-1, 250)
    torch.testing.assert_close(actual, expected.expand_as(actual), rtol=1e-5, atol=1e-5)


def test_the_source_of_an_upload_may_change_at_once(mps):
    """A non-blocking copy takes its bytes before it returns, or keeps the source."""
    source = torch.arange(1 << 16, dtype=torch.float32)
    copies = []
    for i in range(20):
        source.fill_(i)
        copies.append(source.to(mps, non_blocking=True))
        source.fill_(-1)
    for i, copy in enumerate(copies):
        assert torch.equal(copy.cpu(), torch.full_like(source, i))
    assert torch.equal(torch.ones(1000).to(mps, non_blocking=True).cpu(), torch.ones(1000))  # the source is freed


# --- views


VIEWS = {
    "offset": lambda t: t[1:, 2:],
    "steps": lambda t: t[::2, ::3],
    "transposed": lambda t: t.t(),
    "expanded": lambda t: t[:1].expand(7, -1),
    "column": lambda t: t[:, 3],
    "diagonal": lambda t: t.diagonal(1),
    "unfolded": lambda t: t.unfold(1, 4, 2),
}
OPERATIONS = {
    "add": lambda t: t + t,
    "exp": torch.exp,
    "where": lambda t: torch.where(t > 0, t, -t),
    "sum": lambda t: t.sum(-1),
    "max": lambda t: t.max(0).values,
    "argmax": lambda t: t.argmax(-1),
    "softmax": lambda t: t.softmax(-1),
    "cumsum": lambda t: t.cumsum(0),
    "sort": lambda t: t.sort(-1).values,
    "topk": lambda t: t.topk(2, -1).values,
    "index": lambda t: t[torch.tensor([1, 0], device=t.device)],
    "nonzero": lambda t: (t > 0).nonzero(),
    "gather": lambda t: t.gather(0, torch.zeros_like(t, dtype=torch.long)),
    "cat": lambda t: torch.cat([t, t], -1),
    "matmul": lambda t: t @ t.transpose(-1, -2) if t.dim() > 1 else t @ t,
    "norm": lambda t: t.norm(dim=0),
    "clone": torch.clone,
    "half": lambda t: t.half().float(),
    "contiguous": lambda t: t.contiguous(),
    "std": lambda t: t.std(-1),
    "layer_norm": lambda t: F.layer_norm(t, t.shape[-1:]),
    "masked_fill": lambda t: t.masked_fill(t > 0, 2),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_on_views(operation, mps):
    base = torch.randn(12, 13)
    device = base.to(mps)
    for name, view in VIEWS.items():
        expected = OPERATIONS[operation](view(base))
        actual = OPERATIONS[operation](view(device)).cpu()
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(
    "operation",
    [
        lambda t, o: t.addcdiv_(o, o.abs() + 1, value=0.5),
        lambda t, o: t.addcmul_(o, o),
        lambda t, o: t.mul_(2).add_(o),
        lambda t, o: t.clamp_(-0.5, 0.5),
        lambda t, o: t.exp_(),
        lambda t, o: t.masked_fill_(o > 0, 7),
        lambda t, o: t.copy_(o),
        lambda t, o: t.zero_(),
        lambda t, o: t.lerp_(o, 0.3),
        lambda t, o: t.index_fill_(0, torch.tensor([1], device=t.device), 3),
        lambda t, o: torch.add(o, 1, out=t),
        lambda t, o: torch.cumsum(o, 0, out=t),
        lambda t, o: t.neg_(),
    ],
)
def test_in_place_on_views(operation, mps):
    """What lies between the elements of the view stays as it was."""
    for view in (VIEWS["steps"], VIEWS["transposed"], VIEWS["offset"]):
        base, other = torch.randn(12, 13), torch.randn(12, 13)
        device, device_other = base.to(mps), other.to(mps)
        operation(view(base), view(other))
        operation(view(device), view(device_other))
        torch.testing.assert_close(device.cpu(), base, rtol=1e-5, atol=1e-5)


# --- sizes


def test_more_than_65535_groups(mps):
    """Grids end at 65,535 groups on many devices: rows and elements beyond."""
    rows = torch.arange(600_001, dtype=torch.float32) % 1000
    x = rows[:, None] + torch.tensor([0.0, 1.0, 2.0])
    device = x.to(mps)
    assert torch.equal(device.sum(1).cpu(), x.sum(1))
    assert torch.equal(device.argmax(1).cpu(), x.argmax(1))
    assert torch.equal((device * 2).t().contiguous().cpu(), (x * 2).t().contiguous())
    torch.testing.assert_close(device.softmax(1).cpu(), x.softmax(1))
    index = torch.arange(600_000, -1, -1)
    assert torch.equal(device[:, 0].gather(0, index.to(mps)).cpu(), rows.flip(0))
    assert torch.equal(device[:, 0].cumsum(0, dtype=torch.long).cpu(), rows.cumsum(0, dtype=torch.long))


def test_all_bfloat16_values(mps):
    """Casts round to nearest even and keep NaN, for every pattern and around every boundary."""
    patterns = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    values = patterns.view(torch.bfloat16)
    device = patterns.to(mps).view(torch.bfloat16)
    numbers = ~values.isnan()
    assert torch.equal(device.float().cpu().view(torch.int32)[numbers], values.float().view(torch.int32)[numbers])
    assert device.float().cpu()[values.isnan()].isnan().all()
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        wide = ((patterns.to(torch.int32) << 16) | low).view(torch.float32)
        expected, actual = wide.to(torch.bfloat16), wide.to(mps).to(torch.bfloat16).cpu()
        assert torch.equal(actual.view(torch.int16)[~wide.isnan()], expected.view(torch.int16)[~wide.isnan()])
        assert actual[wide.isnan()].isnan().all()


# --- errors


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("index_select", lambda x, i: x.index_select(0, i)),
        ("index", lambda x, i: x[i]),
        ("gather", lambda x, i: x.gather(0, i[:, None].expand(-1, 3))),
        ("scatter", lambda x, i: x.scatter(0, i[:, None].expand(-1, 3), 1.0)),
        ("embedding", lambda x, i: F.embedding(i, x)),
        ("take", lambda x, i: x.take(i)),
    ],
)
@pytest.mark.parametrize("bad", [100, -101])
def test_index_out_of_range(op, function, bad, mps):
    """An error at the next synchronisation that names the op; the device works afterwards."""
    x = torch.ones(4, 3, device=mps)
    function(x, torch.tensor([0, bad], device=mps))
    with pytest.raises(torch.AcceleratorError, match=op):
        torch.mps.synchronize()
    assert x.sum().item() == 12
    function(x, torch.tensor([0, bad], device=mps))
    event = torch.mps.Event()
    event.record()
    with pytest.raises(torch.AcceleratorError, match=op):
        event.synchronize()
    assert x.sum().item() == 12


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, dtype=torch.float64, device="mps"),
        lambda: torch.ones(2, dtype=torch.float64).to("mps"),
        lambda: torch.ones(2, device="mps").double(),
        lambda: torch.tensor([1.0], dtype=torch.float64, device="mps"),
        lambda: torch.ones(2, device="mps").sum(dtype=torch.float64),
        lambda: torch.ones(2, device="mps").to(torch.complex128),
        lambda: torch.zeros(2, dtype=torch.complex128, device="mps"),
        lambda: torch.ones(2, device="mps").new_zeros(1, dtype=torch.double),
    ],
)
def test_double_precision_is_refused(make, mps):
    with pytest.raises(TypeError, match="MPS"):
        make()


def test_fuzzed_arguments_never_abort(mps):
    """Shapes that do not fit raise; they neither crash the process nor hang."""
    shapes = [(), (0,), (1,), (3,), (2, 0), (2, 3), (3, 2), (1, 3, 2), (2, 3, 4)]
    functions = [torch.matmul, torch.add, torch.where, torch.cat, F.linear, torch.bmm, F.conv1d, torch.outer]
    agreed = 0
    for function, (a, b) in itertools.product(functions, itertools.product(shapes, shapes)):
        outcomes = []
        for device in ("cpu", "mps"):
            x, y = torch.ones(a, device=device), torch.ones(b, device=device)
            arguments = ([x, y],) if function is torch.cat else (x > 0, x, y) if function is torch.where else (x, y)
            try:
                outcomes.append(function(*arguments).shape)
            except (RuntimeError, IndexError) as error:
                outcomes.append(type(error))
        assert outcomes[0] == outcomes[1], (function, a, b, outcomes)
        agreed += 1
    assert agreed == len(functions) * len(shapes) ** 2


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_divided_by_zero_are_zero(dtype, mps):
    """As docs/differences.md says; the smallest integer divided by -1 wraps to itself."""
    info = torch.iinfo(dtype)
    x = torch.tensor([5, 0, info.max, info.min], dtype=dtype, device=mps)
    quotients = [torch.floor_divide, lambda a, b: torch.div(a, b, rounding_mode="trunc")]
    remainders = [torch.remainder, torch.fmod]
    for function in quotients + remainders:
        assert not function(x, torch.zeros_like(x)).any() and not function(x, 0).any()
    if info.min < 0:
        assert all(f(x, -1).tolist() == [-5, 0, -info.max, info.min] for f in quotients)
        assert not any(f(x, -1).any() for f in remainders)
