"""Values for the training set that the method gives it before each epoch.

They are a function of the state in checkpoints, computed when the epoch before has
ended. A checkpoint within an epoch has them, so that a resumed run does not compute
them again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from seedbed.names import EPOCH
from seedbed.pipeline.source import simple_attributes
from seedbed.pipeline.tensors import map_tensors
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import seed_draws
from seedbed.training.unchanged import Watched, unchanged

T = TypeVar("T")


def values_of(
    training: TrainingState, shards: Shards, step: int, epoch: int
) -> dict[str, Any]:
    """Return the values for an epoch, from 0, that begins after a step: those of rank
    0."""
    return shards.gather(lambda: values_here(training, step, epoch))[0]


def values_here(training: TrainingState, step: int, epoch: int) -> dict[str, Any]:
    """Return the values for an epoch as this process has them.

    Raises:
        InputError: the method changes the model.
    """

    def watched() -> Watched:
        return Watched([*training.model.parameters(), *training.model.buffers()])

    refusal = (
        f"method: {type(training.method).__name__}.epoch_values changed weights or"
        " buffers; change them in on_step_end"
    )
    with unchanged(training.model, watched, refusal), torch.no_grad():
        seed_draws(training, step, EPOCH)
        values = training.method.epoch_values(training.model, epoch)
    # They neither change with the model nor need its device.
    return map_tensors(lambda tensor: tensor.detach().cpu().clone(), values)  # type: ignore[no-any-return]


def warning(
    batches: Iterator[T],
    owners: Mapping[str, Any],  # the training set and the sampler, by their keys
    batches_per_epoch: int,
    warn: Callable[[str], None],
) -> Iterator[T]:
    """Yield batches; warn once of numbers and texts in attributes that change between
    epochs.

    Loader workers have other copies of what owns them, and resumed runs new ones.
    """
    before = {key: simple_attributes(owner) for key, owner in owners.items()}
    has_warned = False
    for number, batch in enumerate(batches):
        if number % batches_per_epoch == 0 and number and not has_warned:
            for key, owner in owners.items():
                attributes = simple_attributes(owner)
                changed = [
                    name
                    for name, value in attributes.items()
                    if before[key].get(name) != value
                ]
                if changed:
                    has_warned = True
                    warn(_line(key, changed))
        yield batch


def _line(key: str, changed: Sequence[str]) -> str:
    return (
        f"warning: {key}: {', '.join(changed[:3])} changed while the run trained;"
        " loader workers and resumed runs do not see that: let epoch_values of the"
        " method give the value, and set_epoch_values take it"
    )
