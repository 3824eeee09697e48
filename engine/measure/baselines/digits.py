"""What the tried programs share: digits, a network, what happens in a step, and the result.

`templates.py` starts them with their settings as JSON.
"""

import hashlib
import os
import signal
import time
from pathlib import Path

import torch
from project.data import mnist5k
from project.models.cnn import CNN
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision import transforms

SAMPLES = 1024
BATCH_SIZE = 64
EPOCHS = 3
CHECKPOINT_EVERY = 10
STOP_AT = 36  # in epoch 3, after the checkpoint in the middle of epoch 2


class Digits(Dataset):
    """Digits with random shifts and rotations, which torchvision draws from torch's generator."""

    def __init__(self, first: int, samples: int, augment: bool) -> None:
        images, labels = mnist5k.read(mnist5k.find())
        # The file is sorted by label.
        chosen = slice(first, None, len(images) // samples)
        self.images, self.labels = images[chosen][:samples], labels[chosen][:samples]
        change = [transforms.RandomAffine(10, translate=(0.1, 0.1))] if augment else []
        self.transform = transforms.Compose(
            [transforms.ToPILImage(), *change, transforms.ToTensor()]
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), int(self.labels[index])


def training() -> Digits:
    """Return what is trained on."""
    return Digits(0, SAMPLES, augment=True)


def validation() -> Digits:
    """Return what is validated on."""
    return Digits(1, 256, augment=False)


class Net(CNN):
    """Seedbed's CNN with dropout."""

    def __init__(self) -> None:
        super().__init__([1, 28, 28], 10, [16, 32, 64], 0.1)


class Refused(nn.Module):
    """A network with an operation that PyTorch refuses under deterministic algorithms."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch."""
        return self.net(x.clone().put_(torch.arange(2), x.new_zeros(2)))


def network(settings: dict) -> nn.Module:
    """Return the network to train."""
    return Refused() if settings.get("refused") else Net()


def after_step(step: int, settings: dict) -> None:
    """Do what is tried: draw random numbers, or end the process."""
    if settings.get("draws"):
        torch.rand(3)
    if settings.get("signal") and step == STOP_AT and not settings.get("resume"):
        os.kill(os.getpid(), settings["signal"])
        if settings["signal"] == signal.SIGTERM:
            time.sleep(settings.get("grace", 0))


def write_weights(model: nn.Module, out: str) -> None:
    """Write the SHA-256 of the weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    Path(out, "weights.txt").write_text(digest.hexdigest())
