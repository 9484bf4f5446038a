"""The zoo: networks of many trades at the sizes that people train, in plain PyTorch. One row a network.

A builder takes whether the network is to be tiny (a software driver trains it in seconds) and returns a Task, with
weights and data from PyTorch's generator of the current device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from . import generation, language, science, speech, structured, vision
from .task import Task


class Network(NamedTuple):
    name: str
    trade: str
    builder: Callable[[bool], Task]


ZOO = [
    Network("ResNet50", "vision", vision.resnet50),
    Network("EfficientNet-B0", "vision", vision.efficientnet_b0),
    Network("MobileNetV3-L", "vision", vision.mobilenet_v3),
    Network("ConvNeXt-T", "vision", vision.convnext_t),
    Network("ViT-B/16", "vision", vision.vit_b16),
    Network("MLP-Mixer-S/16", "vision", vision.mlp_mixer),
    Network("U-Net", "vision", vision.unet_2d),
    Network("RetinaNet", "vision", vision.retinanet),
    Network("U-Net 3-D", "medicine", vision.unet_3d),
    Network("Conformer-M", "speech", speech.conformer),
    Network("Whisper-base", "speech", speech.whisper_base),
    Network("WaveNet", "speech", speech.wavenet),
    Network("BERT-base", "language", language.bert_base),
    Network("GPT-2", "language", language.gpt2),
    Network("Llama-1B", "language", language.llama_1b),
    Network("T5-small", "language", language.t5_small),
    Network("LSTM", "language", language.lstm),
    Network("GRU", "language", language.gru),
    Network("Diffusion", "generation", generation.diffusion),
    Network("VAE", "generation", generation.vae),
    Network("WGAN-GP", "generation", generation.wgan_gp),
    Network("NeRF", "rendering", generation.nerf),
    Network("FT-Transformer", "tables", structured.ft_transformer),
    Network("DeepFM", "recommendation", structured.deepfm),
    Network("DLRM", "recommendation", structured.dlrm),
    Network("GCN", "graphs", structured.gcn),
    Network("GraphSAGE", "graphs", structured.graph_sage),
    Network("GAT", "graphs", structured.gat),
    Network("PointNet", "points", structured.pointnet),
    Network("TCN", "series", structured.tcn),
    Network("AlphaZero", "games", science.alphazero),
    Network("DQN", "games", science.dqn),
    Network("FNO", "physics", science.fno),
    Network("PINN", "physics", science.pinn),
    Network("MLP", "small", structured.small_mlp),
]
