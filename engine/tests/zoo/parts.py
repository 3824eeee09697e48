"""What the zoo's settings name of its own: data, networks around a layer, tasks."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as images

CLASSES = 4


class Samples:
    """Tensors that depend on the index alone, through a transform, and a class each.

    `kind`: floats; tokens, int64 from 1 to 49; noisy, floats with draws of the global generators;
    with_target, floats with the class beside them; or an image before the transform: pil, uint8,
    float, boxes (uint8 with bounding boxes).
    """

    def __init__(
        self,
        samples: int,
        shape: Sequence[int],
        kind: str = "floats",
        transform: Callable[..., Any] | None = None,
    ) -> None:
        self.samples, self.shape, self.kind = samples, tuple(shape), kind
        self.transform = transform

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        own = torch.Generator().manual_seed(1000 + index)
        label = index % CLASSES
        if self.kind == "tokens":
            return torch.randint(1, 50, self.shape, generator=own), label
        if self.kind == "floats":
            return torch.randn(self.shape, generator=own) + label, label
        if self.kind == "with_target":
            return (torch.randn(self.shape, generator=own) + label, label), label
        if self.kind == "noisy":
            noise = torch.randn(self.shape) + random.random()
            return torch.randn(self.shape, generator=own) + label + 0.1 * noise, label
        return self._image(own), label

    def _image(self, own: torch.Generator) -> Tensor:
        """Return an image of the shape, float32, whatever the transform made of it."""
        pixels = torch.randint(0, 256, self.shape, generator=own, dtype=torch.uint8)
        image: Any = {
            "pil": lambda: images.to_pil_image(pixels),
            "uint8": lambda: tv_tensors.Image(pixels),
            "float": lambda: pixels / 255,
            "boxes": lambda: tv_tensors.Image(pixels),
        }[self.kind]()
        if self.transform is None:
            changed = image
        elif self.kind == "boxes":
            edges = torch.tensor([[2, 2, 9, 9], [5, 4, 14, 12]])
            boxes = tv_tensors.BoundingBoxes(edges, format="XYXY", canvas_size=self.shape[1:])
            changed = self.transform(image, boxes)[0]
        else:
            changed = self.transform(image)
        tensor = images.to_dtype(images.to_image(changed), torch.float32, scale=True)
        tensor = tensor.as_subclass(Tensor).expand(self.shape[0], -1, -1)
        return F.interpolate(tensor[None], self.shape[1:])[0]


class Around(nn.Module):
    """A layer between a trained scale of its inputs and a linear layer."""

    def __init__(
        self,
        layer: nn.Module,
        shape: Sequence[int],
        inputs: int,
        outputs: int,
        features: int | None = None,
    ) -> None:
        """Take how many numbers the layer returns for a sample; None: it is tried out."""
        super().__init__()
        self.layer, self.inputs = layer, inputs
        self.scale = nn.Parameter(torch.ones(tuple(shape)))
        if features is None:
            features = self._try_out()
        self.head = nn.Linear(features, outputs)

    @torch.no_grad()
    def _try_out(self) -> int:
        """Return the features of a sample; a lazy layer has its parameters afterwards."""
        example = torch.ones(2, *self.scale.shape)
        found = first(self.layer.eval()(*[example] * self.inputs))
        self.layer.train()
        return found[0].numel()

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        others = [x.roll(shift, 0) for shift in range(1, self.inputs)]
        return self.head(first(self.layer(x, *others)).flatten(1))


class Embedded(nn.Module):
    """An embedding of tokens, and a linear layer."""

    def __init__(self, layer: nn.Module, length: int, outputs: int) -> None:
        super().__init__()
        self.layer = layer
        with torch.no_grad():
            features = layer(torch.ones(2, length, dtype=torch.int64))[0].numel()
        self.head = nn.Linear(features, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(tokens).flatten(1))


class PoolAndUnpool(nn.Module):
    """A pool that keeps its indices, and the layer that takes them."""

    def __init__(self, pool: nn.Module, unpool: nn.Module) -> None:
        super().__init__()
        self.pool, self.unpool = pool, unpool

    def forward(self, x: Tensor) -> Tensor:
        return self.unpool(*self.pool(x))


class LossInside(nn.Module):
    """A loss with weights of its own: the model takes the target, too, and returns the loss."""

    def __init__(self, layer: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.ones(tuple(shape)))

    def forward(self, pair: Sequence[Tensor]) -> Tensor:
        x, target = pair
        return first(self.layer(x * self.scale, target)).abs()


class TheOutput:
    """A task whose loss is what the model returns."""

    metric_name = "loss"
    higher_is_better = False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs

    metric = losses

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs


class Logits(nn.Module):
    """A model of transformers, and of what it returns the logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def first(output: Any) -> Tensor:
    """Return the first tensor of what a layer returned."""
    while not isinstance(output, Tensor):
        output = output[0]
    return output


class ByLoss:
    """A task whose loss is a module of torch.nn, in the form that it wants."""

    metric_name = "loss"
    higher_is_better = False

    def __init__(self, loss: nn.Module, outputs: str, targets: str) -> None:
        self.module, self.form, self.target_form = loss, outputs, targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.module(*self._inputs(outputs), *self._targets(targets))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        rows = zip(outputs.split(1), targets.split(1), strict=True)
        return torch.stack([self.loss(*row).detach() for row in rows])

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets)

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0]

    def _inputs(self, x: Tensor) -> Sequence[Tensor]:
        if self.form == "log_probs_in_time":
            return (x.view(len(x), -1, CLASSES).log_softmax(2).transpose(0, 1),)
        return {
            "logits": lambda: (x,),
            "log_probs": lambda: (x.log_softmax(1),),
            "probs": lambda: (x.sigmoid(),),
            "first": lambda: (x[:, 0],),
            "two": lambda: x.chunk(2, 1),
            "three": lambda: (x[:, :2], x[:, 1:3], x[:, 2:]),
            "two_numbers": lambda: (x[:, 0], x[:, 1]),
        }[self.form]()

    def _targets(self, y: Tensor) -> Sequence[Tensor]:
        hot = F.one_hot(y, CLASSES)
        full = torch.full_like(y, 5)
        return {
            "none": lambda: (),
            "class": lambda: (y,),
            "one_hot": lambda: (hot.float(),),
            "signs": lambda: (2.0 * hot - 1,),
            "sign": lambda: (2.0 * (y % 2) - 1,),
            "labels": lambda: (torch.where(hot.cumsum(1).bool() & (hot == 0), -1, y[:, None]),),
            "one_hot_and_variance": lambda: (hot.float(), torch.full(hot.shape, 0.5)),
            "sequence": lambda: (y[:, None].clamp(min=1), full, torch.ones_like(y)),
        }[self.target_form]()


class Mixed:
    """Cross-entropy with probabilities of classes as targets."""

    metric_name = "loss"
    higher_is_better = False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, self._probabilities(targets))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, self._probabilities(targets), reduction="none")

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets)

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def _probabilities(self, targets: Tensor) -> Tensor:
        return targets if targets.dim() == 2 else F.one_hot(targets, CLASSES).float()


def mix(samples: list[Any]) -> Any:
    """Collate with torchvision's MixUp."""
    from torchvision.transforms import v2

    return v2.MixUp(num_classes=CLASSES)(*torch.utils.data.default_collate(samples))


def cut_and_mix(samples: list[Any]) -> Any:
    """Collate with torchvision's CutMix."""
    from torchvision.transforms import v2

    return v2.CutMix(num_classes=CLASSES)(*torch.utils.data.default_collate(samples))
