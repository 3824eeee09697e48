"""The recorder as a callback in real trainers of Lightning and transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed
from transformers import Trainer as HuggingTrainer

from seedbed import record
from seedbed.integrations.lightning import RecorderCallback
from seedbed.integrations.transformers import RecorderCallback as HuggingCallback
from seedbed.loading import seeded_loader
from seedbed.names import STAGES
from seedbed.testing import difference
from tests import pages

FAULT_AT = 11
STEPS = {"lightning_run": 16, "transformers_run": 8}
DATA = TensorDataset(torch.arange(512.0).view(64, 8) / 512, torch.arange(64) % 3)


class Model(LightningModule):  # type: ignore[misc]
    """A network with dropout and batch normalisation, and a fault planted at one
    step."""

    def __init__(self, lr: float = 0.01, fault: str = "") -> None:
        super().__init__()
        self.save_hyperparameters(ignore=["fault"])
        self.fault = fault
        layers = (
            nn.Linear(8, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, 3),
        )
        self.net = nn.Sequential(*layers)
        self.steps = 0

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.steps += 1
        inputs, targets = batch
        self.spoil(batch=inputs)
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        self.spoil(loss=loss)
        return loss

    def on_after_backward(self) -> None:
        self.spoil(gradients=self.net[0].weight.grad)

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        super().optimizer_step(*arguments, **options)
        weight = self.net[0].weight
        moment = self.optimizers().state[weight]["exp_avg"]
        self.spoil(weights=weight, buffers=self.net[1].running_mean, optimizer=moment)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
        self.log("val/acc", torch.tensor(0.5))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

    def spoil(self, **tensors: torch.Tensor) -> None:
        """Change one number of the tensor in the faulty stage, at step FAULT_AT."""
        if self.steps == FAULT_AT and self.fault in tensors:
            tensors[self.fault].data.view(-1)[0] += 1


def fit(
    folder: Path,
    fault: str = "",
    checkpoint: Path | None = None,
    callbacks: Any = (),
    **how: Any,
) -> None:
    """Train for two epochs of eight batches with Lightning and a seeded loader."""
    seed_everything(0)
    loader = seeded_loader(DATA, 8, seed=0)

    def ids(step: int) -> Any:
        return loader.ids(step) + (fault == "sample_ids" and step == FAULT_AT)

    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    usual = {"max_epochs": 2, "gradient_clip_val": 0.1, "enable_checkpointing": False}
    recorders = [RecorderCallback(folder, seed=0, ids=ids), *callbacks]
    trainer = Trainer(accelerator="cpu", callbacks=recorders, **quiet, **usual | how)
    trainer.fit(Model(fault=fault), loader, DataLoader(DATA, 16), ckpt_path=checkpoint)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lightning") / "a"
    fit(folder)
    return folder


@pytest.mark.parametrize("name", STEPS)
def test_an_example_of_the_page(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs have the same bits, and all of their steps are recorded."""
    monkeypatch.chdir(tmp_path)
    for folder in "ab":
        pages.run_here(monkeypatch, tmp_path, name, tmp_path / folder, tmp_path / "out")
    assert difference(tmp_path / "a", tmp_path / "b") is None
    rows = record.read_fingerprints(tmp_path / "a")
    assert len(rows) == STEPS[name]
    stages = set(STAGES) - {"buffers", "sample_ids"}
    assert all(row[stage] for row in rows for stage in stages)
    assert record.read_summary(tmp_path / "a")["status"] == "finished"


@pytest.mark.parametrize("stage", STAGES)
def test_compare_names_step_and_stage_of_a_planted_fault(
    run: Path, tmp_path: Path, stage: str
) -> None:
    fit(tmp_path / "b", stage)
    assert difference(run, tmp_path / "b") == f"step {FAULT_AT}: {stage}"


def test_a_run_resumed_in_the_middle_of_an_epoch(run: Path, tmp_path: Path) -> None:
    """It has the bits of an uninterrupted run: Lightning's checkpoint holds the
    loader's step. Hyperparameters and logged validation metrics are in the record."""
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1)
    fit(tmp_path / "b", callbacks=[saving], max_steps=6, enable_checkpointing=True)
    (checkpoint,) = tmp_path.glob("*.ckpt")
    fit(tmp_path / "b", checkpoint=checkpoint)
    rows = [record.read_fingerprints(folder) for folder in (run, tmp_path / "b")]
    assert rows[0] == rows[1]
    assert record.read_config(run).lr == 0.01
    summary = record.read_summary(tmp_path / "b")
    assert summary["resumes"][0]["step"] == 5
    assert summary["metrics"]["validation_acc"] == 0.5
    assert summary["metrics"]["validation_loss"] > 0
    assert (run / "loss_curve.png").exists()


def hugging(folder: Path, out: Path, fault: bool = False, resume: bool = False) -> None:
    """Train a tiny language model with dropout, using the Trainer of transformers."""
    set_seed(0)
    size = {
        "vocab_size": 32,
        "n_positions": 16,
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
    }
    network = GPT2LMHeadModel(GPT2Config(**size))
    texts = [[(i * j) % 32 for j in range(16)] for i in range(64)]
    data = [{"input_ids": text, "labels": text} for text in texts]
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True}
    steps = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 4}
    batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    arguments = TrainingArguments(str(out), **quiet, **steps, **batches)
    sets = {"train_dataset": data, "eval_dataset": data[:8]}
    recorder = HuggingCallback(folder, seed=0)
    trainer = HuggingTrainer(network, arguments, callbacks=[recorder], **sets)

    def nudge(*_: Any) -> None:
        if fault and trainer.state.global_step == 3:
            next(network.parameters()).grad.view(-1)[0] += 1

    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(nudge)
    trainer.train(resume_from_checkpoint=resume)


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    """A planted fault is named; accumulated batches are one step; a resumed run repeats
    the steps after its checkpoint."""
    run = tmp_path / "a"
    hugging(run, tmp_path / "out")
    hugging(tmp_path / "b", tmp_path / "out_b", fault=True)
    assert difference(run, tmp_path / "b") == "step 4: gradients"
    rows = record.read_metrics(run)
    assert [row["phase"] for row in rows].count("train") == 6
    assert [row["step"] for row in rows if row["phase"] == "validation"] == ["3", "6"]
    assert (
        next(float(row["learning_rate"]) for row in rows if row["learning_rate"])
        == 5e-5
    )
    assert record.read_config(run).max_steps == 6
    whole = record.read_fingerprints(run)
    (tmp_path / "out" / "checkpoint-6").rename(tmp_path / "later")
    hugging(run, tmp_path / "out", resume=True)
    assert record.read_fingerprints(run) == whole
    assert record.read_summary(run)["resumes"][0]["step"] == 4
