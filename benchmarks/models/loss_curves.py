"""Loss curves of 100 training steps on fixed data: how far mps is from the peer, and the peer from itself.

The figure of a network is the largest difference between two curves, relative to the first loss. The peer's own spread
is the difference to a run whose weights start 1e-7 off: training amplifies rounding, on every device. Dropout is off.
"""

import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import peer  # noqa: E402
import results  # noqa: E402

STEPS = 100
COLUMNS = ["first loss, mps", "last loss, mps", "mps to peer", "peer to itself, 1e-7 off"]


def networks(device: str) -> dict:
    """Small batches of the chart's kinds of networks, so that a CPU can follow."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, ResNetConfig, ResNetForImageClassification

    def resnet(device):
        images, labels = torch.randn(16, 3, 64, 64).to(device), torch.arange(16).to(device) % 10
        return ResNetForImageClassification(ResNetConfig(num_labels=10)), lambda m: m(images, labels=labels).loss

    def bert(device):
        config = BertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
        tokens, labels = torch.randint(0, 30000, (16, 64)).to(device), torch.arange(16).to(device) % 2
        return BertForSequenceClassification(config), lambda m: m(tokens, labels=labels).loss

    return {"ResNet50 of 16 x 64 x 64": resnet, "BERT of 4 layers": bert}


def curve(make, device: str, nudge: float) -> list[float]:
    import torch

    torch.manual_seed(0)
    model, loss_of = make(device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.0 + nudge)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).float().cpu().tolist()


def child(device: str) -> None:
    made = networks(device)
    nudges = (0.0,) if device == "mps" else (0.0, 1e-7)
    curves = {name: [curve(make, device, n) for n in nudges] for name, make in made.items()}
    print(json.dumps([results.device_facts(device), curves]))


def main() -> None:
    if sys.argv[1:2] == ["--device"]:
        child(sys.argv[2])
        return
    python = os.environ.get("ANYMPS_PEER_PYTHON")
    other, save, rows = "cuda" if python else "cpu", "--save" in sys.argv, {}
    sys.argv[1:] = []
    facts, ours = peer.child(sys.executable, "mps", os.environ)
    peer_facts, theirs = peer.child(python or sys.executable, other, peer.peer_environment(python))
    print(f"| network | first and last loss, mps | {other} | mps to {other} | {other} to itself, 1e-7 off |")
    print("|---|---|---|---|---|")
    for name, [mine] in ours.items():
        first, second = theirs[name]
        apart, spread = (max(abs(a - b) for a, b in zip(c, first)) / first[0] for c in (mine, second))
        rows[name] = [mine[0], mine[-1], apart, spread]
        print(
            f"| {name} | {mine[0]:.5f}, {mine[-1]:.5f} | {first[0]:.5f}, {first[-1]:.5f} | {apart:.1e} | {spread:.1e} |"
        )
    if save:
        results.save(facts, peer_facts, "Loss curves of 100 steps on fixed data", COLUMNS, rows)


if __name__ == "__main__":
    main()
