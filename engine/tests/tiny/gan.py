"""A convolutional GAN on images: transposed and strided convolutions, for the golden
runs."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from seedbed.methods import Make, Method
from seedbed.pipeline.source import Batch


class Images(Dataset[tuple[Tensor, int]]):
    """Noisy bright rectangles on a dark background, (1, 28, 28) in [-1, 1]."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.rand(1, 28, 28) - 1
        image[:, 8 : 12 + index % 8, 8:20] += 1
        return image, 0


class Networks(nn.Module):
    """A generator of images, and a critic of them with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        codes = nn.Linear(16, 392), nn.ReLU(), nn.Unflatten(1, (8, 7, 7))
        up = (
            nn.ConvTranspose2d(8, 8, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1),
        )
        self.generator = nn.Sequential(*codes, *up, nn.Tanh())
        down = nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Dropout(dropout)
        features = nn.Conv2d(8, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten()
        self.critic = nn.Sequential(*down, *features, nn.Linear(392, 1))


class GAN(Method):
    """Trains the critic, then the generator, in every step."""

    def configure_optimizers(
        self, model: Any, make: Make
    ) -> dict[str, torch.optim.Optimizer]:
        generator = make(model.generator.named_parameters(), lr=0.0002)
        return {"critic": make(model.critic.named_parameters()), "generator": generator}

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        fake = model.generator(torch.randn(len(batch.inputs), 16))
        if optimizer == "generator":
            return F.softplus(-model.critic(fake)).mean()
        real = model.critic(batch.inputs)
        fake = model.critic(fake.detach())
        return F.softplus(-real).mean() + F.softplus(fake).mean()

    def validation_step(self, model: Any, batch: Batch) -> Any:
        return {"loss": F.softplus(-model.critic(batch.inputs))[:, 0]}
