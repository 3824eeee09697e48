"""docs/examples/gan.md, the second, with Lightning."""

import torch
from common import digits, fit, loaders
from gan import GAN


class WGANGP(GAN):
    def __init__(self, width: int, codes: int, critic_updates: int, penalty: float) -> None:
        super().__init__(width, codes)
        self.save_hyperparameters()

    def configure_optimizers(self):
        critic = torch.optim.AdamW(self.model.critic.parameters(), 0.0001, (0.0, 0.9))
        generator = torch.optim.AdamW(self.model.generator.parameters(), 0.0002, (0.0, 0.9))
        return critic, generator

    def training_step(self, batch, index):
        critic, generator = self.optimizers()

        self.toggle_optimizer(critic)
        for _ in range(self.hparams.critic_updates):
            fake = self.model.draw(batch[0]).detach()
            share = torch.rand(len(fake), 1, 1, 1, device=fake.device)
            between = torch.lerp(batch[0], fake, share).requires_grad_()
            outputs = self.model.critic(between).sum()
            (slopes,) = torch.autograd.grad(outputs, between, create_graph=True)
            penalty = ((slopes.flatten(1).norm(dim=1) - 1) ** 2).mean()
            distance = self.model.critic(batch[0]).mean() - self.model.critic(fake).mean()
            critic.zero_grad()
            self.manual_backward(self.hparams.penalty * penalty - distance)
            critic.step()
        self.untoggle_optimizer(critic)
        self.log_dict({"distance": distance, "slopes": penalty})

        self.toggle_optimizer(generator)
        loss = -self.model.critic(self.model.draw(batch[0])).mean()
        generator.zero_grad()
        self.manual_backward(loss)
        generator.step()
        self.untoggle_optimizer(generator)
        self.log("generator_loss", loss)

    def validation_step(self, batch, index):
        real, fake = self.model.critic(batch[0]), self.model.critic(self.model.draw(batch[0]))
        self.log("loss", (real - fake).mean())


if __name__ == "__main__":
    module = WGANGP(width=128, codes=32, critic_updates=5, penalty=10.0)
    fit(module, loaders(digits(), digits("validation")))
