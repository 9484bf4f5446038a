"""Networks whose steps are so short that the host decides: those of the Meganeura paper, and a token of GPT-2.

The paper is arXiv 2608.01563. Sizes, losses and what is trained are those of its authors' comparison with PyTorch,
github.com/kvark/inferena, revision b1534db (`frameworks/pytorch/bench.py`, functions load_model and prepare_inputs, and
`models/*.md`); weights and data are random.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from zoo_networks import Network
from zoo_networks.language import Gpt, Llama, LlamaBlock, next_tokens
from zoo_networks.task import Block, Linear, Task, classify, labelled_images
from zoo_networks.vision import resnet_stages


class RepeatedBlock(LlamaBlock):
    """With keys and values for each head: float32 has no fused attention of groups on CUDA."""

    def mix(self, q, k, v):
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def smollm2(tiny: bool) -> Task:
    """SmolLM2-135M (30 layers of 576, 9 heads, 3 of keys) on one sequence of 128 tokens, cross entropy."""
    length, words = (8, 50) if tiny else (128, 49152)
    model = Llama(words, *((16, 4, 2, 32, 1) if tiny else (576, 9, 3, 1536, 30)), length, RepeatedBlock)
    return Task(model, (torch.randint(0, words, (1, length + 1)),), next_tokens)


class ExpertAttention(nn.Module):
    """Grouped attention without a mask, of products and a softmax as its source has it, to itself or to a context."""

    def __init__(self, width: int, heads: int, groups: int, size: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        self.query = Linear(width, heads * size, bias=False)
        self.key, self.value = (Linear(width, groups * size, bias=False) for _ in range(2))
        self.out = Linear(heads * size, width, bias=False)

    def forward(self, x, context):
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.groups, -1)).transpose(1, 2) for t in (self.key(context), self.value(context)))
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        weights = (q @ k.transpose(-2, -1) * self.size**-0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class ExpertLayer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, size: int, hidden: int) -> None:
        super().__init__()
        self.attention = ExpertAttention(width, heads, groups, size)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.gate, self.up = (Linear(width, hidden, bias=False) for _ in range(2))
        self.down = Linear(hidden, width, bias=False)

    def forward(self, x, context):
        y = self.norms[0](x)
        x = x + self.attention(y, y if context is None else context)
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class ActionExpert(nn.Module):
    """SmolVLA's: layers attend to the actions and, every second one, to what the language model has seen."""

    def __init__(self, width: int, heads: int, groups: int, size: int, hidden: int, depth: int, actions: int) -> None:
        super().__init__()
        self.actions, self.time = Linear(actions, width, bias=False), Linear(2 * width, width, bias=False)
        self.seen = Linear(groups * size, width, bias=False)
        self.layers = nn.ModuleList(ExpertLayer(width, heads, groups, size, hidden) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), Linear(width, actions, bias=False)

    def forward(self, actions, time, seen):
        x, seen = self.actions(actions) + self.time(time), self.seen(seen)
        for i, layer in enumerate(self.layers):
            x = layer(x, seen if i % 2 else None)
        return self.head(self.norm(x))


def smolvla(tiny: bool) -> Task:
    """16 layers of 720, 15 heads of 64, 5 of keys; one chunk of 50 actions of 32, a context of 16; squared error."""
    width, heads, groups, size, hidden, depth = (16, 4, 2, 4, 32, 2) if tiny else (720, 15, 5, 64, 2048, 16)
    chunk, actions, seen = (5, 4, 3) if tiny else (50, 32, 16)
    model = ActionExpert(width, heads, groups, size, hidden, depth, actions)
    batch = torch.randn(1, chunk, actions), torch.randn(1, 1, 2 * width), torch.randn(1, seen, groups * size)
    return Task(model, (*batch, torch.zeros(1, chunk, actions)), squared_error)


def squared_error(model, *batch):
    *inputs, wanted = batch
    return F.mse_loss(model(*inputs), wanted)


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, groups: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(groups, n) for n in (inputs, outputs))
        self.convs = nn.ModuleList(nn.Conv2d(n, outputs, 3, padding=1, bias=False) for n in (inputs, outputs))
        self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x):
        y = x
        for norm, conv in zip(self.norms, self.convs):
            y = conv(F.silu(norm(y)))
        return y + self.shortcut(x)


