"""docs/examples/samplers.md with Lightning."""

import lightning
import numpy as np
import torch
import torch.nn.functional as F
from common import digits, fit, loaders
from digits_cnn import Digits
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler

from project.data.adding import AddingProblem
from project.models.recurrent import Recurrent
from project.rare import Balanced5k
from project.sentences import Sentences, pad


class Adding(lightning.LightningModule):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.model = Recurrent((length, 2), 1, "lstm", hidden_size=64, layers=1, dropout=0.0)

    def training_step(self, batch, index):
        return F.mse_loss(self.model(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("loss", F.mse_loss(self.model(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.006)


class Buckets:
    def __init__(self, lengths: list[int], batch_length: int) -> None:
        self.lengths, self.batch_length, self.epoch = np.array(lengths), batch_length, 0
        self.size = len(self.batches(0))

    def set_epoch(self, epoch):
        self.epoch = epoch

    def batches(self, epoch):
        rng = np.random.default_rng(epoch)
        order = rng.permutation(len(self.lengths))
        order = order[np.argsort(-self.lengths[order], kind="stable")]
        batches = []
        while len(order):
            size = max(self.batch_length // self.lengths[order[0]], 1)
            batches.append(order[:size].tolist())
            order = order[size:]
        return [batches[index] for index in rng.permutation(len(batches))]

    def __iter__(self):
        return iter(self.batches(self.epoch))

    def __len__(self):
        return self.size


class Curriculum:
    def __init__(self, n: int, epochs: int) -> None:
        self.n, self.epochs, self.epoch = n, epochs, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        easy = max(64, min(self.n, self.n * (self.epoch + 1) // self.epochs))
        rng = np.random.default_rng(self.epoch)
        return iter(np.sort(rng.integers(easy, size=(self.n // 64, 64))).flatten().tolist())

    def __len__(self):
        return self.n


if __name__ == "__main__":
    rare = Balanced5k("train", 0)
    sampler = WeightedRandomSampler(torch.as_tensor(rare.weights()), len(rare))
    fit(Digits(), [DataLoader(rare, 64, sampler=sampler), loaders(rare, digits("validation"))[1]])

    sentences, validation = Sentences(1000), DataLoader(Sentences(200), 100, collate_fn=pad)
    buckets = Buckets(sentences.lengths, 1000)
    train = DataLoader(sentences, batch_sampler=buckets, collate_fn=pad)
    fit(Adding(60), [train, validation])

    adding = [AddingProblem(split, 0, 2000, 100) for split in ("train", "validation")]
    train = DataLoader(adding[0], 64, sampler=Curriculum(2000, epochs=6))
    fit(Adding(100), [train, DataLoader(adding[1], 500)])

    order = np.random.default_rng(0).permutation(4000)
    accuracies = []
    for fold in range(5):
        held_out = order[fold::5]
        rest = np.setdiff1d(order, held_out)
        data = loaders(Subset(digits(), rest.tolist()), Subset(digits(), held_out.tolist()))
        trainer = fit(Digits(), data)
        accuracies.append(float(trainer.callback_metrics["accuracy"]))
    print(f"{np.mean(accuracies):.4f} +- {np.std(accuracies, ddof=1):.4f}")
