"""Dispatches, bytes and GPU milliseconds of a step, eager and compiled, by what the kernels are for.

Bytes are those of the storages that a kernel reads or writes, each once; GPU times are those of a profile, under which
kernels do not overlap; the wall time is without one. `python traffic.py [NETWORK ...]`: BERT-base, "GPT 124M",
ResNet50, and of the small ones ViT. ANYMPS_TRAFFIC_STEP=infer: a forward pass in eval mode without gradients, whose
precisions are those of weights and images (bf16, fp32), instead of a training step. ANYMPS_TRAFFIC_KERNELS=40 lists so
many kernels of the compiled step, the largest first; ANYMPS_BENCHMARK_MODES and ANYMPS_BENCHMARK_PRECISIONS choose as
in models.py. ANYMPS_TRAFFIC_SMALL=1 (software drivers) takes small networks of the same structure, whose counts for a
layer are the same, and one run of a step.
"""

import collections
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "models")]
import peer  # noqa: E402

KINDS = (
    ("products", r"^(matmul|grouped_mm|gemv)"),
    ("convolutions", r"^conv"),
    ("attention", r"^(attention|flash)"),
    ("generated", r"^mps_"),
    ("optimizer", r"adam"),
    ("copies, fills", r"copy|fill|^Mem"),
    ("other eager", r""),
)


def small_bert(device):
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512
    )
    tokens, labels = torch.randint(0, 500, (4, 64)).to(device), torch.randint(0, 2, (4,)).to(device)
    mask = torch.ones_like(tokens)
    return BertForSequenceClassification(config), lambda m: m(input_ids=tokens, attention_mask=mask, labels=labels).loss


def small_gpt(device):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(use_cache=False, n_embd=128, n_layer=2, n_head=2)
    tokens = torch.randint(0, 50000, (2, 32)).to(device)
    return GPT2LMHeadModel(config), lambda m: m(input_ids=tokens, labels=tokens).loss


def small_resnet(device):
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[2, 2], num_labels=16)
    images, labels = torch.randn(4, 3, 64, 64).to(device), torch.randint(0, 16, (4,)).to(device)
    return ResNetForImageClassification(config), lambda m: m(pixel_values=images, labels=labels).loss


def small_vit(device):
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512, image_size=64
    )
    images, labels = torch.randn(4, 3, 64, 64).to(device), torch.randint(0, 2, (4,)).to(device)
    return ViTForImageClassification(config), lambda m: m(pixel_values=images, labels=labels).loss


SMALL = {"BERT-base": small_bert, "GPT 124M": small_gpt, "ResNet50": small_resnet, "ViT": small_vit}


def kind_of(name):
    return next(kind for kind, pattern in KINDS if re.search(pattern, name))


def training_step(make, device, amp, options):
    """One step of AdamW; `options`: of torch.compile, or None."""
    import torch

    torch.manual_seed(0)
    torch._dynamo.reset()
    model, loss_of = make(device)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    module = model if options is None else torch.compile(model, **options)

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=amp):
            loss = loss_of(module)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def inference_step(make, device, half, options):
    """A forward pass; `half`: with weights and images of bfloat16."""
    import torch

    torch.manual_seed(0)
    torch._dynamo.reset()
    model, loss_of = make(device)
    model.to(device, torch.bfloat16 if half else torch.float32).eval()
    module = model if options is None else torch.compile(model, **options)

    def called(*args, **kwargs):
        kwargs = {k: v.bfloat16() if half and v.is_floating_point() else v for k, v in kwargs.items()}
        return module(*args, **kwargs)

    def step():
        with torch.no_grad():
            loss_of(called)

    return step


def measured(step, small):
    """(milliseconds of a step, kernels of one step)"""
    import torch_anymps

    for _ in range(1 if small else 4):
        step()
    inner = 1 if small else peer.stream_length(step, "mps", 0.3)
    wall = 1e3 * peer.median_seconds(step, "mps", inner, repeats=1 if small else 5, warmup=1, busy=0)
    with torch_anymps.profile() as profile:
        step()
    return wall, profile.kernels


def report(title, wall, kernels, listed):
    rows = collections.defaultdict(lambda: [0, 0, 0.0])
    for k in kernels:
        for row in (rows[kind_of(k.name)], rows["all"]):
            row[0] += k.calls
            row[1] += k.calls * k.bytes
            row[2] += 1e3 * k.seconds
    print(f"\n{title}: {wall:.2f} ms a step\n| kernels | dispatches | MB | ms |\n|---|---|---|---|")
    for kind in [k for k, _ in KINDS if k in rows] + ["all"]:
        calls, size, ms = rows[kind]
        print(f"| {kind} | {calls} | {size / 1e6:.1f} | {ms:.2f} |")
    for k in sorted(kernels, key=lambda k: -k.calls * k.bytes)[:listed]:
        print(f"  {k.calls:4d} x {k.bytes / 1e6:9.3f} MB {1e3 * k.seconds:8.3f} ms  {k.name}, {k.shape}")
    sys.stdout.flush()


def main():
    import torch
    from models import MODES
    from networks import NETWORKS

    small = os.environ.get("ANYMPS_TRAFFIC_SMALL") == "1"
    listed = int(os.environ.get("ANYMPS_TRAFFIC_KERNELS", "0"))
    modes = os.environ.get("ANYMPS_BENCHMARK_MODES", "eager,compiled").split(",")
    infers = os.environ.get("ANYMPS_TRAFFIC_STEP") == "infer"
    precisions = os.environ.get("ANYMPS_BENCHMARK_PRECISIONS", "bf16,fp32" if infers else "amp,fp32").split(",")
    step_of = inference_step if infers else training_step
    print(peer.device_name("mps"), "(small networks)" if small else "")
    for name in sys.argv[1:] or SMALL:
        for precision in precisions:
            for mode in modes:
                make = (SMALL if small else NETWORKS)[name]
                step = step_of(make, "mps", precision != "fp32", MODES[mode])
                wall, kernels = measured(step, small)
                report(f"{name}, {precision}, {mode}", wall, kernels, 0 if mode == "eager" else listed)
                del step
                torch.mps.empty_cache()


if __name__ == "__main__":
    main()
