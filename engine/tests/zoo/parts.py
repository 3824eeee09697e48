"""The zoo's own classes: samples, networks around a layer, common patterns of user
code."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as images

CLASSES = 4


class Samples:
    """Tensors that depend on the index, with a class each; images pass through a
    transform.

    `kind`: floats; tokens, int64 from 1 to 49; noisy, floats plus draws of the global
    generators; or an image before the transform: pil, uint8, float, boxes (uint8 with
    bounding boxes).
    """

    def __init__(
        self,
        samples: int,
        shape: Sequence[int],
        kind: str = "floats",
        transform: Callable[..., Any] | None = None,
    ) -> None:
        self.samples = samples
        self.shape = tuple(shape)
        self.kind = kind
        self.transform = transform or (lambda image, *_: image)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        own = torch.Generator().manual_seed(1000 + index)
        label = index % CLASSES
        if self.kind == "tokens":
            return torch.randint(1, 50, self.shape, generator=own), label
        if self.kind in ("floats", "noisy"):
            tensor = torch.randn(self.shape, generator=own) + label
            if self.kind == "noisy":
                tensor += 0.1 * (torch.randn(self.shape) + random.random())
            return tensor, label
        pixels = torch.randint(0, 256, self.shape, generator=own, dtype=torch.uint8)
        if self.kind == "boxes":
            edges = torch.tensor([[2, 2, 9, 9], [5, 4, 14, 12]])
            boxes = tv_tensors.BoundingBoxes(
                edges, format="XYXY", canvas_size=self.shape[1:]
            )
            changed = self.transform(tv_tensors.Image(pixels), boxes)
            changed = changed[0] if isinstance(changed, tuple) else changed
        else:
            kinds = {"pil": images.to_pil_image, "uint8": tv_tensors.Image}
            changed = self.transform(kinds.get(self.kind, lambda x: x / 255)(pixels))
        # Float32 of the given shape, also if the transform changed dtype or size.
        tensor = images.to_dtype(images.to_image(changed), torch.float32, scale=True)
        tensor = tensor.as_subclass(Tensor).expand(self.shape[0], -1, -1)
        return F.interpolate(tensor[None], self.shape[1:])[0], label


class Around(nn.Module):
    """A trained scale of the inputs, a layer with one or several of them, and a linear
    layer."""

    def __init__(self, layer: nn.Module, shape: Sequence[int], inputs: int) -> None:
        super().__init__()
        self.layer = layer
        self.inputs = inputs
        self.scale = nn.Parameter(torch.ones(tuple(shape)))
        with torch.no_grad():  # initialises a lazy layer, too
            features = first(layer.eval()(*[torch.ones(2, *shape)] * inputs))[0].numel()
        layer.train()
        self.head = nn.Linear(features, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        others = [x.roll(shift, 0) for shift in range(1, self.inputs)]
        return self.head(first(self.layer(x, *others)).flatten(1))


class Embedded(nn.Module):
    """An embedding of tokens, and a linear layer."""

    def __init__(self, layer: nn.Module, length: int) -> None:
        super().__init__()
        self.layer = layer
        with torch.no_grad():
            features = layer(torch.ones(2, length, dtype=torch.int64))[0].numel()
        self.head = nn.Linear(features, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(tokens).flatten(1))


class PoolAndUnpool(nn.Module):
    """A pooling layer that returns its indices, and the unpooling layer that takes
    them."""

    def __init__(self, pool: nn.Module, unpool: nn.Module) -> None:
        super().__init__()
        self.pool = pool
        self.unpool = unpool

    def forward(self, x: Tensor) -> Tensor:
        return self.unpool(*self.pool(x))


class Logits(nn.Module):
    """A model of transformers that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


class PackedLSTM(nn.Module):
    """An LSTM on image rows of 32 values, as packed sequences of 6 to 9 steps within a
    batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.arange(len(x)) % 4 + 6
        packed = nn.utils.rnn.pack_padded_sequence(
            x.flatten(1, 2)[:, :12], lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.lstm(packed)[1][0][-1])


class GradientCheckpointing(nn.Module):
    """Batch norm and dropout computed twice by checkpointing, a spatial mean, a lazy
    layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(6, 8, 3, stride=2, padding=1),
        )
        self.head = nn.LazyLinear(CLASSES)  # without a dry run

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = checkpoint(self.features, x, use_reentrant=False)
        return self.head(features.mean((2, 3)))


class RenormalizedEmbedding(nn.Module):
    """An embedding with `max_norm`, whose lookups change its weights, also in
    evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 6, max_norm=1.0)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = (images.flatten(1) * 4).long().clamp(0, 15)
        return self.head(self.embedding(tokens).mean(1))


def first(output: Any) -> Tensor:
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def mix(samples: list[Any]) -> Any:
    return v2.MixUp(num_classes=CLASSES)(*torch.utils.data.default_collate(samples))


def cut_and_mix(samples: list[Any]) -> Any:
    return v2.CutMix(num_classes=CLASSES)(*torch.utils.data.default_collate(samples))
