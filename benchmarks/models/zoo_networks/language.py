"""Networks of text: encoders, decoders, both, and recurrent ones."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .task import Block, Embedding, Linear, Task, classify


def next_tokens(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each token (N, L + 1) behind those before it."""
    return classify(model, tokens[:, :-1], tokens[:, 1:])


class Bert(nn.Module):
    """Devlin et al., 2018: the masked tokens' logits, from the tied table."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = Embedding(vocabulary, width), Embedding(length, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, heads, dropout=0.1, pre=False) for _ in range(depth))
        self.transform = nn.Sequential(Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens, mask, chosen):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.drop(self.norm(x))
        for block in self.blocks:
            x = block(x, mask=mask)
        x = x.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))
        return F.linear(self.transform(x), self.words.weight, self.bias)


def bert_base(tiny: bool) -> Task:
    """BERT-base, masked language model: 64 sentences of 128 tokens, 19 of them masked, up to 32 of padding."""
    count, length, masked, words = (2, 8, 2, 50) if tiny else (64, 128, 19, 30522)
    model = Bert(words, 512, *((16, 2, 1) if tiny else (768, 12, 12)))
    lengths = torch.randint(length * 3 // 4, length + 1, (count, 1))
    mask = (torch.arange(length) < lengths)[:, None, None]
    chosen = torch.rand(count, length * 3 // 4).argsort(1)[:, :masked]
    batch = torch.randint(0, words, (count, length)), mask, chosen, torch.randint(0, words, (count, masked))

    def loss(model, tokens, mask, chosen, wanted):
        return F.cross_entropy(model(tokens, mask, chosen).flatten(0, 1), wanted.flatten())

    return Task(model, batch, loss)


class Gpt(nn.Module):
    """GPT-2: norms before, learned places, the table tied to the logits."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = Embedding(vocabulary, width), Embedding(length, width)
        self.drop, self.norm = nn.Dropout(0.1), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout=0.1) for _ in range(depth))

    def forward(self, tokens):
        x = self.drop(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = block(x, causal=True)
        return F.linear(self.norm(x), self.words.weight)


def gpt2(tiny: bool) -> Task:
    """GPT-2 of 124 million parameters on 8 sequences of 1,024 tokens."""
    count, length, words = (2, 8, 50) if tiny else (8, 1024, 50257)
    model = Gpt(words, length, *((16, 2, 1) if tiny else (768, 12, 12)))
    return Task(model, (torch.randint(0, words, (count, length + 1)),), next_tokens)


class LlamaBlock(nn.Module):
    """RMS norm, rotary places, grouped queries, SwiGLU: Touvron et al., 2023."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.query, self.key = Linear(width, width, bias=False), Linear(width, groups * size, bias=False)
        self.value, self.out = Linear(width, groups * size, bias=False), Linear(width, width, bias=False)
        self.gate, self.up = (Linear(width, hidden, bias=False) for _ in range(2))
        self.down = Linear(hidden, width, bias=False)

    def attend(self, x, cos, sin):
        q, k, v = self.query(x), self.key(x), self.value(x)
        heads = ((q, self.heads), (k, self.groups), (v, self.groups))
        q, k, v = (t.unflatten(-1, (n, -1)).transpose(1, 2) for t, n in heads)
        q, k = (t * cos + torch.cat([-t.chunk(2, -1)[1], t.chunk(2, -1)[0]], -1) * sin for t in (q, k))
        return self.out(self.mix(q.to(v.dtype), k.to(v.dtype), v).transpose(1, 2).flatten(2))

    def mix(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norms[0](x), cos, sin)
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(
        self, words: int, width: int, heads: int, groups: int, hidden: int, depth: int, length: int, block=LlamaBlock
    ) -> None:
        super().__init__()
        self.words, self.norm = Embedding(words, width), nn.RMSNorm(width, eps=1e-5)
        self.blocks = nn.ModuleList(block(width, heads, groups, hidden) for _ in range(depth))
        size = width // heads
        frequencies = 500000.0 ** (-torch.arange(0, size, 2) / size)
        angles = (torch.arange(length)[:, None] * frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens):
        x, length = self.words(tokens), tokens.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        return F.linear(self.norm(x), self.words.weight)


def llama_1b(tiny: bool) -> Task:
    """The shape of Llama 3.2 1B (1.24 billion parameters) on 4 sequences of 1,024 tokens."""
    count, length, words = (2, 8, 50) if tiny else (4, 1024, 128256)
    model = Llama(words, *((16, 4, 2, 32, 1) if tiny else (2048, 32, 8, 8192, 16)), length)
    return Task(model, (torch.randint(0, words, (count, length + 1)),), next_tokens, clip=1.0)


class T5Attention(nn.Module):
    """Attention without scale, with an additive bias of relative places: Raffel et al., 2019."""

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (Linear(width, heads * size, bias=False) for _ in range(3))
        self.out = Linear(heads * size, width, bias=False)

    def forward(self, x, memory, bias):
        q, k, v = self.query(x), self.key(memory), self.value(memory)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        bias = None if bias is None else bias.to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.out(y.transpose(1, 2).flatten(2))


class T5Block(nn.Module):
    def __init__(self, width: int, heads: int, size: int, hidden: int, cross: bool) -> None:
        super().__init__()
        self.attention = T5Attention(width, heads, size)
        self.cross = T5Attention(width, heads, size) if cross else None
        up, down = Linear(width, hidden, bias=False), Linear(hidden, width, bias=False)
        self.mlp = nn.Sequential(up, nn.ReLU(), nn.Dropout(0.1), down)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(3 if cross else 2))
        self.drop = nn.Dropout(0.1)

    def forward(self, x, bias, memory=None):
        y = self.norms[0](x)
        x = x + self.drop(self.attention(y, y, bias))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.norms[2](x), memory, None))
        return x + self.drop(self.mlp(self.norms[1](x)))


class T5(nn.Module):
    BUCKETS, FARTHEST = 32, 128

    def __init__(self, words: int, width: int, heads: int, hidden: int, depth: int) -> None:
        super().__init__()
        size, self.scale = width // heads, width**-0.5
        self.words = Embedding(words, width)
        self.biases = nn.ModuleList(Embedding(self.BUCKETS, heads) for _ in range(2))
        self.encoder = nn.ModuleList(T5Block(width, heads, size, hidden, False) for _ in range(depth))
        self.decoder = nn.ModuleList(T5Block(width, heads, size, hidden, True) for _ in range(depth))
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))

    def bias(self, length: int, causal: bool):
        """The bias (1, heads, length, length) from buckets of distances, logarithmic from half of them on."""
        table = self.biases[int(causal)]
        places = torch.arange(length, device=table.weight.device)
        distance = places[None] - places[:, None]
        buckets = self.BUCKETS if causal else self.BUCKETS // 2
        side = 0 if causal else (distance > 0) * buckets
        apart = (-distance).clamp(min=0) if causal else distance.abs()
        exact = buckets // 2
        ratio = (apart.clamp(min=1) / exact).log() / math.log(self.FARTHEST / exact)
        far = (exact + ratio * (buckets - exact)).long().clamp(max=buckets - 1)
        bias = table(side + torch.where(apart < exact, apart, far)).permute(2, 0, 1)[None]
        return bias.masked_fill(distance > 0, float("-inf")) if causal else bias

    def forward(self, source, target):
        memory, bias = self.words(source), self.bias(source.shape[1], False)
        for block in self.encoder:
            memory = block(memory, bias)
        memory = self.norms[0](memory)
        x, bias = self.words(target), self.bias(target.shape[1], True)
        for block in self.decoder:
            x = block(x, bias, memory)
        return F.linear(self.norms[1](x) * self.scale, self.words.weight)


def encoder_decoder_loss(model, source, target):
    """Cross entropy of each token of the target (N, L + 1) behind those before it."""
    return F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())


def t5_small(tiny: bool) -> Task:
    """T5-small on 16 sources of 512 tokens and targets of 128."""
    count, source, target, words = (2, 8, 6, 50) if tiny else (16, 512, 128, 32128)
    model = T5(words, *((16, 2, 32, 1) if tiny else (512, 8, 2048, 6)))
    batch = torch.randint(0, words, (count, source)), torch.randint(0, words, (count, target + 1))
    return Task(model, batch, encoder_decoder_loss)


class LstmLanguageModel(nn.Module):
    """Zaremba et al., 2014, medium."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(words, width), nn.Dropout(0.5)
        self.lstm = nn.LSTM(width, width, 2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        return self.head(self.drop(self.lstm(self.drop(self.words(tokens)))[0]))


def lstm(tiny: bool) -> Task:
    """2 layers of 650, 64 sequences of 70 words of 10,000, SGD with clipped gradients."""
    count, length, words, width = (2, 5, 50, 8) if tiny else (64, 70, 10000, 650)
    tokens = torch.randint(0, words, (count, length + 1))
    return Task(LstmLanguageModel(words, width), (tokens,), next_tokens, "sgd", clip=5.0)


class GruTagger(nn.Module):
    """A class for each token, from both directions."""

    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.gru = nn.GRU(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens):
        return self.head(self.gru(self.words(tokens))[0])


def gru(tiny: bool) -> Task:
    """2 layers of 512 in both directions tag 64 sentences of 100 words."""
    count, length, words, width, classes = (2, 5, 50, 8, 3) if tiny else (64, 100, 20000, 512, 20)
    batch = torch.randint(0, words, (count, length)), torch.randint(0, classes, (count, length))
    return Task(GruTagger(words, width, classes), batch, classify)
