"""Batches of samples, changed as a whole."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate


class Transformed:
    """Stacks samples as torch's default does, and puts the batch through a transform.

    For MixUp, CutMix and the like (`torchvision.transforms.v2`), as `data.training_collate`.
    """

    def __init__(self, transform: Callable[[Any, Any], Any]) -> None:
        self._transform = transform

    def __call__(self, samples: list[Any]) -> Any:
        """Return the inputs and targets of a batch."""
        return self._transform(*default_collate(samples))
