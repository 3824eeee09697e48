"""docs/examples/gan.md, the first, with Lightning: several optimizers need manual optimization."""

import lightning
import torch
import torch.nn.functional as F
from common import digits, fit, loaders

from project.gan import Networks


class GAN(lightning.LightningModule):
    def __init__(self, width: int, codes: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = Networks(width, codes)

    def configure_optimizers(self):
        critic = torch.optim.AdamW(self.model.critic.parameters(), 0.0002, (0.5, 0.999))
        generator = torch.optim.AdamW(self.model.generator.parameters(), 0.0002, (0.5, 0.999))
        return critic, generator

    def training_step(self, batch, index):
        critic, generator = self.optimizers()

        self.toggle_optimizer(critic)
        real = self.model.critic(batch[0])
        fake = self.model.critic(self.model.draw(batch[0]).detach())
        loss = F.softplus(-real).mean() + F.softplus(fake).mean()
        critic.zero_grad()
        self.manual_backward(loss)
        critic.step()
        self.untoggle_optimizer(critic)
        self.log_dict({"critic_loss": loss, "real": real.mean(), "fake": fake.mean()})

        self.toggle_optimizer(generator)
        loss = F.softplus(-self.model.critic(self.model.draw(batch[0]))).mean()
        generator.zero_grad()
        self.manual_backward(loss)
        generator.step()
        self.untoggle_optimizer(generator)
        self.log("generator_loss", loss)

    def validation_step(self, batch, index):
        real, fake = self.model.critic(batch[0]), self.model.critic(self.model.draw(batch[0]))
        self.log("loss", (F.softplus(-real) + F.softplus(fake)).mean())


if __name__ == "__main__":
    fit(GAN(width=128, codes=32), loaders(digits(), digits("validation")))
