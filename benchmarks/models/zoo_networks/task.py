"""What a builder of the zoo returns, and the layers that several networks are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Task:
    """A network, one batch of random data, and how they are trained.

    `loss(model, *batch)` returns a scalar. `infer(model, *batch)` is what inference runs, loss where it is None.
    `optimizer` is "adamw" or "sgd" (momentum 0.9), both fused; `clip` limits the norm of the gradient.
    """

    model: nn.Module
    batch: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor]
    optimizer: str = "adamw"
    clip: float | None = None
    infer: Callable[..., torch.Tensor] | None = None


def classify(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of model(inputs), logits (N, ..., classes), and labels (N, ...)."""
    return F.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())


def labelled_images(count: int, size: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (count, 3, size, size) and their classes."""
    return torch.randn(count, 3, size, size), torch.randint(0, classes, (count,))


class Linear(nn.Linear):
    """A linear layer with the weights of BERT and GPT-2: normal, 0.02; the bias is 0."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """A table with the weights of BERT and GPT-2: normal, 0.02."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class Attention(nn.Module):
    """Multi-head attention of (N, L, width) to itself, or to (N, S, width); an additive mask or a causal one."""

    def __init__(self, width: int, heads: int, cross: bool = False, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = Linear(width, width if cross else 3 * width, bias)
        self.key_value = Linear(width, 2 * width, bias) if cross else None
        self.out = Linear(width, width, bias)

    def forward(self, x, memory=None, mask=None, causal: bool = False):
        if self.key_value is None:
            q, k, v = self.query(x).chunk(3, -1)
        else:
            q, (k, v) = self.query(x), self.key_value(memory).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A layer of a transformer: attention, with `cross` a second one to `memory`, and an MLP, norms before or after."""

    def __init__(
        self, width: int, heads: int, cross: bool = False, dropout: float = 0.0, pre: bool = True, hidden: int = 0
    ) -> None:
        super().__init__()
        self.pre = pre
        self.attention = Attention(width, heads, dropout=dropout)
        self.cross = Attention(width, heads, cross=True, dropout=dropout) if cross else None
        hidden = hidden or 4 * width
        self.mlp = nn.Sequential(Linear(width, hidden), nn.GELU(), Linear(hidden, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))
        self.drop = nn.Dropout(dropout)

    def residual(self, number: int, x, branch):
        norm = self.norms[number]
        return x + self.drop(branch(norm(x))) if self.pre else norm(x + self.drop(branch(x)))

    def forward(self, x, memory=None, mask=None, causal: bool = False):
        x = self.residual(0, x, lambda y: self.attention(y, mask=mask, causal=causal))
        if self.cross is not None:
            x = self.residual(2, x, lambda y: self.cross(y, memory))
        return self.residual(1, x, self.mlp)


class ConvNorm(nn.Sequential):
    """Convolution without bias, batch norm, activation (None: none); odd kernels keep the size at stride 1."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act=nn.ReLU):
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), *([act(inplace=True)] if act else []))


def timestep_embedding(times: torch.Tensor, width: int) -> torch.Tensor:
    """Sines and cosines of `times` (N,), shape (N, width): Vaswani et al., 2017."""
    steps = torch.arange(width // 2, device=times.device)
    angles = times[:, None] * torch.exp(-9.21 * steps / (width // 2))
    return torch.cat([angles.sin(), angles.cos()], -1)
