"""Networks of images: classification, segmentation, detection."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .task import Block, ConvNorm, Task, classify, labelled_images


class Bottleneck(nn.Module):
    """He et al., 2015, with the stride in the 3 x 3 convolution."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.branch = nn.Sequential(
            *(ConvNorm(inputs, width, 1), ConvNorm(width, width, 3, stride), ConvNorm(width, outputs, 1, act=None))
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride, act=None)

    def forward(self, x):
        return F.relu(self.branch(x) + self.shortcut(x))


def resnet_stages(width: int, counts: tuple[int, ...]) -> tuple[nn.Sequential, nn.ModuleList, list[int]]:
    """Stem, stages and their channels."""
    stem = nn.Sequential(ConvNorm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
    stages, channels, inputs = nn.ModuleList(), [], width
    for level, count in enumerate(counts):
        blocks = []
        for i in range(count):
            blocks.append(Bottleneck(inputs, width << level, 2 if level and i == 0 else 1))
            inputs = 4 * width << level
        stages.append(nn.Sequential(*blocks))
        channels.append(inputs)
    return stem, stages, channels


def resnet50(tiny: bool) -> Task:
    """128 images of 224 x 224, SGD."""
    width, counts, classes = (8, (1, 1), 10) if tiny else (64, (3, 4, 6, 3), 1000)
    stem, stages, channels = resnet_stages(width, counts)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes))
    images = labelled_images(2, 32, classes) if tiny else labelled_images(128, 224, classes)
    return Task(nn.Sequential(stem, *stages, head), images, classify, "sgd")


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, squeezed: int, act, gate) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, squeezed, 1), act(inplace=True)),
            *(nn.Conv2d(squeezed, width, 1), gate()),
        )

    def forward(self, x):
        return x * self.layers(x)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, squeeze and excitation, projection: MobileNetV3, EfficientNet."""

    def __init__(self, inputs, expanded, outputs, kernel, stride, act, squeezed=0, gate=nn.Sigmoid) -> None:
        super().__init__()
        layers = [ConvNorm(inputs, expanded, 1, act=act)] if expanded != inputs else []
        layers.append(ConvNorm(expanded, expanded, kernel, stride, groups=expanded, act=act))
        if squeezed:
            layers.append(SqueezeExcite(expanded, squeezed, nn.ReLU if gate is nn.Hardsigmoid else act, gate))
        self.layers = nn.Sequential(*layers, ConvNorm(expanded, outputs, 1, act=None))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.layers(x) if self.residual else self.layers(x)


def efficientnet_b0(tiny: bool) -> Task:
    """128 images of 224 x 224; Tan and Le, 2019, table 1."""
    rows = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5)]
    rows += [(6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]
    layers, inputs, classes = [ConvNorm(3, 32, 3, 2, act=nn.SiLU)], 32, 10 if tiny else 1000
    for factor, outputs, count, stride, kernel in rows[:2] if tiny else rows:
        for i in range(count):
            expanded, step = factor * inputs, stride if i == 0 else 1
            layers.append(InvertedResidual(inputs, expanded, outputs, kernel, step, nn.SiLU, inputs // 4))
            inputs = outputs
    hidden = 32 if tiny else 1280
    layers += [ConvNorm(inputs, hidden, 1, act=nn.SiLU), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Dropout(0.2), nn.Linear(hidden, classes)]
    images = labelled_images(2, 32, classes) if tiny else labelled_images(128, 224, classes)
    return Task(nn.Sequential(*layers), images, classify)


def mobilenet_v3(tiny: bool) -> Task:
    """MobileNetV3-Large on 128 images of 224 x 224, SGD; Howard et al., 2019, table 1."""
    r, h = nn.ReLU, nn.Hardswish
    rows = [(3, 16, 16, 0, r, 1), (3, 64, 24, 0, r, 2), (3, 72, 24, 0, r, 1), (5, 72, 40, 24, r, 2)]
    rows += [(5, 120, 40, 32, r, 1), (5, 120, 40, 32, r, 1), (3, 240, 80, 0, h, 2), (3, 200, 80, 0, h, 1)]
    rows += [(3, 184, 80, 0, h, 1), (3, 184, 80, 0, h, 1), (3, 480, 112, 120, h, 1), (3, 672, 112, 168, h, 1)]
    rows += [(5, 672, 160, 168, h, 2), (5, 960, 160, 240, h, 1), (5, 960, 160, 240, h, 1)]
    layers, inputs, classes = [ConvNorm(3, 16, 3, 2, act=h)], 16, 10 if tiny else 1000
    for kernel, expanded, outputs, squeezed, act, stride in rows[2:4] if tiny else rows:
        inputs, given = outputs, inputs
        layers.append(InvertedResidual(given, expanded, outputs, kernel, stride, act, squeezed, nn.Hardsigmoid))
    last, hidden = (32, 16) if tiny else (960, 1280)
    layers += [ConvNorm(inputs, last, 1, act=h), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Linear(last, hidden), h(), nn.Dropout(0.2), nn.Linear(hidden, classes)]
    images = labelled_images(2, 32, classes) if tiny else labelled_images(128, 224, classes)
    return Task(nn.Sequential(*layers), images, classify, "sgd")


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of (N, C, H, W)."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7 x 7, layer norm, an MLP on channels, layer scale: Liu et al., 2022."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        mlp = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.layers = nn.Sequential(nn.LayerNorm(width), *mlp)
        self.scale = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x):
        return x + (self.scale * self.layers(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def convnext_t(tiny: bool) -> Task:
    """64 images of 224 x 224."""
    width, counts, classes = (8, (1, 1), 10) if tiny else (96, (3, 3, 9, 3), 1000)
    layers = [nn.Conv2d(3, width, 4, 4), ChannelNorm(width)]
    for level, count in enumerate(counts):
        if level:
            layers += [ChannelNorm(width), nn.Conv2d(width, 2 * width, 2, 2)]
            width *= 2
        layers += [ConvNeXtBlock(width) for _ in range(count)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(width), nn.Linear(width, classes)]
    images = labelled_images(2, 32, classes) if tiny else labelled_images(64, 224, classes)
    return Task(nn.Sequential(*layers), images, classify)


class ViT(nn.Module):
    """Dosovitskiy et al., 2020: patches of 16 x 16, a token of the class."""

    def __init__(self, size: int, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // 16) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def vit_b16(tiny: bool) -> Task:
    """64 images of 224 x 224."""
    count, size, width, heads, depth, classes = (2, 32, 16, 2, 1, 10) if tiny else (64, 224, 768, 12, 12, 1000)
    return Task(ViT(size, width, heads, depth, classes), labelled_images(count, size, classes), classify)


class MlpMixerBlock(nn.Module):
    """Tolstikhin et al., 2021: an MLP across tokens and one across channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.across = nn.Sequential(nn.Linear(tokens, width // 2), nn.GELU(), nn.Linear(width // 2, tokens))
        self.along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norms[1](x))


class MlpMixer(nn.Module):
    def __init__(self, size: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*(MlpMixerBlock((size // 16) ** 2, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def mlp_mixer(tiny: bool) -> Task:
    """MLP-Mixer-S/16 on 128 images of 224 x 224."""
    count, size, width, depth, classes = (2, 32, 16, 1, 10) if tiny else (128, 224, 512, 8, 1000)
    return Task(MlpMixer(size, width, depth, classes), labelled_images(count, size, classes), classify)


class UNet(nn.Module):
    """Ronneberger et al., 2015, in 2 or 3 dimensions, with norms and padding; logits per pixel."""

    def __init__(self, conv, transposed, norm, pool, inputs: int, width: int, levels: int, classes: int) -> None:
        super().__init__()

        def double(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                *(conv(a, b, 3, padding=1, bias=False), norm(b), nn.ReLU(inplace=True)),
                *(conv(b, b, 3, padding=1, bias=False), norm(b), nn.ReLU(inplace=True)),
            )

        widths = [width << i for i in range(levels)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([inputs, *widths], widths))
        self.pool = pool(2)
        self.up = nn.ModuleList(transposed(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.merge = nn.ModuleList(double(2 * w, w) for w in widths[-2::-1])
        self.head = conv(width, classes, 1)

    def forward(self, x):
        kept = []
        for i, layers in enumerate(self.down):
            x = layers(self.pool(x) if i else x)
            kept.append(x)
        kept.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def unet_2d(tiny: bool) -> Task:
    """8 images of 256 x 256, 21 classes per pixel."""
    count, size, width, levels, classes = (1, 16, 4, 2, 3) if tiny else (8, 256, 64, 5, 21)
    model = UNet(nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d, 3, width, levels, classes)
    batch = torch.randn(count, 3, size, size), torch.randint(0, classes, (count, size, size))
    return Task(model, batch, lambda m, x, y: F.cross_entropy(m(x), y))


def dice_and_cross_entropy(model: nn.Module, volumes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy and soft Dice loss: Isensee et al., 2021 (nnU-Net)."""
    logits = model(volumes).float()
    share = logits.softmax(1)
    wanted = F.one_hot(labels, logits.shape[1]).movedim(-1, 1).to(share.dtype)
    space = (0, 2, 3, 4)
    dice = (2 * (share * wanted).sum(space) + 1e-5) / (share.sum(space) + wanted.sum(space) + 1e-5)
    return F.cross_entropy(logits, labels) + 1 - dice.mean()


def unet_3d(tiny: bool) -> Task:
    """2 volumes of 96 x 96 x 96 with 4 classes, cross entropy and Dice, SGD."""
    count, size, width, levels, classes = (1, 8, 4, 2, 2) if tiny else (2, 96, 32, 4, 4)
    model = UNet(nn.Conv3d, nn.ConvTranspose3d, nn.InstanceNorm3d, nn.MaxPool3d, 1, width, levels, classes)
    batch = torch.randn(count, 1, size, size, size), torch.randint(0, classes, (count, size, size, size))
    return Task(model, batch, dice_and_cross_entropy, "sgd", clip=12.0)


class RetinaNet(nn.Module):
    """ResNet50, a feature pyramid, and heads with 9 anchors a place: Lin et al., 2017."""

    def __init__(self, width: int, counts: tuple[int, ...], pyramid: int, depth: int, classes: int) -> None:
        super().__init__()
        self.stem, self.stages, channels = resnet_stages(width, counts)
        self.lateral = nn.ModuleList(nn.Conv2d(c, pyramid, 1) for c in channels[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(pyramid, pyramid, 3, padding=1) for _ in channels[1:])
        self.further = nn.ModuleList(nn.Conv2d(pyramid, pyramid, 3, 2, 1) for _ in range(2))
        self.heads = nn.ModuleList()
        for outputs in (classes, 4):
            layers = []
            for _ in range(depth):
                layers += [nn.Conv2d(pyramid, pyramid, 3, padding=1), nn.ReLU(inplace=True)]
            self.heads.append(nn.Sequential(*layers, nn.Conv2d(pyramid, 9 * outputs, 3, padding=1)))
        self.outputs = (classes, 4)

    def forward(self, images):
        """Logits (N, anchors, classes) and boxes (N, anchors, 4)."""
        x, levels = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        levels = [lateral(x) for lateral, x in zip(self.lateral, levels[1:])]
        for i in range(len(levels) - 2, -1, -1):
            levels[i] = levels[i] + F.interpolate(levels[i + 1], scale_factor=2.0, mode="nearest")
        levels = [smooth(x) for smooth, x in zip(self.smooth, levels)]
        for layer in self.further:
            levels.append(layer(levels[-1]))
        found = []
        for head, n in zip(self.heads, self.outputs):
            places = [head(x).permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, n)) for x in levels]
            found.append(torch.cat(places, 1))
        return found


def focal_and_box_loss(model, images, labels, boxes):
    """Focal loss of all anchors (label -1: background) and smooth L1 of the boxes of the others."""
    logits, found = model(images)
    foreground = labels >= 0
    wanted = F.one_hot(labels.clamp(min=0), logits.shape[-1]).to(logits.dtype) * foreground[..., None]
    share = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    hit = share * wanted + (1 - share) * (1 - wanted)
    alpha = 0.25 * wanted + 0.75 * (1 - wanted)
    count = foreground.sum().clamp(min=1)
    box = F.smooth_l1_loss(found.float(), boxes, reduction="none", beta=1 / 9).sum(-1)
    return ((alpha * (1 - hit) ** 2 * entropy).sum() + (box * foreground).sum()) / count


def retinanet(tiny: bool) -> Task:
    """4 images of 512 x 512 with 80 classes; 1 in 100 anchors is an object. SGD."""
    count, size, classes = (1, 64, 3) if tiny else (4, 512, 80)
    model = RetinaNet(*((8, (1, 1, 1, 1), 8, 1) if tiny else (64, (3, 4, 6, 3), 256, 4)), classes)
    places, side = 0, size // 8
    for _ in range(5):
        places, side = places + side * side, (side + 1) // 2
    labels = torch.where(torch.rand(count, 9 * places) < 0.01, torch.randint(0, classes, (count, 9 * places)), -1)
    batch = torch.randn(count, 3, size, size), labels, torch.randn(count, 9 * places, 4)
    return Task(model, batch, focal_and_box_loss, "sgd")
