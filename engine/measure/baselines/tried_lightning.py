"""Lightning as its documentation advises for reproducible training, for `templates.py`.

seed_everything(workers=True), deterministic=True, checkpoints by step, torchdata's stateful loader
to resume in the middle of an epoch, and a checkpoint when an exception ends the training.
"""

import json
import sys
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from digits import (
    BATCH_SIZE,
    CHECKPOINT_EVERY,
    EPOCHS,
    after_step,
    network,
    training,
    validation,
    write_weights,
)
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader


class Data(lightning.LightningDataModule):
    """The digits; the batch is divided among the processes."""

    def __init__(self, workers: int, loader: type = DataLoader) -> None:
        super().__init__()
        self.workers, self.loader = workers, loader

    def train_dataloader(self) -> DataLoader:
        """Return the loader of the training set."""
        size = BATCH_SIZE // self.trainer.world_size
        return self.loader(training(), batch_size=size, shuffle=True, num_workers=self.workers)

    def val_dataloader(self) -> DataLoader:
        """Return the loader of the validation set."""
        return DataLoader(validation(), 256, num_workers=self.workers)


class Module(lightning.LightningModule):
    """The network as a LightningModule."""

    def __init__(self, settings: dict) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = network(settings)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the loss of a batch."""
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.settings["learning_rate"])


class AfterStep(lightning.Callback):
    """Do what is tried after each step, and write the weights at the end."""

    def __init__(self, settings: dict) -> None:
        self.settings = settings

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        """Do what is tried."""
        after_step(trainer.global_step, self.settings)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Write the weights."""
        if trainer.is_global_zero:
            write_weights(module.net, self.settings["out"])


def main() -> None:
    """Train."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    lightning.seed_everything(settings["seed"], workers=True)
    from torchdata.stateful_dataloader import StatefulDataLoader

    checkpoints = Path(settings["out"], "checkpoints")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=settings["processes"],
        strategy="ddp" if settings["processes"] > 1 else "auto",
        deterministic=True,
        max_epochs=EPOCHS,
        check_val_every_n_epoch=1 if settings["validate"] else EPOCHS,
        logger=CSVLogger(settings["out"]),
        enable_progress_bar=False,
        callbacks=[
            AfterStep(settings),
            ModelCheckpoint(checkpoints, every_n_train_steps=CHECKPOINT_EVERY, save_last=True),
            OnExceptionCheckpoint(checkpoints),
        ],
    )
    name = "on_exception.ckpt" if (checkpoints / "on_exception.ckpt").exists() else "last.ckpt"
    trainer.fit(
        Module(settings),
        datamodule=Data(settings["workers"], StatefulDataLoader),
        ckpt_path=checkpoints / name if settings["resume"] else None,
        weights_only=False,
    )


if __name__ == "__main__":
    main()
