"""GPyTorch: hyperparameters of exact and variational Gaussian processes are trained, and both predict."""

import pytest
import torch

from . import agree, library

gpytorch = library("gpytorch")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")


class Exact(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Variational(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(points), mean_init_std=0.0)
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, distribution))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    forward = Exact.forward


@pytest.mark.parametrize("kind", ["exact", "variational"])
def test_trains_and_predicts(kind):
    x = torch.linspace(0, 1, 30)
    y, where = torch.sin(6 * x), torch.linspace(0.1, 1.1, 7)

    def run(device):
        inputs, targets = x.to(device), y.to(device)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
        exact = kind == "exact"
        model = (Exact(inputs, targets, likelihood) if exact else Variational(inputs[::4])).to(device)
        objective = (
            gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
            if exact
            else gpytorch.mlls.VariationalELBO(likelihood, model, num_data=30)
        )
        optimizer = torch.optim.Adam([*model.parameters(), *(() if exact else likelihood.parameters())], lr=0.1)
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = -objective(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]
        with torch.no_grad():
            predicted = likelihood(model.eval()(where.to(device)))
        return losses, predicted.mean, predicted.variance

    agree(run, tolerance=5e-3)


def test_operators_without_a_device():
    """Joined ones name none; the CPU's are decomposed in float64 as without us."""
    from linear_operator.operators import CatLinearOperator, DiagLinearOperator, IdentityLinearOperator

    values = torch.rand(2, 4) + 1

    def run(device):
        joined = CatLinearOperator(*map(DiagLinearOperator, values.to(device).split(1)), dim=0)
        assert joined.device is None
        return joined.eigh()[0]

    agree(run)
    with torch.device("mps"):
        assert IdentityLinearOperator(3).eigh()[0].device.type == "mps"
    assert IdentityLinearOperator(3).eigh()[0].device.type == "cpu"
