"""docs/examples/self-supervised.md, BYOL, with Lightning."""

import torch
import torch.nn.functional as F
from common import fit, loaders
from simclr import SimCLR, Views
from torch import nn

from project.byol import Pupil


class BYOL(SimCLR):
    def __init__(self, model, decay: float) -> None:
        super().__init__(model, temperature=1.0)
        self.decay = decay

    def training_step(self, batch, index):
        first, second = batch[0].unbind(dim=1)
        with torch.no_grad():
            taught = self.model.taught(torch.cat([second, first]))
        predicted = F.normalize(self.model.predictor(self.model(torch.cat([first, second]))))
        loss = 2 - 2 * (predicted * taught).sum(dim=1).mean()
        self.log("train_loss", loss)
        return loss

    @torch.no_grad()
    def on_train_batch_end(self, outputs, batch, index):
        student = nn.ModuleList([self.model.features, self.model.projection])
        for old, new in zip(self.model.teacher.parameters(), student.parameters(), strict=True):
            old.lerp_(new, 1 - self.decay)


if __name__ == "__main__":
    module = BYOL(Pupil(width=64, outputs=32), decay=0.99)
    fit(module, loaders(Views("train"), Views("validation")), monitor="neighbours", mode="max")
