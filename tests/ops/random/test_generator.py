"""Random numbers: the generator's state, Philox itself, every distribution, threads."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch


def philox_blocks(seed: int, offset: int, count: int) -> np.ndarray:
    """Blocks offset..offset+count-1 of Philox4x32-10, [count, 4] uint32; written from the paper."""
    index = np.arange(offset, offset + count, dtype=np.uint64)
    zero = np.zeros_like(index)
    low32 = np.uint64(0xFFFFFFFF)
    c = [index & low32, index >> np.uint64(32), zero, zero]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ key[0],
            b & low32,
            (a >> np.uint64(32)) ^ c[3] ^ key[1],
            a & low32,
        ]
        key = [(key[0] + np.uint64(0x9E3779B9)) & low32, (key[1] + np.uint64(0xBB67AE85)) & low32]
    return np.stack(c, axis=1).astype(np.uint32)


def uniforms(seed: int, offset: int, count: int) -> np.ndarray:
    bits = philox_blocks(seed, offset, (count + 3) // 4).reshape(-1)[:count]
    return ((bits >> np.uint32(8)).astype(np.float64) * 2.0**-24).astype(np.float32)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.cpu(), b.cpu())


def significant_bits(x: np.ndarray) -> np.ndarray:
    """Whole numbers below 2^32 cut, not rounded, to the 24 bits of a float."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.floor(np.ldexp(mantissa, 24)), exponent - 24)


def generator(seed: int) -> torch.Generator:
    return torch.Generator(device="mps").manual_seed(seed)


def test_reference_is_philox():
    # Known answer of the authors' library for counter 0 and key 0.
    assert [hex(v) for v in philox_blocks(0, 0, 1)[0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 127, 1000, 70001])
def test_uniform_is_philox_bit_for_bit(mps, count):
    seed = 0x1234_5678_9ABC_DEF0
    x = torch.empty(count, device=mps).uniform_(generator=generator(seed))
    assert np.array_equal(x.cpu().numpy(), uniforms(seed, 0, count))


def test_draws_follow_one_another(mps):
    g = generator(5)
    first, second = torch.rand(10, device=mps, generator=g), torch.rand(6, device=mps, generator=g)
    assert np.array_equal(first.cpu().numpy(), uniforms(5, 0, 10))
    assert np.array_equal(second.cpu().numpy(), uniforms(5, 3, 6))  # 10 numbers take three blocks
    assert g.get_offset() == 5


