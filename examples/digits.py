"""Trains a convolutional net on scikit-learn's handwritten digits on mps, and the same on the CPU beside it.

1,797 real images of 8 x 8 pixels, a fifth of them held out. Prints the losses while it trains, then the accuracies and
the device; writes a picture with both loss curves, step times and some classified digits. Ends with an error when an
op ran on the CPU for lack of a kernel, when mps and CPU disagree, or below 97 % of correct answers.
"""

from __future__ import annotations

import argparse
import copy
import pathlib
import statistics
import sys
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

import torch_anymps

BATCH = 64
WANTED_ACCURACY = 0.97


class DigitNet(nn.Module):
    """Two convolutions with batch normalisation, two linear layers, dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 2 * 2, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x))


class Digits:
    """The data set, split once: images (n, 1, 8, 8) in 0..1 and labels (n,)."""

    def __init__(self) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        labels = torch.tensor(digits.target)
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
        held_out = len(images) // 5
        self.train = images[order[held_out:]], labels[order[held_out:]]
        self.test = images[order[:held_out]], labels[order[:held_out]]


def first_loss(model: nn.Module, digits: Digits, device: torch.device) -> float:
    """Loss of the first batch without dropout, which draws different numbers on each device."""
    model = copy.deepcopy(model).to(device)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    images, labels = (t[:BATCH].to(device) for t in digits.train)
    return nn.functional.cross_entropy(model(images), labels).item()


def train(model: nn.Module, digits: Digits, device: torch.device, epochs: int) -> tuple[list[float], list[float]]:
    """Trains in place; returns the losses and the seconds of all steps."""
    model.to(device).train()
    images, labels = (t.to(device) for t in digits.train)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=5e-3, total_steps=epochs * (-(-len(images) // BATCH))
    )
    shuffle = torch.Generator().manual_seed(0)  # the same batches on both devices
    losses, seconds = [], []
    with tqdm(total=epochs * len(images), unit="samples", desc=f"{device.type:>4}", file=sys.stdout) as bar:
        for _ in range(epochs):
            order = torch.randperm(len(images), generator=shuffle).to(device)
            for batch in order.split(BATCH):
                start = time.perf_counter()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
                seconds.append(time.perf_counter() - start)
                bar.update(len(batch))
                bar.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
    return losses, seconds


@torch.no_grad()
def predict(model: nn.Module, digits: Digits) -> torch.Tensor:
    device = next(model.parameters()).device
    return model.eval()(digits.test[0].to(device)).argmax(1).cpu()


def draw(path: pathlib.Path, name: str, runs: dict, digits: Digits, predicted: torch.Tensor) -> None:
    """The picture: both loss curves, step times, sixteen held-out digits with what the net says."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(12, 7), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(3, 2))
    curves, times = top.subplots(1, 2)
    for device, (losses, seconds) in runs.items():
        curves.plot(losses, label=device, alpha=0.8)
        times.plot([1e3 * s for s in seconds], label=f"{device}: median {1e3 * statistics.median(seconds):.1f} ms")
    curves.set(title=f"training loss ({name})", xlabel="step", yscale="log")
    times.set(title="time of a step (ms)", xlabel="step", yscale="log")
    curves.legend()
    times.legend()
    for axis, image, label, answer in zip(
        bottom.subplots(2, 8).flat, digits.test[0], digits.test[1].tolist(), predicted.tolist(), strict=False
    ):
        axis.imshow(image[0], cmap="gray_r")
        axis.set_title(answer, color="green" if answer == label else "red")
        axis.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--picture", type=pathlib.Path, default=pathlib.Path(__file__).parent / "out" / "digits.png")
    arguments = parser.parse_args()
    if not torch.backends.mps.is_available():
        print("mps is not available; `python -m torch_anymps.info` says why.", file=sys.stderr)
        return 1

    name = torch.backends.mps.get_name()
    print(f"device: {name}")
    digits = Digits()
    torch.manual_seed(0)
    untrained = DigitNet()
    devices = torch.device("mps"), torch.device("cpu")
    first = {device.type: first_loss(untrained, digits, device) for device in devices}
    runs, correct, predicted = {}, {}, {}
    for device in devices:
        torch.manual_seed(0)
        model = copy.deepcopy(untrained)
        runs[device.type] = train(model, digits, device, arguments.epochs)
        predicted[device.type] = predict(model, digits)
        correct[device.type] = (predicted[device.type] == digits.test[1]).float().mean().item()

    for device, (losses, seconds) in runs.items():
        print(
            f"{device:>4}: accuracy {correct[device]:.2%}, first loss {first[device]:.6f}, "
            f"last loss {losses[-1]:.4f}, median step {1e3 * statistics.median(seconds):.1f} ms"
        )
    draw(arguments.picture, name, runs, digits, predicted["mps"])
    print(f"picture: {arguments.picture}")
    return report(first, correct)


def report(first: dict[str, float], correct: dict[str, float]) -> int:
    """Prints what is not as it must be; returns the exit status."""
    faults = []
    if torch_anymps.fallbacks():
        faults.append(f"ops ran on the CPU for lack of a kernel: {torch_anymps.fallbacks()}")
    if abs(first["mps"] - first["cpu"]) > 1e-4:
        faults.append(f"the first losses differ by more than 1e-4: {first}")
    if correct["mps"] < WANTED_ACCURACY:
        faults.append(f"accuracy {correct['mps']:.2%} is below {WANTED_ACCURACY:.0%}")
    if abs(correct["mps"] - correct["cpu"]) > 0.01:
        faults.append(f"the accuracies differ by more than a point: {correct}")
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
