"""Networks that make images: diffusion, variational and adversarial ones; and one that renders."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .task import Task, timestep_embedding


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)]
        )
        self.time = nn.Linear(times, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        y = self.convs[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[..., None, None]
        return self.convs[1](F.silu(self.norms[1](y))) + self.shortcut(x)


class SpatialAttention(nn.Module):
    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.heads, self.norm = width // size, nn.GroupNorm(8, width)
        self.enter, self.leave = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        q, k, v = self.enter(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1)).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).flatten(1, 2)
        return x + self.leave(y.unflatten(-1, x.shape[2:]))


class DiffusionUNet(nn.Module):
    """Rombach et al., 2022, without text: two blocks a level, attention from `attention_from` on."""

    def __init__(self, width: int, factors: tuple[int, ...], attention_from: int, head: int, channels: int) -> None:
        super().__init__()
        times, self.width = 4 * width, width
        self.time = nn.Sequential(nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times))
        self.enter = nn.Conv2d(channels, width, 3, padding=1)

        def stage(inputs: int, outputs: int, level: int) -> nn.ModuleList:
            attention = SpatialAttention(outputs, head) if level >= attention_from else nn.Identity()
            return nn.ModuleList([ResidualBlock(inputs, outputs, times), attention])

        self.down, self.smaller, kept, now = nn.ModuleList(), nn.ModuleList(), [width], width
        for level, factor in enumerate(factors):
            if level:
                self.smaller.append(nn.Conv2d(now, now, 3, 2, 1))
                kept.append(now)
            for _ in range(2):
                self.down.append(stage(now, factor * width, level))
                now = factor * width
                kept.append(now)
        self.middle = nn.ModuleList([*stage(now, now, len(factors)), ResidualBlock(now, now, times)])
        self.up, self.larger = nn.ModuleList(), nn.ModuleList()
        for level, factor in reversed(list(enumerate(factors))):
            for _ in range(3):
                self.up.append(stage(now + kept.pop(), factor * width, level))
                now = factor * width
            if level:
                self.larger.append(nn.Conv2d(now, now, 3, padding=1))
        self.head = nn.Sequential(nn.GroupNorm(8, now), nn.SiLU(), nn.Conv2d(now, channels, 3, padding=1))

    def forward(self, x, times):
        time = self.time(timestep_embedding(times, self.width))
        x = self.enter(x)
        kept = [x]
        for i, (block, attention) in enumerate(self.down):
            if i and i % 2 == 0:
                x = self.smaller[i // 2 - 1](x)
                kept.append(x)
            x = attention(block(x, time))
            kept.append(x)
        first, attention, second = self.middle
        x = second(attention(first(x, time)), time)
        for i, (block, attention) in enumerate(self.up):
            x = attention(block(torch.cat([x, kept.pop()], 1), time))
            if i % 3 == 2 and i // 3 < len(self.larger):
                x = self.larger[i // 3](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.head(x)


def diffusion(tiny: bool) -> Task:
    """270 million parameters, 8 latents of 4 x 64 x 64; the loss of DDPM."""
    count, size = (1, 8) if tiny else (8, 64)
    model = DiffusionUNet(*((8, (1, 2), 1, 8) if tiny else (224, (1, 2, 3, 4), 1, 32)), 4)
    batch = torch.randn(count, 4, size, size), torch.randn(count, 4, size, size), torch.rand(count)

    def loss(model, latents, noise, share):
        kept = torch.cos(1.57 * share)[:, None, None, None]
        mixed = kept * latents + (1 - kept * kept).sqrt() * noise
        return F.mse_loss(model(mixed, 1000 * share).float(), noise)

    return Task(model, batch, loss)


class Vae(nn.Module):
    """Convolutions of stride 2 down to 4 x 4 and back."""

    def __init__(self, widths: tuple[int, ...], latent: int) -> None:
        super().__init__()
        down, up = [], []
        for a, b in zip((3, *widths), widths):
            down += [nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
        for a, b in zip(widths[::-1], widths[-2::-1]):
            up += [nn.ConvTranspose2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
        features = 16 * widths[-1]
        self.encoder = nn.Sequential(*down, nn.Flatten(), nn.Linear(features, 2 * latent))
        self.decoder = nn.Sequential(
            *(nn.Linear(latent, features), nn.Unflatten(1, (widths[-1], 4, 4)), *up),
            nn.ConvTranspose2d(widths[0], 3, 4, 2, 1),
        )

    def forward(self, images, noise):
        mean, log_variance = self.encoder(images).float().chunk(2, 1)
        return self.decoder(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


def vae(tiny: bool) -> Task:
    """128 images of 64 x 64, 256 latent values."""
    count, size, latent = (2, 16, 4) if tiny else (128, 64, 256)
    model = Vae((8, 16) if tiny else (64, 128, 256, 512), latent)

    def loss(model, images, noise):
        made, mean, log_variance = model(images, noise)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return F.mse_loss(made.float(), images, reduction="sum") / count + divergence

    return Task(model, (torch.rand(count, 3, size, size), torch.randn(count, latent)), loss)


class Wgan(nn.Module):
    """Generator and critic of DCGAN without norms in the critic: Gulrajani et al., 2017."""

    def __init__(self, widths: tuple[int, ...], latent: int) -> None:
        super().__init__()
        made, judged = [nn.ConvTranspose2d(latent, widths[-1], 4), nn.ReLU()], []
        for a, b in zip(widths[::-1], widths[-2::-1]):
            made += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        for a, b in zip((3, *widths), widths):
            judged += [nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2)]
        self.generator = nn.Sequential(*made, nn.ConvTranspose2d(widths[0], 3, 4, 2, 1), nn.Tanh())
        self.critic = nn.Sequential(*judged, nn.Conv2d(widths[-1], 1, 4), nn.Flatten())

    def forward(self, noise):
        return self.generator(noise)


def wgan_loss(model, images, noise, share):
    """The critic's step with the gradient penalty (a gradient of a gradient); the generator is not trained."""
    with torch.no_grad():
        made = model.generator(noise).float()
    mixed = (share * images + (1 - share) * made).requires_grad_()
    [slope] = torch.autograd.grad(model.critic(mixed).sum(), mixed, create_graph=True)
    penalty = (slope.flatten(1).float().norm(dim=1) - 1).square().mean()
    return model.critic(made).mean() - model.critic(images).mean() + 10 * penalty


