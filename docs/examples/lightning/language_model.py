"""docs/examples/language-model.md with Lightning."""

import lightning
import torch
import torch.nn.functional as F
from common import fit, loaders
from torchmetrics import MeanMetric
from torchmetrics.text import Perplexity

from project.data.sums import END, NO_TARGET, Sums, decode, encode, pad
from project.models.gpt import GPT


class LanguageModel(lightning.LightningModule):
    def __init__(self, prompts: list[str], length: int, temperature: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = GPT(vocabulary=256, context=64, width=64, layers=2, heads=4, dropout=0.0)
        self.perplexity, self.exact = Perplexity(ignore_index=NO_TARGET), MeanMetric()

    def training_step(self, batch, index):
        inputs, targets = batch
        logits = self.model(inputs).flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=NO_TARGET)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        inputs, targets = batch
        logits = self.model(inputs)
        is_target = targets != NO_TARGET
        mistakes = ((logits.argmax(dim=2) != targets) & is_target).sum(dim=1)
        self.perplexity(logits, targets)
        self.exact((mistakes == 0).float())
        self.log_dict({"perplexity": self.perplexity, "exact": self.exact})

    def on_validation_epoch_end(self):
        self.log("loss", self.perplexity.compute().log())

    def on_train_end(self):
        self.model.eval()
        for prompt in self.hparams.prompts:
            tokens = encode(prompt).to(self.device)[None]
            written = self.model.generate(tokens, self.hparams.length, self.hparams.temperature)
            print(decode(written[0]).partition(END)[0])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.004, betas=(0.9, 0.99))
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.004, total_steps=steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


if __name__ == "__main__":
    module = LanguageModel(["17+25=", "8+5=", "99+99="], length=60, temperature=0.0)
    fit(module, loaders(Sums("train", 0, 2), Sums("validation", 0, 2), collate_fn=pad))
