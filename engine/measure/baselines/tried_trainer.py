"""transformers' Trainer with full_determinism, for `templates.py`."""

import json
import sys

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
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(nn.Module):
    """The network, which also returns its loss."""

    def __init__(self, settings: dict) -> None:
        super().__init__()
        self.net = network(settings)

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss and the outputs of a batch."""
        logits = self.net(images)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class AfterStep(TrainerCallback):
    """Do what is tried after each step."""

    def __init__(self, settings: dict) -> None:
        self.settings = settings

    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        """Do what is tried."""
        after_step(state.global_step, self.settings)


def collate(samples: list) -> dict[str, Tensor]:
    """Return a batch."""
    images, labels = zip(*samples, strict=True)
    return {"images": torch.stack(images), "labels": torch.tensor(labels)}


def main() -> None:
    """Train."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        settings["out"],
        seed=settings["seed"],
        full_determinism=True,
        learning_rate=settings["learning_rate"],
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE // settings["processes"],
        per_device_eval_batch_size=256,
        dataloader_num_workers=settings["workers"],
        eval_strategy="epoch" if settings["validate"] else "no",
        save_steps=CHECKPOINT_EVERY,
        enable_jit_checkpoint=True,
        label_names=["labels"],
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        args=arguments,
        model_init=lambda: Model(settings),
        data_collator=collate,
        train_dataset=training(),
        eval_dataset=validation(),
        callbacks=[AfterStep(settings)],
    )
    trainer.train(resume_from_checkpoint=settings["resume"])
    if trainer.is_world_process_zero():
        write_weights(trainer.model.net, settings["out"])


if __name__ == "__main__":
    main()
