"""A small convolutional GAN on images, as in docs/examples/gan.md."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seedbed.data.source import Batch
from seedbed.methods import Make, Method


class Networks(nn.Module):
    """A generator of images, (B, 1, 28, 28), and a critic of them with dropout."""

    def __init__(self, dropout: float, channels: int = 8, codes: int = 16) -> None:
        super().__init__()
        self.codes = codes
        self.generator = nn.Sequential(
            nn.Linear(codes, channels * 7 * 7),
            nn.ReLU(),
            nn.Unflatten(1, (channels, 7, 7)),
            nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )
        self.critic = nn.Sequential(
            nn.Conv2d(1, channels, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Dropout(dropout),
            nn.Conv2d(channels, channels, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(channels * 7 * 7, 1),
        )

    def draw(self, like: Tensor) -> Tensor:
        """Return as many generated images as there are others."""
        images: Tensor = self.generator(torch.randn(len(like), self.codes, device=like.device))
        return images


class GAN(Method):
    """Train the critic, then the generator, in every step."""

    def configure_optimizers(self, model: Any, make: Make) -> dict[str, torch.optim.Optimizer]:
        return {
            "critic": make(model.critic.named_parameters()),
            "generator": make(model.generator.named_parameters(), lr=0.0002),
        }

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        fake = model.draw(batch.inputs)
        if optimizer == "generator":
            return F.softplus(-model.critic(fake)).mean()
        real, fake = model.critic(batch.inputs), model.critic(fake.detach())
        return {"loss": F.softplus(-real).mean() + F.softplus(fake).mean(), "real": real.mean()}

    def validation_step(self, model: Any, batch: Batch) -> Any:
        real, fake = model.critic(batch.inputs), model.critic(model.draw(batch.inputs))
        return {"loss": (F.softplus(-real) + F.softplus(fake))[:, 0]}
