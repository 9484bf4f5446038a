"""The networks of the chart with random data of the published shapes: ResNet50, BERT-base, VGG16, and a GPT."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def resnet50(device: str):
    """ResNet50 on 128 images of 224 x 224."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    images, labels = _images(128, device)
    return model, lambda m: m(pixel_values=images, labels=labels).loss


def bert(device: str):
    """BERT-base, classifying 64 sentences of 128 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig())
    tokens, labels = torch.randint(0, 30000, (64, 128)).to(device), torch.randint(0, 2, (64,)).to(device)
    mask = torch.ones_like(tokens)
    return model, lambda m: m(input_ids=tokens, attention_mask=mask, labels=labels).loss


def vgg16(device: str):
    """VGG16 (configuration D of Simonyan and Zisserman, 2014) on 64 images of 224 x 224."""
    layers, channels = [], 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    hidden = [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 4096)]
    model = nn.Sequential(*layers, nn.Flatten(), *hidden, nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))
    images, labels = _images(64, device)
    return model, lambda m: nn.functional.cross_entropy(m(images), labels)


def gpt(device: str):
    """GPT-2 of 124 million parameters on 8 sequences of 1,024 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    tokens = torch.randint(0, 50000, (8, 1024)).to(device)
    return model, lambda m: m(input_ids=tokens, labels=tokens).loss


NETWORKS: dict[str, Callable] = {"ResNet50": resnet50, "BERT-base": bert, "VGG16": vgg16, "GPT 124M": gpt}


def training_step(name: str, device: str, amp: bool, compile_mode: str | None = None) -> Callable[[], torch.Tensor]:
    """A function that trains the network one step with AdamW, under bf16 autocast where `amp`; returns the loss.

    `compile_mode` is that of torch.compile; None: eager.
    """
    torch.manual_seed(0)
    model, loss_of = NETWORKS[name](device)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    called = torch.compile(model, mode=compile_mode) if compile_mode else model

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=amp):
            loss = loss_of(called)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _images(count: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, 224, 224).to(device), torch.randint(0, 1000, (count,)).to(device)
