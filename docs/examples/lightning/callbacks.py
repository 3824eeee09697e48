"""docs/examples/callbacks.md with Lightning."""

import lightning
import torch
from common import digits, fit, loaders
from digits_cnn import Digits
from torchvision.utils import save_image


class GradientNorms(lightning.Callback):
    def __init__(self) -> None:
        self.largest = 0.0

    def on_before_optimizer_step(self, trainer, module, optimizer):
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
        self.largest = max(self.largest, norm)
        module.log("gradient_norm", norm)
        module.log("largest_gradient_norm", self.largest)

    def state_dict(self):
        return {"largest": self.largest}

    def load_state_dict(self, state):
        self.largest = state["largest"]


class Images(lightning.Callback):
    def on_validation_end(self, trainer, module):
        filters = next(module.parameters())
        save_image(filters, f"{trainer.log_dir}/filters_{trainer.global_step}.png", normalize=True)


if __name__ == "__main__":
    data = loaders(digits(), digits("validation"))
    fit(Digits(), data, callbacks=[GradientNorms(), Images()])
