"""What every example has and no count: loaders of the same digits, and a trainer that is short."""

import os
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset

from project.data.mnist5k import MNIST5k

STEPS = int(os.environ.get("STEPS", "20"))


def loaders(train: Any, validation: Any, batch_size: int = 64, **options: Any) -> list[DataLoader]:
    """Return loaders of a training and of a validation set."""
    return [
        DataLoader(train, batch_size, shuffle=True, drop_last=True, **options),
        DataLoader(validation, 500, **options),
    ]


def digits(split: str = "train") -> Dataset:
    """Return the data set of data=mnist5k."""
    return MNIST5k(split, 0)


def fit(module: Any, data: list[DataLoader], monitor: str = "loss", **options: Any) -> Any:
    """Train for some steps; the best weights are kept."""
    options.setdefault("callbacks", [])
    options["callbacks"] += [ModelCheckpoint(monitor=monitor, mode=options.pop("mode", "min"))]
    options.setdefault("max_steps", STEPS)
    options.setdefault("gradient_clip_val", 1.0 if module.automatic_optimization else None)
    logger = CSVLogger(os.environ.get("OUT", "runs"), name=type(module).__name__)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        log_every_n_steps=1,
        val_check_interval=min(
            STEPS, len(data[0]) if hasattr(data[0].dataset, "__len__") else STEPS
        ),
        check_val_every_n_epoch=None,
        logger=logger,
        enable_progress_bar=False,
        **options,
    )
    torch.set_num_threads(1)
    lightning.seed_everything(0, workers=True)
    trainer.fit(module, *data)
    return trainer
