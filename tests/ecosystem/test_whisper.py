"""openai-whisper: a small model with random weights hears a tone, decodes the same tokens and has the same losses."""

import pytest
import torch

from . import agree, library, train

whisper = library("whisper")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback", "all_bits_of_f32")


def model():
    torch.manual_seed(0)
    sizes = {"n_audio_ctx": 1500, "n_audio_state": 32, "n_audio_head": 2, "n_audio_layer": 1}
    text = {"n_vocab": 51865, "n_text_ctx": 64, "n_text_state": 32, "n_text_head": 2, "n_text_layer": 2}
    net = whisper.model.Whisper(whisper.model.ModelDimensions(n_mels=80, **sizes, **text))
    torch.nn.init.normal_(net.decoder.positional_embedding, std=0.02)  # which whisper leaves uninitialized
    return net


def sound():
    return torch.sin(torch.arange(16000) / 16000 * 440 * 6.2832)


def test_spectrogram():
    agree(lambda device: whisper.log_mel_spectrogram(sound(), device=device))


@torch.no_grad()
def test_decodes():
    def run(device):
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(sound()), device=device)
        options = whisper.DecodingOptions(language="en", fp16=False, without_timestamps=True, sample_len=8)
        found = whisper.decode(model().to(device), mel, options)
        return found.tokens, found.avg_logprob

    agree(run)


def test_trains():
    mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(sound()))[None]
    tokens = torch.randint(0, 1000, (1, 12))

    def loss_of(net):
        logits = net(mel.to(net.device), tokens.to(net.device))
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten().to(net.device))

    agree(lambda device: train(model(), loss_of, device, steps=3))
