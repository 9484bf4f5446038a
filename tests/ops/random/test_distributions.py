"""Poisson, binomial, gamma and Dirichlet numbers: their distributions, seeds and errors."""

import pytest
import torch

COUNT = 40_000


def close(sample, mean, variance, kurtosis=11):
    """Mean and variance of a sample within five standard errors."""
    sample = sample.cpu().double()
    assert abs(sample.mean().item() - mean) < 5 * (variance / COUNT) ** 0.5 + 1e-6
    assert abs(sample.var().item() - variance) < 5 * variance * ((kurtosis - 1) / COUNT) ** 0.5 + 1e-6


@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 9.9, 10.0, 35.0, 2000.0, 1e6, 1.6e7])
def test_poisson(rate, mps, no_fallback):
    sample = torch.poisson(torch.full((COUNT,), rate, device=mps))
    assert torch.equal(sample, sample.round()) and sample.min() >= 0
    close(sample, rate, rate, kurtosis=3 + 1 / max(rate, 0.1))


@pytest.mark.parametrize(
    ("count", "p"),
    [(0, 0.5), (1, 0.3), (20, 0.1), (20, 0.9), (100, 0.4), (1000, 0.7), (10**7, 0.5), (7, 1.0), (7, 0.0)],
)
def test_binomial(count, p, mps, no_fallback):
    sample = torch.binomial(torch.full((COUNT,), float(count), device=mps), torch.tensor(p, device=mps))
    assert torch.equal(sample, sample.round()) and sample.min() >= 0 and sample.max() <= count
    close(sample, count * p, count * p * (1 - p))


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 3.7, 60.0, 1e6])
def test_gamma(alpha, mps, no_fallback):
    sample = torch._standard_gamma(torch.full((COUNT,), alpha, device=mps))
    assert sample.min() > 0
    close(sample, alpha, alpha, kurtosis=3 + 6 / alpha)
    # The logarithm's mean is sensitive to the part near 0.
    mean = torch.digamma(torch.tensor(alpha)).item()
    assert abs(sample.cpu().clamp_min(1e-37).log().mean().item() - mean) < 0.05 * max(1.0, abs(mean))


def test_dirichlet(mps, no_fallback):
    alpha = torch.tensor([0.5, 2.0, 7.5], device=mps)
    sample = torch._sample_dirichlet(alpha.expand(COUNT, 3))
    torch.testing.assert_close(sample.sum(-1).cpu(), torch.ones(COUNT))
    for k, a in enumerate((0.5, 2.0, 7.5)):
        close(sample[:, k], a / 10, a / 10 * (1 - a / 10) / 11)


def test_dirichlet_of_small_parameters(mps, no_fallback):
    """Their gamma numbers are below the smallest float, all of a row in one row of six."""
    sample = torch._sample_dirichlet(torch.tensor([0.01, 0.01], device=mps).expand(COUNT, 2))
    close(sample[:, 0], 0.5, 0.25 / 1.02, kurtosis=1.1)
    assert (sample - 0.5).abs().lt(1e-3).float().mean() < 1e-3
    for dtype in (torch.float16, torch.bfloat16):
        sample = torch._sample_dirichlet(torch.full((9, 3), 0.01, device=mps, dtype=dtype))
        assert sample.min() > 0 and sample.max() < 1


def test_same_seed_same_numbers(mps):
    for draw in (torch.poisson, torch._standard_gamma):
        rates = torch.rand(999, device=mps) * 30
        first = draw(rates, generator=torch.Generator(mps).manual_seed(5))
        second = draw(rates, generator=torch.Generator(mps).manual_seed(5))
        third = draw(rates, generator=torch.Generator(mps).manual_seed(6))
        assert torch.equal(first, second) and not torch.equal(first, third)
        # Strides and the position in the tensor do not matter.
        transposed = draw(rates.view(27, 37).t(), generator=torch.Generator(mps).manual_seed(5))
        assert transposed.shape == (37, 27)


