"""Gradient scaling for float16, whose smallest numbers are too large for many
gradients.

As `torch.amp.GradScaler`, with its constants, but each slice is unscaled on its own,
out of place (gradients may share memory), so that sums, fingerprints, logged values,
callbacks and clipping get true gradients; and overflows are looked for in the sum over
all slices, which all processes have. Scales are powers of two, so the division is exact
(unless a result is below 2**-126).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import fingerprint
from seedbed.errors import InputError

GROWS_AFTER = 2000  # steps without an overflow
# Below the first, gradients are not finite for another reason; above the second, all
# overflow.
SMALLEST = 2.0**-14
LARGEST = 2.0**24


class Unscaled:
    """No scaling, for all precisions but float16."""

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to be differentiated."""
        return loss

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients of the scaled loss by those of the loss."""

    def accepts(self, gradients: Sequence[Tensor]) -> bool:
        """Return whether to take an update."""
        return True

    def end_step(self, step: int) -> dict[str, Tensor]:
        """Set the scale for the next step; return the columns of this one in
        metrics.csv."""
        return {}

    def hashed_state(self) -> list[Tensor]:
        """Return a hash of the state, if there is one."""
        return (
            [fingerprint.of_objects(list(state.values()))]
            if (state := self.state())
            else []
        )

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Scaler(Unscaled):
    """The scale of the loss, how it changes, and which updates are skipped."""

    def __init__(self) -> None:
        self.scale = 2.0**16
        self.steps_since = 0  # the last change of the scale
        # steps with a skipped update, since the beginning of the run
        self.skipped_steps = 0
        self._overflows = False  # in this step

    def scaled(self, loss: Tensor) -> Tensor:
        return (loss.float() if loss.dtype is torch.float16 else loss) * self.scale

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        used = [parameter for parameter in parameters if parameter.grad is not None]
        gradients = [p.grad for p in used if p.grad is not None]
        unscaled = torch._foreach_mul(gradients, 1 / self.scale) if used else ()
        for parameter, gradient in zip(used, unscaled, strict=True):
            parameter.grad = gradient

    def accepts(self, gradients: Sequence[Tensor]) -> bool:
        """Return whether all gradients are finite; waits for the device."""
        values = [g.coalesce().values() if g.is_sparse else g for g in gradients]
        largest = nn.utils.get_total_norm(
            [v for v in values if v.numel()], float("inf")
        )
        is_finite = bool(largest.isfinite())
        self._overflows |= not is_finite
        return is_finite

    def end_step(self, step: int) -> dict[str, Tensor]:
        scale = self.scale
        self.skipped_steps += self._overflows
        self.steps_since += 1
        if self._overflows:
            self.scale = self.scale / 2
            self.steps_since = 0
        elif self.steps_since == GROWS_AFTER:
            self.scale = min(2 * self.scale, LARGEST)
            self.steps_since = 0
        self._overflows = False
        if self.scale < SMALLEST:
            raise InputError(
                f"gradients: NaN or Inf in step {step} and those before it, at every"
                f" scale of the loss down to {scale}; look at the loss, lower"
                " optimizer.lr, or set trainer.precision=bfloat16"
            )
        skipped = torch.tensor(float(self.skipped_steps))
        return {"loss_scale": torch.tensor(scale), "skipped_steps": skipped}

    def state(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_overflows"}

    def restore(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)


def are_finite(named: Mapping[str, Tensor]) -> dict[str, bool]:
    """Return whether tensors are finite, by name; wait for the device once."""
    flags = [p.detach().isfinite().all() for p in named.values()]
    return dict(zip(named, torch.stack(flags).tolist(), strict=True)) if flags else {}
