"""docs/examples/self-supervised.md, SimCLR, with Lightning."""

import lightning
import torch
import torch.nn.functional as F
from common import digits, fit, loaders
from torch.utils.data import Dataset
from torchmetrics.utilities import dim_zero_cat
from torchvision.transforms import v2

from project.simclr import Encoder


class Views(Dataset):
    """Two views of each digit, (2, 1, 28, 28), and its class."""

    def __init__(self, split: str) -> None:
        self.digits = digits(split)
        self.augment = v2.RandomAffine(10, translate=(0.07, 0.07))

    def __len__(self):
        return len(self.digits)

    def __getitem__(self, index):
        image, label = self.digits[index]
        return torch.stack([self.augment(image), self.augment(image)]), label


class SimCLR(lightning.LightningModule):
    def __init__(self, model, temperature: float) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature

    def training_step(self, batch, index):
        points = self.model(batch[0].flatten(0, 1))  # both views of an image are neighbours
        count = torch.arange(len(points), device=points.device)
        others = (points @ points.T / self.temperature).fill_diagonal_(-torch.inf)
        loss = F.cross_entropy(others, count ^ 1)
        self.log("train_loss", loss)
        return loss

    def on_validation_epoch_start(self):
        self.features, self.labels = [], []

    def validation_step(self, batch, index):
        self.features.append(self.model.features(batch[0][:, 0]))
        self.labels.append(batch[1])

    def on_validation_epoch_end(self):
        features = self.all_gather(dim_zero_cat(self.features)).reshape(-1, 64)
        labels = self.all_gather(dim_zero_cat(self.labels)).flatten()
        points = F.normalize(features)
        nearest = (points @ points.T).fill_diagonal_(-1).argmax(dim=1)
        self.log("neighbours", (labels[nearest] == labels).float().mean(), rank_zero_only=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.006)


if __name__ == "__main__":
    module = SimCLR(Encoder(width=64, outputs=32), temperature=0.2)
    fit(module, loaders(Views("train"), Views("validation")), monitor="neighbours", mode="max")
