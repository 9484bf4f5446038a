"""bitsandbytes: linear layers of 8 and 4 bits, their gradients to the input, and block-wise quantization."""

import pytest
import torch

from . import agree, library

bitsandbytes = library("bitsandbytes")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
def test_linear(kind):
    plain, x = torch.nn.Linear(128, 64), torch.randn(3, 128)

    def run(device):
        if kind == "int8":
            layer = bitsandbytes.nn.Linear8bitLt(128, 64, has_fp16_weights=False)
        else:
            layer = bitsandbytes.nn.Linear4bit(128, 64, quant_type=kind)
        layer.load_state_dict(plain.state_dict())
        layer = layer.to(device)  # quantizes
        leaf = x.to(device).requires_grad_()
        result = layer(leaf)
        assert layer.weight.dtype in (torch.uint8, torch.int8) and layer.weight.device.type == device.type
        return result.detach(), torch.autograd.grad(result.sum(), leaf)[0]

    agree(run, tolerance=1e-2)  # bf16 products inside


@pytest.mark.parametrize("blocks", [64, 256])
def test_blockwise(blocks):
    x = torch.randn(1000)

    def run(device):
        packed, state = bitsandbytes.functional.quantize_blockwise(x.to(device), blocksize=blocks)
        return bitsandbytes.functional.dequantize_blockwise(packed, state)

    agree(run, tolerance=3e-2)  # a number half-way between two codes may take either