def wgan_gp(tiny: bool) -> Task:
    """The critic's step on 64 images of 64 x 64."""
    count, size, latent = (2, 16, 4) if tiny else (64, 64, 128)
    model = Wgan((8, 16) if tiny else (64, 128, 256, 512), latent)
    batch = torch.rand(count, 3, size, size), torch.randn(count, latent, 1, 1), torch.rand(count, 1, 1, 1)
    return Task(model, batch, wgan_loss, infer=lambda m, images, noise, share: m(noise).mean())


class Nerf(nn.Module):
    """Mildenhall et al., 2020: colour and density of points from sines of 10 octaves."""

    def __init__(self, width: int, octaves: int) -> None:
        super().__init__()
        self.octaves, inputs = octaves, 3 + 6 * octaves
        layers = [nn.Linear(inputs, width), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Linear(width, width), nn.ReLU()]
        again = [nn.Linear(width + inputs, width), nn.ReLU()]
        for _ in range(3):
            again += [nn.Linear(width, width), nn.ReLU()]
        self.first, self.second = nn.Sequential(*layers), nn.Sequential(*again, nn.Linear(width, 4))

    def forward(self, points):
        scaled = points[..., None] * (2.0 ** torch.arange(self.octaves, device=points.device))
        x = torch.cat([points, scaled.sin().flatten(-2), scaled.cos().flatten(-2)], -1)
        return self.second(torch.cat([self.first(x), x], -1))


def nerf(tiny: bool) -> Task:
    """1,024 rays of 64 points, composed to colours."""
    rays, points = (4, 8) if tiny else (1024, 64)
    model = Nerf(*((16, 2) if tiny else (256, 10)))
    depths = torch.linspace(2, 6, points)[:, None]
    batch = torch.randn(rays, 1, 3) + depths * torch.randn(rays, 1, 3), torch.rand(rays, 3)

    def loss(model, places, colours):
        found = model(places).float()
        opaque = 1 - torch.exp(-F.relu(found[..., 3]) * (4 / points))
        through = torch.cumprod(1 - opaque + 1e-10, -1)
        weights = opaque * F.pad(through, (1, -1), value=1.0)
        return F.mse_loss((weights[..., None] * found[..., :3].sigmoid()).sum(1), colours)

    return Task(model, batch, loss)
