"""State that lasts from step to step and that no checkpoint holds: noticed in the first steps.

A step shall depend on weights, buffers, optimizer, batch and seeded draws alone. What a model
keeps elsewhere (a counter, a generator, a running mean as a plain attribute) is lost when a run is
resumed, and each process has its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import fingerprint
from seedbed.data.source import Batch
from seedbed.data.tensors import map_tensors
from seedbed.errors import InputError
from seedbed.training.held import Held
from seedbed.training.state import TrainingState
from seedbed.training.step import forward_and_backward, to_device

Values = Mapping[str, tuple[str, Any]]


class Watch:
    """Looks, once, whether the second step of this process would be the same after a resume.

    Before it, its forward and backward passes are run three times: as they are about to run; once
    more, where a value that changes again is counted or accumulated; and with all that no
    checkpoint holds put back to where this process began, as a resumed run would have it. A cache
    that depends on its inputs alone passes all three. Nothing of it is left behind.
    """

    def __init__(self, training: TrainingState, log: Callable[[str], None]) -> None:
        """Take what trains, and what prints a line.

        Args:
            log: for a warning, where the preset does not promise bits.
        """
        self._training, self._say = training, log
        self._first: Held | None = None
        self._is_over = training.dropout_seed is None  # nothing is seeded, nothing is promised

    def __call__(self, batches: Sequence[Batch], step: int, shard: int) -> None:
        """Look at what there is before a step.

        Args:
            batches: of the step, the first of them that of `shard`.

        Raises:
            InputError: under a preset that promises bits, for state that no checkpoint holds.
        """
        if self._is_over:
            return
        if self._first is None:
            self._first = _held(self._training)
            return
        problem = self._problem(self._first, batches[0], step, shard)
        self._first, self._is_over = None, True
        if problem and self._training.strict:
            raise InputError(f"{problem}, or say determinism.on_nondeterministic=warn")
        if problem:
            self._say(f"warning: {problem}")

    def _problem(self, first: Held, batch: Batch, step: int, shard: int) -> str | None:
        training, live = self._training, _held(self._training)
        try:
            outcome, values = _pass(training, batch, step, shard)
            live.put_back(saved=True)
            _, values_again = _pass(training, batch, step, shard)
            live.put_back()
            first.put_back(saved=False)
            outcome_resumed, values_resumed = _pass(training, batch, step, shard)
        finally:
            live.put_back()
            for parameter in training.model.parameters():
                parameter.grad = None
        lasting = _differing(values, values_again)
        if training.strict and outcome != outcome_resumed:
            lasting = lasting or _differing(values, values_resumed)
            lasting = lasting or _differing(live.unsaved(), first.unsaved())
            if not lasting:
                return (
                    "model: expected a step that depends on weights, buffers, batch and seeded "
                    "draws alone, got another loss or gradient from the same ones after a first "
                    "step; keep what lasts in buffers"
                )
        return _describe(*lasting[0]) if lasting else None


def _held(training: TrainingState) -> Held:
    return Held(model=training.model, task=training.task)


def _pass(training: TrainingState, batch: Batch, step: int, shard: int) -> tuple[int, Values]:
    """Run forward and backward; return a hash of loss and gradients, and what is held then."""
    parameters = [p for p in training.model.parameters() if p.requires_grad]
    copied = Batch(batch.ids, *map_tensors(Tensor.clone, (batch.inputs, batch.targets)))
    with _weights_kept(training.model):  # a forward pass may change them, as it may its inputs
        moved = to_device(copied, training)
        found = forward_and_backward(training, parameters, moved, step, shard, False)
    return int(fingerprint.of_tensors(found)), _held(training).unsaved()


@contextmanager
def _weights_kept(model: nn.Module) -> Iterator[None]:
    """Give weights back that a forward pass changes: those of a momentum encoder, say."""
    before = [(weight, weight.detach().clone()) for weight in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in before:
                weight.copy_(value)


def _differing(first: Values, second: Values) -> list[tuple[str, str]]:
    """Return path and type of what is not the same in both, in the order of the paths."""
    both = {**second, **first}
    return [(path, both[path][0]) for path in both if first.get(path) != second.get(path)]


def _describe(path: str, kind: str) -> str:
    """Say in a line what is wrong with the state at a path, and what to do."""
    remedy = "keep it in a buffer (register_buffer), or in get_extra_state and set_extra_state"
    if kind in ("Generator", "RandomState", "Random"):
        remedy = "draw from a global generator or seedbed.rng.generator(), seeded in each step"
    elif path.endswith(".requires_grad"):
        remedy = "set it in __init__, not while training"
    elif path.startswith("task."):
        remedy = "keep it in a buffer of the model"
    return (
        f"{path}: expected state that a checkpoint holds, got one beside it that lasts from step "
        f"to step ({kind}), which a resumed run would not have; {remedy}"
    )