def test_normal_agrees_with_box_muller_in_float64(mps):
    seed, count = 99, 4096
    x = torch.randn(count, device=mps, generator=generator(seed)).cpu().double().numpy()
    bits = philox_blocks(seed, 0, count // 4).astype(np.float64)
    u1, u2 = significant_bits(bits[:, [0, 2]]) * 2.0**-32, np.floor(bits[:, [1, 3]] / 256) * 2.0**-24
    radius = np.sqrt(-2 * np.log(u1))
    expected = np.stack([radius * np.cos(2 * math.pi * u2), radius * np.sin(2 * math.pi * u2)], axis=2).reshape(-1)
    assert np.abs(x - expected).max() < 1e-6


def test_numbers_of_a_seed_never_change(mps):
    """The bits that every device must give; a new device or driver that fails here breaks reproducibility."""
    normal = torch.randn(8, device=mps, generator=generator(42)).cpu().numpy().view(np.uint32)
    cauchy = torch.empty(4, device=mps).cauchy_(1, 2, generator=generator(42)).cpu().numpy().view(np.uint32)
    log_normal = torch.empty(4, device=mps).log_normal_(0.5, 1.5, generator=generator(42)).cpu().numpy().view(np.uint32)
    assert " ".join(f"{v:08x}" for v in normal) == (
        "bf785e5b 3e46aced bf9e28ce 3ff64340 bd95e02d 3e0e7a15 bf8da733 3ea7430b"
    )
    assert " ".join(f"{v:08x}" for v in cauchy) == "402df6b0 3f199c28 3ffee03d c0074d8b"
    assert " ".join(f"{v:08x}" for v in log_normal) == "3ec4f7bf 400d2999 3e8446c7 41ec5abc"


def test_state_round_trip(mps):
    torch.mps.manual_seed(7)
    torch.rand(5, device=mps)
    state = torch.mps.get_rng_state()
    a = torch.randn(1000, device=mps)
    torch.mps.set_rng_state(state)
    b = torch.randn(1000, device=mps)
    assert same(a, b)
    assert not same(a, torch.randn(1000, device=mps))


def test_state_of_wrong_size_or_kind():
    g = generator(1)
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        g.set_state(torch.zeros(15, dtype=torch.uint8))
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        g.set_state(torch.zeros(4, dtype=torch.float32))


def test_manual_seed_of_torch_seeds_the_device(mps):
    torch.manual_seed(3)
    a = torch.rand(100, device=mps)
    torch.manual_seed(3)
    assert same(a, torch.rand(100, device=mps))
    with torch.random.fork_rng(device_type="mps"):
        torch.rand(5, device=mps)
    assert torch.mps.get_rng_state().tolist()[8] == 25  # blocks of 100 numbers; those of the fork were taken back


def test_generators_are_independent_and_cloneable(mps):
    g, h = generator(11), generator(12)
    a = torch.rand(64, device=mps, generator=g)
    b = torch.rand(64, device=mps, generator=h)
    assert not same(a, b)
    copy = torch.Generator(device="mps")
    copy.set_state(g.get_state())
    assert same(torch.rand(64, device=mps, generator=g), torch.rand(64, device=mps, generator=copy))
    assert g.initial_seed() == 11
    assert g.device == torch.device("mps:0")
    assert isinstance(g.seed(), int) and g.initial_seed() != 11


def test_generator_of_another_device_is_refused(mps):
    with pytest.raises(RuntimeError, match=r"Expected a 'mps' device type for generator but found 'cpu'"):
        torch.rand(3, device=mps, generator=torch.Generator())


def test_eight_threads_never_share_numbers(mps):
    torch.mps.manual_seed(0)
    results: list[torch.Tensor] = []
    lock = threading.Lock()

    def draw():
        for _ in range(20):
            x = torch.empty(256, dtype=torch.int64, device=mps).random_()
            with lock:
                results.append(x)

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    values = torch.cat([x.cpu() for x in results])
    assert values.unique().numel() == values.numel() == 8 * 20 * 256


N = 200_000
DISTRIBUTIONS = {
    # name: (draw, mean, standard deviation, distribution function)
    "uniform": (lambda x, g: x.uniform_(-1, 3, generator=g), 1, 4 / 12**0.5, lambda v: (v + 1) / 4),
    "normal": (lambda x, g: x.normal_(2, 3, generator=g), 2, 3, lambda v: 0.5 * math.erfc(-(v - 2) / 3 / 2**0.5)),
    "exponential": (lambda x, g: x.exponential_(2, generator=g), 0.5, 0.5, lambda v: 1 - math.exp(-2 * v)),
    "log_normal": (
        lambda x, g: x.log_normal_(0, 0.5, generator=g),
        math.exp(0.125),
        math.exp(0.125) * (math.exp(0.25) - 1) ** 0.5,
        lambda v: 0.5 * math.erfc(-math.log(v) / 0.5 / 2**0.5),
    ),
    "cauchy": (lambda x, g: x.cauchy_(1, 2, generator=g), None, None, lambda v: 0.5 + math.atan((v - 1) / 2) / math.pi),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_continuous_distributions(mps, name, dtype):
    draw, mean, std, cdf = DISTRIBUTIONS[name]
    x = draw(torch.empty(N, device=mps, dtype=dtype), generator(1)).cpu().double()
    if mean is not None:
        assert abs(x.mean() - mean) < 5 * std / N**0.5 + 1e-3
        assert abs(x.std() - std) < 0.02 * std
    # Kolmogorov and Smirnov; half precision rounds many numbers onto one
    ordered = x.sort().values
    probability = torch.tensor([cdf(v) for v in ordered[:: N // 500].tolist()])
    rank = torch.arange(0, N, N // 500) / N
    assert (probability - rank).abs().max() < (0.005 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_uniform_never_reaches_its_end(mps, dtype):
    for low, high in [(0.0, 1.0), (0.1, 10.1), (-3.0, -1.0)]:
        x = torch.empty(1 << 20, device=mps, dtype=dtype).uniform_(low, high, generator=generator(2)).cpu()
        assert x.min() >= torch.tensor(low, dtype=dtype) and x.max() < torch.tensor(high, dtype=dtype)


def test_bounds_of_degenerate_distributions(mps):
    assert torch.empty(5, device=mps).uniform_(2, 2).cpu().tolist() == [2.0] * 5
    assert torch.empty(5, device=mps).normal_(3, 0).cpu().tolist() == [3.0] * 5
    assert torch.empty(1 << 20, device=mps).exponential_(generator=generator(1)).cpu().min() > 0
    assert torch.isfinite(torch.empty(1 << 20, device=mps).cauchy_(generator=generator(1)).cpu()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [0.0, 0.25, 0.9, 1.0])
def test_bernoulli(mps, dtype, p):
    x = torch.empty(N, device=mps, dtype=dtype).bernoulli_(p, generator=generator(3)).cpu().double()
    assert set(x.unique().tolist()) <= {0.0, 1.0}
    assert abs(x.mean() - p) < 5 * (p * (1 - p) / N) ** 0.5 + 1e-12


@pytest.mark.parametrize("p_dtype", [torch.float32, torch.float16], ids=str)
def test_bernoulli_with_probabilities(mps, p_dtype):
    p = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=p_dtype, device=mps)
    x = torch.bernoulli(p.expand(50_000, 4).contiguous()).cpu().double().mean(0)
    assert torch.allclose(x, p.cpu().double(), atol=0.012)
    y = torch.empty(4, 50_000, device=mps).bernoulli_(p.unsqueeze(1)).cpu().double().mean(1)
    assert torch.allclose(y, p.cpu().double(), atol=0.012)
    assert torch.bernoulli(p, out=torch.empty(0, device=mps)).shape == (4,)


def test_geometric(mps):
    x = torch.empty(N, device=mps).geometric_(0.3, generator=generator(4)).cpu()
    assert x.min() == 1 and torch.equal(x, x.round())
    assert abs(x.mean() - 1 / 0.3) < 0.03
    assert abs((x == 1).double().mean() - 0.3) < 0.005


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float16], ids=str
)
def test_random_integers(mps, dtype):
    x = torch.empty(N, device=mps, dtype=dtype).random_(3, 13, generator=generator(5)).cpu()
    counts = torch.bincount(x.long(), minlength=13)[3:]
    assert x.min() == 3 and x.max() == 12
    assert (counts - N / 10).abs().max() < 5 * (N * 0.09) ** 0.5
    y = torch.empty(N, device=mps, dtype=dtype).random_(generator=generator(6)).cpu().double()
    top = 2.0 ** {torch.float32: 24, torch.float16: 11}.get(dtype, 0) if dtype.is_floating_point else 0
    top = top or torch.iinfo(dtype).max
    assert y.min() >= 0 and y.max() <= top and abs(y.mean() / top - 0.5) < 0.005


def test_wide_ranges_of_random_integers(mps):
    x = torch.empty(N, device=mps, dtype=torch.int64).random_(-(2**63), None, generator=generator(7)).cpu().double()
    assert x.min() < -0.999 * 2.0**63 and x.max() > 0.999 * 2.0**63 and abs(x.mean()) < 0.01 * 2.0**63
    # 3 * 2^61 does not divide 2^64: a plain remainder of 64 bits would favour the lower numbers
    y = torch.empty(N, device=mps, dtype=torch.int64).random_(0, 3 << 61, generator=generator(8)).cpu()
    thirds = torch.bincount((y >> 61).long(), minlength=3).double() / N
    assert torch.allclose(thirds, torch.full((3,), 1 / 3, dtype=torch.double), atol=0.01)
    z = torch.randint(0, 2**32, (N,), device=mps, generator=generator(9)).cpu()
    assert z.max() > 0.999 * 2**32 and abs(z.double().mean() / 2**32 - 0.5) < 0.005


def test_strided_and_offset_targets(mps):
    base = torch.zeros(10, 12, device=mps)
    base[:, 1::2].uniform_(1, 2)
    values = base.cpu()
    assert (values[:, 0::2] == 0).all() and (values[:, 1::2] >= 1).all()
    assert values[:, 1::2].unique().numel() == 60
    tail = torch.zeros(11, device=mps)
    tail[3:].normal_(generator=generator(1))
    assert torch.equal(tail[:3].cpu(), torch.zeros(3))
    assert torch.equal(tail[3:].cpu(), torch.randn(8, device=mps, generator=generator(1)).cpu())
    last = torch.empty(2, 3, 4, 5, device=mps).to(memory_format=torch.channels_last).uniform_()
    assert last.is_contiguous(memory_format=torch.channels_last) and last.cpu().unique().numel() == 120
    assert torch.rand(0, device=mps).shape == (0,) and torch.rand((), device=mps).shape == ()


def test_complex(mps):
    x = torch.randn(N, dtype=torch.complex64, device=mps, generator=generator(1)).cpu()
    assert abs(x.abs().square().mean() - 1) < 0.02 and abs(x.mean()) < 0.01


def test_normal_of_tensors(mps):
    mean, std = torch.arange(4.0, device=mps), torch.tensor([0.0, 1.0, 2.0, 3.0], device=mps)
    x = torch.normal(mean.expand(20_000, 4), std.expand(20_000, 4)).cpu()
    assert torch.allclose(x.mean(0), mean.cpu(), atol=0.12) and torch.allclose(x.std(0), std.cpu(), atol=0.1)
    y = torch.normal(mean.expand(20_000, 4), 0.5).cpu()
    assert torch.allclose(y.mean(0), mean.cpu(), atol=0.03)
    z = torch.normal(1.0, std.expand(20_000, 4)).cpu()
    assert torch.allclose(z.std(0), std.cpu(), atol=0.1)
    assert torch.normal(0.0, 1.0, (3, 4), device=mps).shape == (3, 4)
    with pytest.raises(RuntimeError, match=r"normal expects all elements of std >= 0\.0"):
        torch.normal(mean, torch.tensor([-1.0, 1, 1, 1], device=mps))


def test_randperm(mps):
    for n in (0, 1, 2, 5, 1000, 70_001):
        for dtype in (torch.int64, torch.int32, torch.float32):
            x = torch.randperm(n, device=mps, dtype=dtype, generator=generator(n))
            assert x.dtype == dtype and torch.equal(x.cpu().long().sort().values, torch.arange(n))
    orders = torch.stack([torch.randperm(3, device=mps) for _ in range(600)]).cpu()
    counts = torch.bincount(orders[:, 0] * 3 + orders[:, 1], minlength=9)
    assert (counts[[1, 2, 3, 5, 6, 7]] > 60).all()


def test_multinomial_with_replacement(mps):
    weights = torch.tensor([0.0, 1.0, 0.0, 3.0, 6.0, 0.0], device=mps)
    x = torch.multinomial(weights, N, replacement=True, generator=generator(1)).cpu()
    frequency = torch.bincount(x, minlength=6).double() / N
    assert torch.allclose(frequency, torch.tensor([0, 0.1, 0, 0.3, 0.6, 0], dtype=torch.double), atol=0.005)
    rows = torch.rand(37, 1000, device=mps)
    rows[:, ::2] = 0
    y = torch.multinomial(rows, 50, replacement=True).cpu()
    assert y.shape == (37, 50) and (y % 2 == 1).all()
    assert torch.multinomial(rows[0], 1).shape == (1,)
    infinite_sums = torch.tensor([1e38, 2e38, 3e38], device=mps).expand(5000, 3)
    frequency = torch.bincount(torch.multinomial(infinite_sums, 1)[:, 0].cpu(), minlength=3).double() / 5000
    assert torch.allclose(frequency, torch.tensor([1, 2, 3]).double() / 6, atol=0.04)


def test_multinomial_without_replacement(mps):
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0]], device=mps).expand(20_000, 4)
    x = torch.multinomial(weights, 4).cpu()
    assert torch.equal(x.sort(1).values, torch.arange(4).expand(20_000, 4))
    first = torch.bincount(x[:, 0], minlength=4).double() / 20_000
    assert torch.allclose(first, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.double), atol=0.015)


