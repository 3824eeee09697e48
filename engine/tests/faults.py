"""Faults to inject at a chosen step: a model, an optimizer, a data set and collate
functions.

They resemble user code and are named by `_target_`, so that a run with a fault can be
replayed. Without a fault they are correct.
"""

import ctypes
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import default_collate

from seedbed.pipeline import positions

SAMPLES = 64


class Fault(NamedTuple):
    """A kind of fault, and the difference that must be found.

    Attributes:
        part: where it is injected: model, optimizer, data or order.
        stage: the first stage that differs.
        phase: the phase of data loading or of the step.
        operation: prefix of the name of the operation or tensor.
        module: path in the model, with {i} for the random block; None: any.
        says: part of the reported reason, with {name} for the random parameter.
        unseeded: it does not repeat, so two faulty replays differ.
    """

    part: str
    stage: str
    phase: str
    operation: str = ""
    module: str | None = None
    says: str = ""
    unseeded: bool = False


FAULTS = {
    "batch_repeated_in_order": Fault(
        "order", "sample_ids", "data order", "sample ids", says="differ by the seed"
    ),
    "pixel_bit": Fault("data", "batch", "sample loading"),
    "augmentation_redrawn": Fault("data", "batch", "augmentation", "Noise"),
    "unseeded_collate": Fault("data", "batch", "collate", "collate", unseeded=True),
    "weight_bit": Fault(
        "model",
        "loss",
        "forward",
        "aten.convolution",
        "blocks.{i}.conv",
        "blocks.{i}.conv.weight",
    ),
    "activation_bit": Fault(
        "model", "loss", "forward", "aten.relu", "blocks.{i}.relu", "no PyT"
    ),
    "dropout_redrawn": Fault(
        "model", "loss", "forward", "aten.bernoulli", "blocks.{i}.dropout"
    ),
    "layer_in_bfloat16": Fault(
        "model", "loss", "forward", "aten._to_copy", "blocks.{i}.conv"
    ),
    "unseeded_generator": Fault(
        "model",
        "loss",
        "forward",
        "aten.rand",
        "blocks.{i}",
        "same inputs",
        unseeded=True,
    ),
    "operation_added": Fault(
        "model", "loss", "forward", "aten.mul", "blocks.{i}", "in B only"
    ),
    "buffer_bit": Fault(
        "model",
        "buffers",
        "forward",
        "aten.native_batch_norm",
        "blocks.{i}.norm",
        "blocks.{i}.norm.running_mean",
    ),
    "gradient_bit": Fault(
        "model",
        "gradients",
        "update",
        "aten._foreach_norm",
        "",
        "gradient of blocks.{i}.conv",
    ),
    "backward_operation_added": Fault(
        "model", "gradients", "backward", "aten.mul", "blocks.{i}.dropout", "in B only"
    ),
    "learning_rate_changed": Fault(
        "optimizer", "weights", "update", "aten._foreach", says="call"
    ),
    "moment_bit": Fault(
        "optimizer", "weights", "update", "aten._foreach", says="exp_avg of {name}"
    ),
    "moment_bit_after": Fault(
        "optimizer", "optimizer", "after the step", "exp_avg_sq of {name}"
    ),
    "weight_bit_after": Fault("optimizer", "weights", "after the step", "{name}"),
}


def flip_bit(tensor: Tensor, index: int, bit: int = 22) -> None:
    """Flip a bit of a float32 tensor in memory, as a faulty cell would, without an
    operation."""
    place = np.unravel_index(index % tensor.numel(), tensor.shape)
    offset = sum(
        int(i) * stride for i, stride in zip(place, tensor.stride(), strict=True)
    )
    address = tensor.data_ptr() + tensor.element_size() * offset
    word = ctypes.c_uint32.from_address(address)
    word.value ^= 1 << bit


class Conv(nn.Conv2d):
    """A convolution with an optional fault."""

    fault = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "weight_bit":
            flip_bit(self.weight, 7)
        if self.fault == "layer_in_bfloat16":
            return F.conv2d(x.bfloat16(), self.weight.bfloat16(), padding=1).float()
        if self.fault == "gradient_bit":
            self.hook = self.weight.register_post_accumulate_grad_hook(self._flip)
        return super().forward(x)

    def _flip(self, weight: Tensor) -> None:
        flip_bit(weight.grad, 3)
        self.hook.remove()


