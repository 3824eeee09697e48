"""docs/examples/vae.md with Lightning."""

import lightning
import torch
import torch.nn.functional as F
from common import digits, fit, loaders

from project.vae import VAE


class ELBO(lightning.LightningModule):
    def __init__(self, width: int, codes: int, beta: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = VAE(width, codes)

    def parts(self, batch):
        images, mean, log_variance = self.model(batch[0])
        error = F.mse_loss(images, batch[0].flatten(1), reduction="none").sum(dim=1).mean()
        kl = (mean**2 + log_variance.exp() - log_variance - 1).sum(dim=1).mean() / 2
        return {"loss": error + self.hparams.beta * kl, "reconstruction": error, "kl": kl}

    def training_step(self, batch, index):
        parts = self.parts(batch)
        self.log_dict({f"train_{name}": value for name, value in parts.items()})
        return parts["loss"]

    def validation_step(self, batch, index):
        self.log_dict(self.parts(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.006)


if __name__ == "__main__":
    fit(ELBO(width=128, codes=16, beta=1.0), loaders(digits(), digits("validation")))
