"""docs/examples/diffusion.md with Lightning."""

import lightning
import torch
import torch.nn.functional as F
from common import fit, loaders

from project.diffusion import Denoiser, Spiral


class Diffusion(lightning.LightningModule):
    def __init__(self, width: int, steps: int, decay: float) -> None:
        super().__init__()
        self.model = Denoiser(width, steps, decay)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.model.network.parameters(), lr=0.006)

    def error(self, points):
        times = torch.randint(len(self.model.kept), points.shape[:1], device=points.device)
        kept, noise = self.model.kept[times, None], torch.randn_like(points)
        noisy = kept.sqrt() * points + (1 - kept).sqrt() * noise
        return F.mse_loss(self.model(noisy, times), noise)

    def training_step(self, batch, index):
        loss = self.error(batch[0])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("loss", self.error(batch[0]))

    def on_train_batch_end(self, outputs, batch, index):
        self.model.average.update_parameters(self.model.network)

    @torch.no_grad()
    def on_train_end(self):
        self.model.eval()
        print(f"five points drawn: {self.model.draw(5).tolist()}")


if __name__ == "__main__":
    fit(Diffusion(width=48, steps=100, decay=0.995), loaders(Spiral(4000), Spiral(1000), 128))