class Block(nn.Module):
    """Convolution, batch norm, ReLU and dropout, with an optional fault in one of
    them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = Conv(2, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(0.25)

    def forward(self, x: Tensor, fault: str = "") -> Tensor:
        self.conv.fault = fault
        if fault == "buffer_bit":
            flip_bit(self.norm.running_mean, 0)
        x = self.norm(self.conv(x))
        if fault == "activation_bit":
            flip_bit(x, int(x.detach().argmax()))
        x = self.relu(x)
        if fault == "dropout_redrawn":
            torch.default_generator.manual_seed(12345)
        x = self.dropout(x)
        if fault == "operation_added":
            x = x * 1.5
        if fault == "backward_operation_added":
            x.register_hook(lambda gradient: gradient * 1.001)
        if fault == "unseeded_generator":
            x = x + torch.rand(
                1, generator=torch.Generator().manual_seed(secrets.randbits(60))
            )
        return x


class Net(nn.Module):
    """Three blocks of two channels; at training step `step`, block `where` has the
    fault."""

    def __init__(self, fault: str = "", step: int = 0, where: int = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(2) for _ in range(3))
        self.head = nn.Linear(2 * 8 * 8, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self._fault = fault
        self._step = step
        self._where = where

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        due = self.training and int(self.calls) == self._step
        for index, block in enumerate(self.blocks):
            x = block(x, self._fault if due and index == self._where else "")
        return self.head(x.flatten(1))


class Adam(torch.optim.AdamW):
    """AdamW with a fault at step `step`; flipped bits are in parameter number
    `where`."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.01,
        fault: str = "",
        step: int = 0,
        where: int = 0,
    ) -> None:
        super().__init__(params, lr=lr, foreach=True)
        self._fault = fault
        self._step = step
        self._where = where

    def step(self, closure: Any = None) -> Any:
        (group,) = self.param_groups
        parameter = group["params"][self._where]
        rate = group["lr"]
        taken = int(self.state[parameter].get("step", 0))
        fault = self._fault if taken + 1 == self._step else ""
        if fault == "learning_rate_changed":
            group["lr"] = rate * 1.01
        if fault == "moment_bit":
            flip_bit(self.state[parameter]["exp_avg"], 0)
        result = super().step(closure)
        group["lr"] = rate
        if fault == "moment_bit_after":
            flip_bit(self.state[parameter]["exp_avg_sq"], 0)
        if fault == "weight_bit_after":
            flip_bit(parameter, 0)
        return result


class Noise:
    """Noise from the seeded generator; with a fault, from an unseeded one or after
    another draw."""

    def __init__(self) -> None:
        self.fault = ""

    def __call__(self, image: Tensor) -> Tensor:
        if self.fault == "unseeded_transform":
            return image + float(np.random.default_rng().random())
        if self.fault == "augmentation_redrawn":
            random.random()
        return image + random.random()


# Faults that the data set requests from the collate function, which only receives
# samples.
ASKED: list[str] = []


def collate(samples: list[Any]) -> Any:
    """Stack samples, with the fault that the data set requested, if any."""
    batch = default_collate(samples)
    if ASKED and ASKED.pop() == "unseeded_collate":
        batch[0] += float(np.random.default_rng().random())
    return batch


class Images(torch.utils.data.Dataset):
    """Random images in [0, 1), one of which may have a fault."""

    def __init__(self, fault: str = "", sample_id: int = -1, number: int = 0) -> None:
        draw = np.random.default_rng(number)
        self._images = torch.from_numpy(
            draw.random((SAMPLES, 2, 8, 8), dtype=np.float32)
        )
        self._fault = fault
        self._id = sample_id
        self.transform = Noise()
        ASKED.clear()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        fault = self._fault if index == self._id else ""
        image = self._images[index].clone()
        if fault == "pixel_bit":
            flip_bit(image, 5)
        self.transform.fault = fault
        ASKED.extend([fault] if fault == "unseeded_collate" else [])
        label = index % 4
        if fault == "set_of_strings":
            label = list({"cat", "dog", "horse", "bird"}).index(
                ["cat", "dog", "horse"][index % 3]
            )
        return self.transform(image), label


@contextmanager
def order(step: int, batch_size: int) -> Iterator[None]:
    """Patch the order of samples so that a step of epoch 0 repeats the batch before
    it."""
    clean: Callable[..., Any] = positions.order_of_epoch
    faulty_start = (step - 1) * batch_size

    def wrong(seed: int, epoch: int, n: int, start: int, stop: int) -> Any:
        earlier = batch_size if start == faulty_start else 0
        return clean(seed, epoch, n, start - earlier, stop - earlier)

    with patch.object(positions, "order_of_epoch", wrong):
        yield
