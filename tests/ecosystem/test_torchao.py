"""torchao: weights of 8 and 4 bits, quantization-aware training, and optimizers whose state has 8 bits."""

import copy

import pytest
import torch
from torch import nn

from . import agree, library, train

library("torchao")
quantization = library("torchao.quantization")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))


@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
@torch.no_grad()
def test_quantized_weights(name):
    x = torch.randn(4, 128)

    def run(device):
        model = network().to(device)
        plain = model(x.to(device))
        quantization.quantize_(model, getattr(quantization, name)())
        result = model(x.to(device))
        assert 0 < (result - plain).abs().max() < 0.1
        return result

    agree(run)


def loss_of(model):
    weight = model[0].weight
    x = torch.linspace(-1, 1, 8 * 128).view(8, 128).sin().to(weight.device)
    return nn.functional.mse_loss(model(x), x)


def test_quantization_aware_training():
    qat = library("torchao.quantization.qat")
    model = copy.deepcopy(network())
    quantization.quantize_(model, qat.QATConfig(quantization.Int8DynamicActivationIntxWeightConfig(), step="prepare"))
    agree(lambda device: train(model, loss_of, device))


@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit"])
def test_optimizers(name):
    optimizer = getattr(library("torchao.optim"), name)
    agree(lambda device: train(network(), loss_of, device, optimizer=optimizer, lr=1e-3))
