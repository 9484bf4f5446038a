"""Two processes of Lightning, the second started by it. Each prints a line of JSON, with what it found by strategy.

two_of_lightning.py STRATEGY[,PRECISION] ...
"""

import contextlib
import logging
import sys
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from report import report
from torch.distributed.fsdp import FullyShardedDataParallel

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, _):
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def train(strategy: str, precision: str | None = None) -> dict:
    model = Model()
    trainer = Trainer(accelerator="mps", devices=2, strategy=strategy, precision=precision, max_epochs=1, **options)
    trainer.fit(model, torch.utils.data.DataLoader(torch.arange(24.0).view(8, 3) / 24, batch_size=2))
    with contextlib.ExitStack() as stack:
        if strategy == "fsdp":
            stack.enter_context(FullyShardedDataParallel.summon_full_params(trainer.strategy.model))
        weights = [value for p in model.parameters() for value in p.flatten().tolist()]
    return {"weights": weights, "processes": trainer.world_size, "device": str(trainer.strategy.root_device)}


results = {how: train(*how.split(",")) for how in sys.argv[1:]}
report(torch.distributed.get_rank(), **results)
