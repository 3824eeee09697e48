"""The training of loop.py on torchvision's MNIST, with Lightning and its usual
callbacks."""

import json
import sys
import time
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from loop import loader
from project.models.cnn import CNN
from torch import Tensor


class Digits(lightning.LightningModule):
    """Seedbed's CNN as a LightningModule."""

    def __init__(self, model: dict, optimizer: dict) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = CNN(**model)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        outputs = self.model(x)
        loss = F.cross_entropy(outputs, y, label_smoothing=0.1)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), **self.hparams.optimizer)
        lr, steps = (
            self.hparams.optimizer["lr"],
            int(self.trainer.estimated_stepping_batches),
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, lr, steps, pct_start=0.25
        )
        each_step = {"scheduler": schedule, "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": each_step}


class Clock(lightning.Callback):
    """Writes the time at which each step ends to steps.txt."""

    def __init__(self, out: Path) -> None:
        self._ends = open(out / "steps.txt", "w", buffering=1)  # line-buffered

    def on_train_batch_end(self, *_: object) -> None:
        print(time.monotonic(), file=self._ends)


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    lightning.seed_everything(0, workers=True)
    out = Path(settings["out"])
    saving = ModelCheckpoint(monitor="train_loss", save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        max_steps=10**7,
        gradient_clip_val=1.0,
        logger=CSVLogger(out),
        callbacks=[Clock(out), saving, LearningRateMonitor()],
    )
    module = Digits(settings["model"], settings["optimizer"])
    trainer.fit(module, loader(settings))


if __name__ == "__main__":
    main()
