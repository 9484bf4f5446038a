"""Networks of sound: recognition, and what sounds are made of."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .language import encoder_decoder_loss, next_tokens
from .task import Attention, Block, Embedding, Linear, Task, timestep_embedding


class ConvModule(nn.Module):
    """Gated pointwise, depthwise of 31 frames, batch norm, SiLU, pointwise: Gulati et al., 2020."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.enter = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.depthwise = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.batch_norm, self.leave = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x):
        y = F.glu(self.enter(self.norm(x).transpose(1, 2)), 1)
        return self.leave(F.silu(self.batch_norm(self.depthwise(y)))).transpose(1, 2)


class ConformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.halves = nn.ModuleList(
            nn.Sequential(
                *(nn.LayerNorm(width), Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1)),
                *(Linear(4 * width, width), nn.Dropout(0.1)),
            )
            for _ in range(2)
        )
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout=0.1)
        self.conv, self.last = ConvModule(width), nn.LayerNorm(width)

    def forward(self, x):
        x = x + 0.5 * self.halves[0](x)
        x = x + self.attention(self.norm(x))
        x = x + self.conv(x)
        return self.last(x + 0.5 * self.halves[1](x))


class Conformer(nn.Module):
    """Logarithms (N, T / 4, classes) of probabilities from spectrograms (N, T, 80)."""

    def __init__(self, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.subsample = nn.Sequential(
            *(nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        )
        self.enter = nn.Linear(20 * width, width)
        self.blocks = nn.Sequential(*(ConformerBlock(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, classes)

    def forward(self, sound):
        x = self.subsample(sound[:, None]).transpose(1, 2).flatten(2)
        return self.head(self.blocks(self.enter(x))).log_softmax(-1, dtype=torch.float32)


def conformer(tiny: bool) -> Task:
    """Conformer-M, 16 layers of 256, with CTC on 16 sounds of 10 s; 60 letters each."""
    count, frames, letters, classes = (2, 32, 3, 8) if tiny else (16, 1000, 60, 128)
    model = Conformer(*((8, 2, 1) if tiny else (256, 4, 16)), classes)
    batch = torch.randn(count, frames, 80), torch.randint(1, classes, (count, letters))

    def loss(model, sound, text):
        logs = model(sound).transpose(0, 1)
        return F.ctc_loss(logs, text, (logs.shape[0],) * count, (letters,) * count, zero_infinity=True)

    return Task(model, batch, loss)


class Whisper(nn.Module):
    """Radford et al., 2022: two convolutions, an encoder, a decoder with tied logits."""

    def __init__(self, words: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(80, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)])
        self.encoder = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.decoder = nn.ModuleList(Block(width, heads, cross=True) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.words, self.places = Embedding(words, width), Embedding(length, width)

    def forward(self, sound, tokens):
        for conv in self.convs:
            sound = F.gelu(conv(sound))
        memory = sound.transpose(1, 2)
        memory = memory + timestep_embedding(torch.arange(memory.shape[1], device=sound.device), memory.shape[2])
        for block in self.encoder:
            memory = block(memory)
        memory = self.norms[0](memory)
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.decoder:
            x = block(x, memory, causal=True)
        return F.linear(self.norms[1](x), self.words.weight)


def whisper_base(tiny: bool) -> Task:
    """Whisper-base on 16 sounds of 30 s and 128 tokens each."""
    count, frames, length, words = (2, 16, 6, 50) if tiny else (16, 3000, 128, 51865)
    model = Whisper(words, length, *((16, 2, 1) if tiny else (512, 8, 6)))
    batch = torch.randn(count, 80, frames), torch.randint(0, words, (count, length + 1))
    return Task(model, batch, encoder_decoder_loss)


class WaveNet(nn.Module):
    """Gated dilated convolutions with skips: van den Oord et al., 2016. Logits (N, T, 256)."""

    def __init__(self, width: int, layers: int, skips: int) -> None:
        super().__init__()
        self.enter, self.dilations = nn.Embedding(256, width), [1 << i % 10 for i in range(layers)]
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=d) for d in self.dilations)
        self.outs = nn.ModuleList(nn.Conv1d(width, width + skips, 1) for _ in self.dilations)
        self.split = (width, skips)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(skips, skips, 1), nn.ReLU(), nn.Conv1d(skips, 256, 1))

    def forward(self, samples):
        x, total = self.enter(samples).transpose(1, 2), 0
        for gate, out, dilation in zip(self.gates, self.outs, self.dilations):
            a, b = gate(F.pad(x, (dilation, 0))).chunk(2, 1)
            residual, skip = out(a.tanh() * b.sigmoid()).split(self.split, 1)
            x, total = x + residual, total + skip
        return self.head(total).transpose(1, 2)


def wavenet(tiny: bool) -> Task:
    """20 layers of 64 channels on 8 pieces of 8,000 samples."""
    count, length = (2, 16) if tiny else (8, 8000)
    model = WaveNet(*((8, 2, 8) if tiny else (64, 20, 256)))
    return Task(model, (torch.randint(0, 256, (count, length + 1)),), next_tokens)
