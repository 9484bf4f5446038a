"""Networks of games and of physics."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .task import ConvNorm, Task


class ResidualTower(nn.Module):
    """Silver et al., 2017 (AlphaZero): residual blocks, a policy and a value."""

    def __init__(self, board: int, width: int, depth: int) -> None:
        super().__init__()
        self.enter = ConvNorm(17, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(ConvNorm(width, width), ConvNorm(width, width, act=None)) for _ in range(depth)
        )
        places = board * board
        self.policy = nn.Sequential(ConvNorm(width, 2, 1), nn.Flatten(), nn.Linear(2 * places, places + 1))
        value = nn.Linear(places, width), nn.ReLU(), nn.Linear(width, 1), nn.Tanh()
        self.value = nn.Sequential(ConvNorm(width, 1, 1), nn.Flatten(), *value)

    def forward(self, boards):
        x = self.enter(boards)
        for block in self.blocks:
            x = F.relu(x + block(x))
        return self.policy(x), self.value(x)


def alphazero(tiny: bool) -> Task:
    """20 blocks of 256 on 256 boards of 19 x 19, SGD."""
    count, board, width, depth = (2, 5, 8, 1) if tiny else (256, 19, 256, 20)
    shares = torch.rand(count, board * board + 1).softmax(1)
    batch = torch.randn(count, 17, board, board), shares, torch.randn(count, 1).clamp(-1, 1)

    def loss(model, boards, shares, winners):
        policy, value = model(boards)
        return F.cross_entropy(policy.float(), shares) + F.mse_loss(value.float(), winners)

    return Task(ResidualTower(board, width, depth), batch, loss, "sgd")


class Dqn(nn.Module):
    """Mnih et al., 2015: the network that plays and its target."""

    def __init__(self, widths: tuple[int, int, int], hidden: int, actions: int) -> None:
        super().__init__()
        a, b, c = widths

        def network() -> nn.Sequential:
            return nn.Sequential(
                *(nn.Conv2d(4, a, 8, 4), nn.ReLU(), nn.Conv2d(a, b, 4, 2), nn.ReLU(), nn.Conv2d(b, c, 3), nn.ReLU()),
                *(nn.Flatten(), nn.Linear(49 * c, hidden), nn.ReLU(), nn.Linear(hidden, actions)),
            )

        self.online, self.target = network(), network().requires_grad_(False)

    def forward(self, states):
        return self.online(states)


def dqn_loss(model, states, actions, rewards, after, ended):
    with torch.no_grad():
        wanted = rewards + 0.99 * (1 - ended) * model.target(after).float().amax(1)
    return F.smooth_l1_loss(model(states).float().gather(1, actions)[:, 0], wanted)


def dqn(tiny: bool) -> Task:
    """32 transitions between stacks of 4 screens of 84 x 84."""
    count, actions = (2, 4) if tiny else (32, 18)
    model = Dqn(*(((4, 8, 8), 16) if tiny else ((32, 64, 64), 512)), actions)
    states, after = (torch.rand(count, 4, 84, 84) for _ in range(2))
    chosen, rewards, ended = (
        torch.randint(0, actions, (count, 1)),
        torch.randn(count),
        (torch.rand(count) < 0.1).float(),
    )
    batch = states, chosen, rewards, after, ended
    return Task(model, batch, dqn_loss, infer=lambda m, states, *_: m(states).sum())


class SpectralConv(nn.Module):
    """Products of the lowest frequencies with complex weights: Li et al., 2020. FFT in float32."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weights = nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width**2)

    def forward(self, x):
        found, m = torch.fft.rfft2(x.float()), self.modes
        weights = torch.view_as_complex(self.weights)
        low = torch.einsum("bixy,ioxy->boxy", found[:, :, :m, :m], weights[0])
        high = torch.einsum("bixy,ioxy->boxy", found[:, :, -m:, :m], weights[1])
        between = low.new_zeros(*low.shape[:2], found.shape[2] - 2 * m, m)
        rows = torch.view_as_real(torch.cat([low, between, high], 2))
        rows = F.pad(rows, (0, 0, 0, found.shape[3] - m))
        return torch.fft.irfft2(torch.view_as_complex(rows), s=x.shape[-2:])


class Fno(nn.Module):
    """A Fourier neural operator of 4 layers on a coefficient and coordinates, (N, 3, H, W)."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 1)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(4))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))
        self.leave = nn.Sequential(nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, 1, 1))

    def forward(self, x):
        x = self.enter(x)
        for i, (spectral, local) in enumerate(zip(self.spectral, self.local)):
            x = spectral(x) + local(x)
            x = F.gelu(x) if i < 3 else x
        return self.leave(x)


def fno(tiny: bool) -> Task:
    """Width 32, 12 x 12 modes, 20 fields of 128 x 128; the relative error in L2."""
    count, size = (2, 16) if tiny else (20, 128)
    model = Fno(*((4, 3) if tiny else (32, 12)))

    def loss(model, fields, wanted):
        apart = (model(fields).float() - wanted).flatten(1).norm(dim=1)
        return (apart / wanted.flatten(1).norm(dim=1)).mean()

    return Task(model, (torch.randn(count, 3, size, size), torch.randn(count, 1, size, size)), loss)


class TanhMlp(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.Tanh()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, points):
        return self.layers(points)


def burgers_loss(model, points, edges, wanted):
    """The residual of Burgers' equation, u_t + u u_x = 0.01 / pi u_xx, and the values at the edges."""
    points = points.detach().requires_grad_()
    u = model(points)
    [first] = torch.autograd.grad(u.sum(), points, create_graph=True)
    [second] = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
    residual = first[:, 1] + u[:, 0] * first[:, 0] - 0.0031831 * second[:, 0]
    return residual.float().square().mean() + F.mse_loss(model(edges).float(), wanted)


def pinn(tiny: bool) -> Task:
    """A physics-informed network (Raissi et al., 2019): 8 layers of 128 with tanh, 20,000 points, second gradients."""
    count, width, depth = (16, 8, 2) if tiny else (20000, 128, 7)
    batch = 2 * torch.rand(count, 2) - 1, 2 * torch.rand(count // 8, 2) - 1, torch.randn(count // 8, 1)
    return Task(TanhMlp(width, depth), batch, burgers_loss, infer=lambda m, points, *_: m(points).sum())
