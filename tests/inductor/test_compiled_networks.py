"""Training steps of whole networks under autocast: compiled, they are as near to float32 as eager ones are."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from compiled import kernel_count
from torch import nn
from torch._inductor.utils import fresh_cache, run_and_get_code

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "models"))
from zoo_networks.generation import DiffusionUNet  # noqa: E402
from zoo_networks.vision import resnet_stages  # noqa: E402


class WithLoss(nn.Module):
    """The loss of a network whose outputs are compared with the last input."""

    def __init__(self, network: nn.Module, loss) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, *inputs):
        return self.loss(self.network(*inputs[:-1]).float(), inputs[-1])


class Named(nn.Module):
    """The loss of a model of transformers, whose inputs have names."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.model, self.names = model, (*names, "labels")

    def forward(self, *inputs):
        return self.model(**dict(zip(self.names, inputs, strict=True))).loss


def resnet(batch: int):
    stem, stages, channels = resnet_stages(8, (1, 1, 1, 1))
    model = nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 5))
    return WithLoss(model, F.cross_entropy), torch.randn(batch, 3, 64, 64), torch.randint(5, (batch,))


def unet(batch: int):
    """Group norm, silu, attention, skip connections; the loss is of noise."""
    model = WithLoss(DiffusionUNet(8, (1, 2), 1, 8, 4), F.mse_loss)
    return model, torch.randn(batch, 4, 8, 8), 1000 * torch.rand(batch), torch.randn(batch, 4, 8, 8)


def vit(batch: int):
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=5)
    return Named(ViTForImageClassification(config), "pixel_values"), torch.randn(batch, 3, 16, 16), torch.arange(batch)


def llama(batch: int):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, intermediate_size=48, vocab_size=64, max_position_embeddings=64)
    ids = torch.randint(64, (batch, 11))
    return Named(LlamaForCausalLM(config), "input_ids"), ids, ids


def whisper(batch: int):
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIDE.items()}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)
    config = WhisperConfig(
        **layers, **special, d_model=32, vocab_size=50, num_mel_bins=8, max_source_positions=12,
        max_target_positions=8, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = Named(WhisperForConditionalGeneration(config), "input_features")
    return model, torch.randn(batch, 8, 24), torch.randint(2, 50, (batch, 6))


SIDE = {"layers": 2, "attention_heads": 2, "ffn_dim": 64}


def step(call, model, inputs, device, dtype=None) -> list[torch.Tensor]:
    """The loss and all gradients, as float32 on the CPU."""
    model.zero_grad()
    with torch.autocast(device, dtype, enabled=dtype is not None):
        loss = call(*(x.to(device) for x in inputs))
    loss.backward()
    return [loss.detach().cpu(), *(p.grad.float().cpu() for p in model.parameters() if p.grad is not None)]


def check(builder, dtype, batches=(4,), **options):
    model, *_ = builder(batches[0])
    reference, twin, model = model, copy.deepcopy(model).to("mps"), copy.deepcopy(model).to("mps")
    compiled = torch.compile(model, **options)
    for batch in batches:
        inputs = builder(batch)[1:]
        expected = step(reference, reference, inputs, "cpu")
        eager = step(twin, twin, inputs, "mps", dtype)
        with fresh_cache():
            found, codes = run_and_get_code(step, compiled, model, inputs, "mps", dtype)
        assert batch != batches[0] or kernel_count(codes) > 0
        largest = max(want.norm() for want in expected[1:])
        for name, got, rounded, want in zip(("loss", *names(model)), found, eager, expected, strict=True):
            error, of_eager = (got - want).norm(), (rounded - want).norm()
            # Where eager's roundings happen to cancel, others need not; some gradients are nothing but roundings.
            limit = 2 * of_eager + 4 * torch.finfo(dtype).eps * want.norm() + 1e-3 * largest
            assert error <= limit, f"{name}: {error:.3g}, eager {of_eager:.3g}, of {want.norm():.3g}"


def names(model):
    return [name for name, p in model.named_parameters() if p.grad is not None]


@pytest.mark.parametrize("builder", [resnet, unet, vit, whisper], ids=lambda f: f.__name__)
def test_bfloat16(mps, builder):
    check(builder, torch.bfloat16)


def test_float16(mps):
    check(vit, torch.float16)


def test_dynamic_batch_sizes(mps):
    check(llama, torch.bfloat16, batches=(4, 3), dynamic=True, fullgraph=True)
