"""Diffusers: a training step's losses of a conditioned U-Net, sampling with its schedulers, and the autoencoder."""

import pytest
import torch

from . import agree, library, train

diffusers = library("diffusers")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback")


def unet():
    torch.manual_seed(0)
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
    )


def test_trains():
    latents, noise, text = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8), torch.randn(2, 5, 16)
    times = torch.tensor([10, 700])
    scheduler = diffusers.DDPMScheduler()

    def loss_of(model):
        a, b, c, t = (x.to(model.device) for x in (latents, noise, text, times))
        predicted = model(scheduler.add_noise(a, b, t), t, encoder_hidden_states=c).sample
        return torch.nn.functional.mse_loss(predicted, b)

    agree(lambda device: train(unet(), loss_of, device, optimizer=torch.optim.AdamW, lr=1e-3))


@pytest.mark.parametrize("name", ["DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"])
@torch.no_grad()
def test_samples(name):
    start, text = torch.randn(1, 4, 8, 8), torch.randn(1, 5, 16)

    def run(device):
        model, scheduler = unet().to(device).eval(), getattr(diffusers, name)()
        scheduler.set_timesteps(4, device=device)
        sample = start.to(device) * scheduler.init_noise_sigma
        for t in scheduler.timesteps:
            predicted = model(scheduler.scale_model_input(sample, t), t, encoder_hidden_states=text.to(device)).sample
            sample = scheduler.step(predicted, t, sample).prev_sample
        return sample

    agree(run)


@torch.no_grad()
def test_autoencoder():
    model = diffusers.AutoencoderKL(block_out_channels=(16, 16), norm_num_groups=4, latent_channels=4).eval()
    image = torch.randn(1, 3, 16, 16)
    agree(lambda device: model.to(device)(image.to(device)).sample)