class ConvUNet(nn.Module):
    """The paper's UNet of Stable Diffusion: its convolutions alone, without attention and time."""

    def __init__(self, channels: int, widths: tuple[int, ...], groups: int) -> None:
        super().__init__()
        first, last = widths[0], widths[-1]
        self.enter = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.down = nn.ModuleList(ResidualBlock(a, b, groups) for a, b in zip((first, *widths), widths))
        self.smaller = nn.ModuleList(nn.Conv2d(n, n, 3, 2, 1, bias=False) for n in widths[:-1])
        self.middle = ResidualBlock(last, last, groups)
        below = (last, *widths[:0:-1])
        self.up = nn.ModuleList(ResidualBlock(a + b, b, groups) for a, b in zip(below, widths[::-1]))
        leave = nn.Conv2d(first, channels, 3, padding=1, bias=False)
        self.head = nn.Sequential(nn.GroupNorm(groups, first), nn.SiLU(), leave)

    def forward(self, x):
        x, kept = self.enter(x), []
        for i, block in enumerate(self.down):
            x = block(self.smaller[i - 1](x) if i else x)
            kept.append(x)
        x = self.middle(x)
        for i, block in enumerate(self.up):
            x = F.interpolate(x, scale_factor=2.0, mode="nearest") if i else x
            x = block(torch.cat([x, kept.pop()], 1))
        return self.head(x)


def sd_unet(tiny: bool) -> Task:
    """64, 128 and 256 channels, 16 groups, two latents of 4 x 32 x 32; squared error."""
    size, model = (8, ConvUNet(4, (8, 16), 4)) if tiny else (32, ConvUNet(4, (64, 128, 256), 16))
    return Task(model, (torch.randn(2, 4, size, size), torch.randn(2, 4, size, size)), squared_error)


def resnet50(tiny: bool) -> Task:
    """4 images of 224 x 224, cross entropy; batch norms keep their running statistics, as in eval mode."""
    width, counts, size, classes = (8, (1, 1), 32, 10) if tiny else (64, (3, 4, 6, 3), 224, 1000)
    stem, stages, channels = resnet_stages(width, counts)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes))
    model = nn.Sequential(stem, *stages, head).eval()
    return Task(model, labelled_images(4, size, classes), classify)


class WhisperEncoder(nn.Module):
    """Whisper's convolutions and encoder, with places that are not trained. Queries, keys, values are one product."""

    def __init__(self, width: int, heads: int, depth: int, frames: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(80, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, 1)])
        self.register_buffer("places", torch.randn(frames // 2, width))
        self.blocks, self.norm = nn.ModuleList(Block(width, heads) for _ in range(depth)), nn.LayerNorm(width)

    def forward(self, sound):
        for conv in self.convs:
            sound = F.gelu(conv(sound))
        x = sound.transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def whisper_tiny(tiny: bool) -> Task:
    """The encoder of Whisper-tiny (4 layers of 384, 6 heads) on one sound of 30 s; the mean square of its result."""
    frames, model = (16, WhisperEncoder(16, 2, 1, 16)) if tiny else (3000, WhisperEncoder(384, 6, 4, 3000))
    return Task(model, (torch.randn(1, 80, frames),), lambda m, sound: m(sound).square().mean())


class GptDecoder(nn.Module):
    """A token of GPT-2 behind those in a cache of fixed length, which is written in place; the next token (1, 1)."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.gpt = Gpt(vocabulary, length, width, heads, depth)
        for name in (f"{kind}{i}" for kind in "kv" for i in range(depth)):
            self.register_buffer(name, torch.zeros(1, heads, length, width // heads))

    def attend(self, layer: int, attention, x, place):
        q, k, v = (t.unflatten(-1, (attention.heads, -1)).transpose(1, 2) for t in attention.query(x).chunk(3, -1))
        keys, values = (getattr(self, f"{kind}{layer}") for kind in "kv")
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        seen = (torch.arange(keys.shape[2], device=x.device) <= place)[None, None, None]
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        return attention.out(y.transpose(1, 2).flatten(2))

    def forward(self, token, place):
        x = self.gpt.words(token) + self.gpt.places(place)
        for i, block in enumerate(self.gpt.blocks):
            x = x + self.attend(i, block.attention, block.norms[0](x), place)
            x = x + block.mlp(block.norms[1](x))
        return F.linear(self.gpt.norm(x), self.gpt.words.weight)[:, -1].argmax(-1, keepdim=True)


def gpt2_token(tiny: bool) -> Task:
    """GPT-2 of 124 million parameters in bfloat16, the 512th token of one sequence, a cache of 1,024."""
    words, length, *sizes = (50, 8, 16, 2, 1) if tiny else (50257, 1024, 768, 12, 12)
    model = GptDecoder(words, length, *sizes).bfloat16().eval()
    batch = torch.zeros(1, 1, dtype=torch.long), torch.full((1,), length // 2)
    return Task(model, batch, lambda m, token, place: m(token, place))


# Trades tell what a row is: a step is forward, loss and backward ("backward"), or a forward pass ("infer").
NETWORKS = [
    Network("SmolLM2-135M", "paper", smollm2),
    Network("SmolVLA expert", "paper", smolvla),
    Network("SD UNet", "paper", sd_unet),
    Network("ResNet50", "paper", resnet50),
    Network("Whisper-tiny", "paper", whisper_tiny),
    Network("GPT-2 token", "decoding", gpt2_token),
]
