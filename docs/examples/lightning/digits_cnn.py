"""The plain classifier that `python train.py` trains, for what follows; no count has it."""

import lightning
import torch
import torch.nn.functional as F

from project.models.cnn import CNN


class Digits(lightning.LightningModule):
    """Seedbed's CNN as a LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.model = CNN((1, 28, 28), 10, [16, 32, 64], dropout=0.0)

    def training_step(self, batch, index):
        """Return the loss of a batch."""
        loss = F.cross_entropy(self.model(batch[0]), batch[1], label_smoothing=0.1)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        """Log loss and accuracy of a batch."""
        logits = self.model(batch[0])
        self.log("loss", F.cross_entropy(logits, batch[1], label_smoothing=0.1))
        self.log("accuracy", (logits.argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=0.006)
