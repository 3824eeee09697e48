"""What a training step asks of the weights, where each process holds all of them."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn


class WholeWeights:
    """Weights that each process holds whole; see `distributed.sharding.Sharding` for
    others."""

    is_sharded = False

    def prepare(self, weight: Tensor | None) -> None:
        """Prepare the backward pass of a slice, which has a weight in the sum of
        slices."""

    def used(self, parameters: Mapping[str, nn.Parameter]) -> list[bool]:
        """Return whether each parameter got a gradient in this process since
        `prepare`."""
        return [parameter.grad is not None for parameter in parameters.values()]

    def clip(self, parameters: Sequence[nn.Parameter], most: float) -> None:
        """Clip gradients in place."""
        nn.utils.clip_grad_norm_(parameters, most)
