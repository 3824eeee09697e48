"""docs/examples/fine-tuning.md with Lightning."""

import sys

import lightning
import torch
import torch.nn.functional as F
from common import digits, fit, loaders
from lightning.pytorch.callbacks import LearningRateMonitor

from project.models.cnn import CNN


class FineTuning(lightning.LightningModule):
    def __init__(self, file: str, frozen_steps: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = CNN((1, 28, 28), 10, [16, 32, 64], dropout=0.0)
        weights = torch.load(file, weights_only=True)["model"]
        body = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
        self.model.load_state_dict(body, strict=False)

    def configure_optimizers(self):
        named = dict(self.model.named_parameters())
        head = [name for name in named if name.startswith("head.")]
        biases = [name for name in named if name.endswith("bias") and name not in head]
        body = [name for name in named if name not in {*head, *biases}]
        groups = [
            {"name": "head", "params": [named[name] for name in head]},
            {"name": "body", "params": [named[name] for name in body], "lr": 0.0006},
            {
                "name": "biases",
                "params": [named[name] for name in biases],
                "lr": 0.0006,
                "weight_decay": 0,
            },
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.006)
        factors = [self.head, self.body, self.body]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def head(self, step):
        return 1 - step / self.trainer.max_steps

    def body(self, step):
        return min(1, max(0, step - self.hparams.frozen_steps) / 100) * self.head(step)

    def on_train_batch_start(self, batch, index):
        for name, parameter in self.model.named_parameters():
            frozen = self.global_step < self.hparams.frozen_steps and not name.startswith("head.")
            parameter.requires_grad_(not frozen)

    def training_step(self, batch, index):
        images, labels = batch
        loss = F.cross_entropy(self.model(images), labels, label_smoothing=0.1)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        logits = self.model(images)
        self.log("loss", F.cross_entropy(logits, labels, label_smoothing=0.1))
        self.log("accuracy", (logits.argmax(dim=1) == labels).float().mean())


if __name__ == "__main__":
    module = FineTuning(sys.argv[1], frozen_steps=100)
    data = loaders(digits(), digits("validation"))
    fit(module, data, callbacks=[LearningRateMonitor("step")], monitor="accuracy", mode="max")
