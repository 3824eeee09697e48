"""docs/examples/self-supervised.md, MoCo, with Lightning."""

import torch
import torch.nn.functional as F
from byol import BYOL
from common import fit, loaders
from simclr import Views

from project.moco import Queue


class MoCo(BYOL):
    def __init__(self, model, decay: float, temperature: float) -> None:
        super().__init__(model, decay)
        self.temperature = temperature

    def training_step(self, batch, index):
        first, second = batch[0].unbind(dim=1)
        points = self.model(first)
        with torch.no_grad():
            key = self.model.taught(second)
        same = (points * key).sum(dim=1, keepdim=True)
        logits = torch.cat([same, points @ self.model.keys.T], dim=1) / self.temperature
        self.model.keys = torch.cat([key, self.model.keys])[: len(self.model.keys)]
        loss = F.cross_entropy(logits, torch.zeros_like(batch[1]))
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        parts = [*self.model.features.parameters(), *self.model.projection.parameters()]
        return torch.optim.AdamW(parts, lr=0.006)


if __name__ == "__main__":
    module = MoCo(Queue(width=64, outputs=32, keys=1024), decay=0.99, temperature=0.2)
    fit(module, loaders(Views("train"), Views("validation")), monitor="neighbours", mode="max")