@pytest.mark.parametrize(
    ("weights", "count", "message"),
    [
        ([1.0, -1.0], 1, "probability tensor contains either `inf`, `nan` or element < 0"),
        ([1.0, float("nan")], 1, "probability tensor contains either `inf`, `nan` or element < 0"),
        ([1.0, float("inf")], 1, "probability tensor contains either `inf`, `nan` or element < 0"),
        ([0.0, 0.0], 1, "invalid multinomial distribution"),
        ([1.0, 1.0], 3, "cannot sample n_sample > prob_dist.size\\(-1\\) samples without replacement"),
        ([1.0, 1.0], 0, "cannot sample n_sample <= 0 samples"),
        ([[], []], 1, "cannot sample n_sample > prob_dist.size\\(-1\\) samples without replacement"),
    ],
)
def test_multinomial_errors(mps, weights, count, message):
    with pytest.raises(RuntimeError, match=message):
        torch.multinomial(torch.tensor(weights, device=mps), count)


def test_multinomial_of_no_categories(mps):
    for shape in ((0,), (3, 0)):
        with pytest.raises(RuntimeError, match="invalid multinomial distribution"):
            torch.multinomial(torch.ones(shape, device=mps), 2, replacement=True)
    assert torch.multinomial(torch.ones(0, 0, device=mps), 2, replacement=True).shape == (0, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.uniform_(2, 1),
        lambda x: x.normal_(0, -1),
        lambda x: x.exponential_(0),
        lambda x: x.log_normal_(0, 0),
        lambda x: x.cauchy_(0, 0),
        lambda x: x.geometric_(1),
        lambda x: x.bernoulli_(1.5),
        lambda x: x.random_(3, 3),
        lambda x: x.byte().random_(0, 300),
        lambda x: x.expand(4, 3).uniform_(),
    ],
)
def test_errors_are_those_of_the_cpu(mps, call):
    with pytest.raises(RuntimeError) as on_cpu:
        call(torch.zeros(3))
    with pytest.raises(RuntimeError) as on_mps:
        call(torch.zeros(3, device=mps))
    assert str(on_cpu.value) == str(on_mps.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dropout(mps, dtype):
    x = torch.rand(501, 400, device=mps, dtype=dtype).add_(0.5).requires_grad_()
    y = torch.nn.functional.dropout(x, 0.25)
    kept = (y != 0).cpu()
    assert abs(kept.double().mean() - 0.75) < 0.01
    expected = torch.where(kept, x.detach().cpu().float() / 0.75, torch.zeros(()))
    assert torch.allclose(y.detach().cpu().float(), expected, rtol=1e-2 if dtype != torch.float32 else 1e-6)
    (grad,) = torch.autograd.grad(y.float().sum(), x)
    assert torch.allclose(grad.cpu().float(), kept / 0.75, rtol=1e-2 if dtype != torch.float32 else 1e-6)
    strided = torch.rand(64, 64, device=mps).t()[::2]
    z, mask = torch.native_dropout(strided, 0.5, True)
    assert torch.allclose(z.cpu(), strided.cpu() * mask.cpu() * 2)
    assert torch.nn.functional.dropout(x, 0.3, training=False) is x
    assert (torch.nn.functional.dropout(x, 1.0) == 0).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_dropout_of_any_address_is_the_same(mps, p):
    """Words of eight elements, or of four, or single ones."""
    for dtype in (torch.float16, torch.bfloat16):
        memory = torch.randn(4000, device=mps).to(dtype)
        memory[100:103] = torch.tensor([torch.inf, -torch.inf, torch.nan])
        results = []
        for x in (memory, memory[4:], memory[1:], memory[:3999]):
            torch.manual_seed(3)
            results.append([t.cpu() for t in torch.native_dropout(x.clone() if x is memory else x, p, True)])
        for x, (out, mask) in zip((memory, memory[4:], memory[1:], memory[:3999]), results, strict=True):
            n = x.numel()
            assert torch.equal(mask, results[0][1][:n])
            expected = (x.cpu().float() * mask * (0 if p == 1 else 1 / (1 - p))).to(dtype)
            torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
