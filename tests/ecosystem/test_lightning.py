"""Lightning takes mps for accelerator "auto", "gpu" and "mps", in full and mixed precision."""

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from torch_anymps import patches

pytestmark = [pytest.mark.cuda_wheel, pytest.mark.usefixtures("mps", "no_fallback")]


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 3))
        self.losses = []

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.detach())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def data():
    torch.manual_seed(0)
    x = torch.randn(128, 8)
    return torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))


def fit(folder, **options):
    lightning.seed_everything(0, verbose=False)
    model = Classifier()
    trainer = lightning.Trainer(
        max_epochs=4,
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=folder, save_last=True)],
        **options,
    )
    loader = torch.utils.data.DataLoader(data(), batch_size=32)
    trainer.fit(model, loader, torch.utils.data.DataLoader(data(), batch_size=64))
    return trainer, model


@pytest.mark.parametrize(
    ("accelerator", "precision"),
    [("auto", "32-true"), ("gpu", "32-true"), ("mps", "32-true"), ("mps", "16-mixed"), ("auto", "bf16-mixed")],
)
def test_trains(tmp_path, accelerator, precision):
    trainer, model = fit(tmp_path, accelerator=accelerator, precision=precision)
    assert trainer.strategy.root_device.type == "mps"
    losses = [loss.item() for loss in model.losses]
    assert model.losses[0].device.type == "mps"
    assert losses[-1] < 0.8 * losses[0]

    _, on_cpu = fit(tmp_path / "cpu", accelerator="cpu")
    rel = 1e-3 if precision == "32-true" else 0.05
    assert losses == pytest.approx([loss.item() for loss in on_cpu.losses], rel=rel)


def test_checkpoint_resumes(tmp_path):
    _, model = fit(tmp_path, accelerator="mps")
    loaded = Classifier.load_from_checkpoint(tmp_path / "last.ckpt")
    for ours, theirs in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.cpu(), theirs.detach().cpu())


def test_fabric(tmp_path):
    fabric = lightning.Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
    assert fabric.device.type == "mps"
    net = nn.Linear(8, 3)
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    x, y = (t.to(fabric.device) for t in data()[:32])
    first = None
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        fabric.backward(loss)
        optimizer.step()
        first = first or loss.item()
    assert loss.item() < first


def test_the_patch_can_be_undone(run_python):
    source = """
import torch, torch_anymps
from torch_anymps import patches
import lightning
from lightning.pytorch.accelerators import MPSAccelerator
print(MPSAccelerator.is_available())
patches.undo("lightning")
print(MPSAccelerator.is_available(), [p.name for p in patches.registered() if p.name == "lightning"])
"""
    done = run_python(source)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["True", "False []"]
    assert {p.name for p in patches.registered()} >= {"lightning", "torch_mps", "torch_storage"}


def test_pytorch_profiler_shows_times_of_the_device(tmp_path):
    from lightning.pytorch.profilers import PyTorchProfiler

    profiler = PyTorchProfiler(dirpath=tmp_path, filename="profile", schedule=torch.profiler.schedule(
        wait=1, warmup=1, active=3), record_shapes=False)  # fmt: skip
    fit(tmp_path, profiler=profiler)
    [table] = tmp_path.glob("fit-profile*.txt")
    text = table.read_text()
    assert "Self MPS" in text and "[pl][profile]" in text
    kernels = [e for e in profiler.function_events if e.device_type.name == "CUDA" and not e.is_user_annotation]
    assert sum(e.device_time_total for e in kernels) > 0
