"""Ultralytics YOLO made from its configuration: losses of a detection model, predictions, and its trainer on mps."""

import numpy as np
import pytest
import torch

from . import agree, library, train

ultralytics = library("ultralytics")
pytestmark = pytest.mark.usefixtures("mps", "no_fallback", "all_bits_of_f32")


def model():
    torch.manual_seed(0)
    return ultralytics.YOLO("yolov8n.yaml", verbose=False)


def test_losses():
    batch = {
        "img": torch.rand(2, 3, 64, 64),
        "cls": torch.tensor([[1.0], [5.0], [1.0]]),
        "bboxes": torch.tensor([[0.5, 0.5, 0.3, 0.4], [0.3, 0.6, 0.2, 0.2], [0.4, 0.4, 0.6, 0.5]]),
        "batch_idx": torch.tensor([0.0, 0.0, 1.0]),
    }
    net = model().model
    net.args = library("ultralytics.cfg").get_cfg()

    def loss_of(net):
        device = next(net.parameters()).device
        return net({k: v.to(device) for k, v in batch.items()})[0].sum()

    agree(lambda device: train(net, loss_of, device, steps=3, lr=1e-4))


def test_predicts():
    image = np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8)

    def run(device):
        found = model().predict(image, imgsz=96, conf=1e-6, max_det=20, device=device, verbose=False)[0]
        return found.boxes.xyxy, found.boxes.conf

    agree(run, tolerance=5e-3)


def test_trains(tmp_path):
    cv2 = library("cv2")
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    draw = np.random.default_rng(0)
    for i in range(4):
        cv2.imwrite(str(tmp_path / f"images/{i}.png"), draw.integers(0, 255, (64, 64, 3), dtype=np.uint8))
        (tmp_path / f"labels/{i}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (tmp_path / "data.yaml").write_text(f"path: {tmp_path}\ntrain: images\nval: images\nnames: {{0: thing}}\n")
    options = {"imgsz": 64, "epochs": 1, "batch": 2, "workers": 0, "plots": False, "amp": False, "verbose": False}
    trained = model()
    trained.train(data=str(tmp_path / "data.yaml"), device="mps", project=str(tmp_path), **options)
    assert trained.trainer.device.type == "mps"
    assert all(np.isfinite(v) for v in trained.trainer.metrics.values()) and len(trained.trainer.metrics) > 3
