"""timm: networks of several families trained with its own losses and optimizers, and their features."""

import pytest
import torch

from . import agree, library, train

timm = library("timm")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback", "all_bits_of_f32")
NETWORKS = {
    "resnet10t": {},
    "convnext_atto": {},
    "test_vit": {"img_size": 32, "patch_size": 8},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_trains(name):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=5, **NETWORKS[name])
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(0, 5, (4,))
    criterion = library("timm.loss").LabelSmoothingCrossEntropy()
    make_optimizer = library("timm.optim").create_optimizer_v2

    def loss_of(model):
        device = next(model.parameters()).device
        return criterion(model(images.to(device)), labels.to(device))

    agree(
        lambda device: train(
            model, loss_of, device, steps=3, optimizer=lambda p, lr: make_optimizer(list(p), opt="lamb", lr=lr), lr=5e-3
        )
    )


@torch.no_grad()
def test_features():
    model = timm.create_model("resnet10t", pretrained=False, features_only=True).eval()
    image = torch.randn(1, 3, 64, 64)
    agree(lambda device: model.to(device)(image.to(device)))