def test_distribution_classes(mps):
    """torch.distributions on the device, with the CPU's fallback switched off."""
    d = torch.distributions
    for distribution in (
        d.Poisson(torch.full((COUNT,), 3.0, device=mps)),
        d.Binomial(50, torch.full((COUNT,), 0.3, device=mps)),
        d.Gamma(torch.full((COUNT,), 2.0, device=mps), torch.tensor(0.5, device=mps)),
        d.Beta(torch.full((COUNT,), 2.0, device=mps), torch.tensor(3.0, device=mps)),
    ):
        close(distribution.sample(), distribution.mean.mean().item(), distribution.variance.mean().item())


def test_gradients_of_gamma(mps, no_fallback):
    """Against the CPU, whose approximations are good to some 1e-3 where they meet."""
    alpha = torch.logspace(-1, 3.5, 400, dtype=torch.float64)
    for _ in range(5):
        x = torch._standard_gamma(alpha)
        expected = torch._standard_gamma_grad(alpha, x)
        actual = torch._standard_gamma_grad(alpha.float().to(mps), x.float().to(mps))
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=5e-3, atol=2e-4)


def test_gradients_of_dirichlet(mps, no_fallback):
    alpha = torch.logspace(-0.5, 2, 300, dtype=torch.float64)
    total = alpha + torch.logspace(-0.5, 2, 300, dtype=torch.float64)[torch.randperm(300)]
    x = torch.distributions.Beta(alpha, total - alpha).sample().clamp(1e-3, 1 - 1e-3)
    expected = torch._dirichlet_grad(x, alpha, total)
    actual = torch._dirichlet_grad(*(t.float().to(mps) for t in (x, alpha, total)))
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=1e-2, atol=1e-3)
    leaf = torch.tensor([0.5, 2.0, 3.0], device=mps, requires_grad=True)
    torch.distributions.Dirichlet(leaf).rsample().square().sum().backward()
    assert leaf.grad.isfinite().all()


def test_errors(mps):
    x = torch.tensor([1.0, -1.0], device=mps)
    for wrong in (x, torch.tensor([1.0, float("nan")], device=mps)):
        with pytest.raises(RuntimeError, match="invalid Poisson rate, expected rate to be non-negative"):
            torch.poisson(wrong)
    with pytest.raises(ValueError, match="binomial only supports floating-point dtypes for count, got: Long"):
        torch.binomial(x.long(), x)
    with pytest.raises(RuntimeError, match="Found dtype Float but expected Half"):
        torch.binomial(x.half(), x)
    with pytest.raises(NotImplementedError, match="\"gamma_cpu\" not implemented for 'Long'"):
        torch._standard_gamma(x.long())


def test_dtypes_that_the_cpu_refuses(mps, raises_as_on_the_cpu):
    for call in (
        lambda x: x.int().normal_(),
        lambda x: x.int().log_normal_(),
        lambda x: x.bool().geometric_(0.5),
        lambda x: x.int().random_(-(2**63), None),
        lambda x: x.half().random_(-(2**63), None),
        lambda x: x.cfloat().random_(),
    ):
        raises_as_on_the_cpu(lambda ones, call=call: call(ones(3)))


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.rand(3, generator=g),
        lambda g: torch.randperm(3, generator=g),
        lambda g: torch.empty(3, 4).t().random_(generator=g),
        lambda g: torch.bernoulli(torch.ones(3), generator=g),
        lambda g: torch.normal(torch.ones(3), 1.0, generator=g),
        lambda g: torch.poisson(torch.ones(3), generator=g),
        lambda g: torch.multinomial(torch.ones(3), 2, generator=g),
    ],
)
def test_numbers_of_the_device_for_another_are_refused(mps, draw):
    """The dispatcher brings such calls to the device, whose kernels would write to CPU addresses."""
    with pytest.raises(RuntimeError, match=r"Expected a 'cpu' device type for generator but found 'mps'"):
        draw(torch.Generator(device="mps").manual_seed(1))
