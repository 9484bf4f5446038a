"""torchvision: classification, detection with its own operators, and the transforms on tensors of the device."""

import copy

import pytest
import torch

from . import agree, library, train

torchvision = library("torchvision")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback", "all_bits_of_f32")


def test_trains():
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=5)
    # Of fewer and smaller images the CPU itself, in float32, is 3 % from float64 after three steps.
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(0, 5, (8,))

    def loss_of(model):
        device = model.fc.weight.device
        return torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device))

    agree(lambda device: train(model, loss_of, device, steps=3, lr=1e-4))


def test_detects():
    torch.manual_seed(0)
    build = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn
    model = build(weights=None, weights_backbone=None, num_classes=4, min_size=64, max_size=64)
    images, corners = torch.rand(2, 3, 64, 64), torch.rand(50, 2) * 40
    boxes = torch.cat([corners, corners + 2 + torch.rand(50, 2) * 20], 1)
    scores, labels = torch.rand(50), torch.randint(0, 3, (50,))

    def run(device):
        net, pictures, where = copy.deepcopy(model).to(device), images.to(device), boxes.to(device)
        # Without training all boxes score alike, so which are found is left to the last bit: the stages are compared.
        assert net.eval()(list(pictures))[0]["boxes"].device.type == device.type
        features = net.train().backbone(pictures)
        objectness, _ = net.rpn.head(list(features.values()))
        pooled = net.roi_heads.box_roi_pool(features, [where, where], [(64, 64)] * 2)
        logits, deltas = net.roi_heads.box_predictor(net.roi_heads.box_head(pooled))
        kept = torchvision.ops.batched_nms(where, scores.to(device), labels.to(device), 0.3)
        # The device draws the sample of proposals by its own random numbers, so losses differ.
        losses = net(list(pictures), [{"boxes": where, "labels": labels.to(device)}] * 2)
        sum(losses.values()).backward()
        assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
        return objectness, pooled, logits, deltas, kept

    agree(run)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_transforms(dtype):
    v2 = library("torchvision.transforms.v2").functional
    image = torch.randint(0, 256, (2, 3, 17, 23)).to(dtype) / (1 if dtype == torch.uint8 else 256)
    calls = {
        "resize": lambda x: v2.resize(x, [11, 13], antialias=True),
        "affine": lambda x: v2.affine(x, 20.0, [2, 1], 1.2, [5.0, 3.0]),
        "perspective": lambda x: v2.perspective(
            x, [[0, 0], [22, 0], [22, 16], [0, 16]], [[2, 1], [20, 3], [21, 15], [1, 14]]
        ),
        "blur": lambda x: v2.gaussian_blur(x, [3, 5]),
        "hue": lambda x: v2.adjust_hue(x, 0.1),
        "equalize": v2.equalize,
        "sharpness": lambda x: v2.adjust_sharpness(x, 1.5),
        "normalize": lambda x: v2.normalize(v2.to_dtype(x, torch.float32, scale=True), [0.4] * 3, [0.3] * 3),
    }
    agree(lambda device: {name: call(image.to(device)).float() for name, call in calls.items()}, tolerance=1e-4)
