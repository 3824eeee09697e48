"""docs/examples/self-supervised.md, VQ-VAE, with Lightning."""

import lightning
import torch
import torch.nn.functional as F
from common import digits, fit, loaders

from project.vq_vae import VQVAE


class Commitment(lightning.LightningModule):
    def __init__(self, entries: int, width: int, decay: float) -> None:
        super().__init__()
        self.model = VQVAE(entries, width, decay)

    def parts(self, batch):
        images, commitment = self.model(batch[0])
        error, commitment = F.mse_loss(images, batch[0]), commitment.mean()
        return {"loss": error + 0.25 * commitment, "image": error, "commitment": commitment}

    def training_step(self, batch, index):
        parts = self.parts(batch)
        self.log_dict({f"train_{name}": value for name, value in parts.items()})
        return parts["loss"]

    def validation_step(self, batch, index):
        self.log_dict(self.parts(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.006)


if __name__ == "__main__":
    module = Commitment(entries=64, width=16, decay=0.99)
    fit(module, loaders(digits(), digits("validation")))
