"""State that lasts from step to step and that no checkpoint holds: noticed in the first steps.

A step shall depend on weights, buffers, optimizer, batch and seeded draws alone. What a model
keeps elsewhere (a counter, a generator, a running mean as a plain attribute) is lost when a run is
resumed, and each process has its own. So is what a task keeps, and an optimizer beside its state.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import fingerprint
from seedbed.data.source import Batch
from seedbed.data.tensors import map_tensors
from seedbed.errors import InputError
from seedbed.training import capture, trainable
from seedbed.training.held import Held
from seedbed.training.optimizer_tensors import optimizer_tensors
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import (
    Found,
    apply_update,
    end_step,
    forward_and_backward,
    to_device,
)
from seedbed.training.trainable import Update, updates_of

Values = Mapping[str, tuple[str, Any]]


class Watch:
    """Looks, once, whether the second step of this process would be the same after a resume.

    Before it, its forward and backward passes are run three times: as they are about to run; once
    more, where a value that changes again is counted or accumulated; and with all that no
    checkpoint holds put back to where this process began, as a resumed run would have it. A cache
    that depends on its inputs alone passes all three. Nothing of it is left behind. The update is
    part of it where the first one changed an attribute of the optimizer: few have any, and it takes
    a copy of the optimizer's state.
    """

    def __init__(
        self, training: TrainingState, log: Callable[[str], None], with_values: bool = True
    ) -> None:
        """Take what trains, and what prints a line.

        Args:
            log: for a warning, where the preset does not promise bits.
            with_values: whether any step of the run asks for the values that are logged.
        """
        self._training, self._say, self._with_values = training, log, with_values
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
        began, now = first.unsaved(), live.unsaved()
        updates = bool(_differing(_of_optimizer(now), _of_optimizer(began)))

        def run() -> tuple[tuple[int, int], Values]:
            return _pass(training, batch, step, shard, self._with_values, updates)

        try:
            outcome, values = run()
            live.put_back(saved=True)
            outcome_again, values_again = run()
            live.put_back()
            first.put_back(saved=False)
            outcome_resumed, values_resumed = run()
        finally:
            live.put_back()
            for parameter in training.model.parameters():
                parameter.grad = None
        lasting = _differing(values, values_again)
        if training.strict and not lasting and not outcome == outcome_again == outcome_resumed:
            pairs = [(values, values_resumed), (now, began), (now, values)]
            if outcome != outcome_again:  # one pass changes the next
                pairs.reverse()
            if outcome[0] == outcome_again[0] == outcome_resumed[0]:  # the update alone differs
                pairs = [(_of_optimizer(a), _of_optimizer(b)) for a, b in pairs]
            elif updates:
                pairs = [(_of_others(a), _of_others(b)) for a, b in pairs]
            lasting = next(filter(None, (_differing(a, b) for a, b in pairs)), [])
            if not lasting:
                return (
                    "model: expected a step that depends on weights, buffers, batch and seeded "
                    "draws alone, got another loss or gradient from the same ones after a first "
                    "step; keep what lasts in buffers"
                )
        return _describe(*lasting[0]) if lasting else None


def _held(training: TrainingState) -> Held:
    saved, roots = [], {}
    for name, optimizer in capture.labelled(training.optimizers).items():
        # One with a `state_dict` of its own knows what to save.
        if type(optimizer).state_dict is torch.optim.Optimizer.state_dict:
            saved += [optimizer.state, optimizer.param_groups]
            roots[name] = optimizer
    method = training.method
    return Held(*saved, model=training.model, task=method.task, method=method, **roots)


def _of_optimizer(values: Values) -> Values:
    return {path: value for path, value in values.items() if path.startswith("optimizer.")}


def _of_others(values: Values) -> Values:
    return {path: value for path, value in values.items() if not path.startswith("optimizer.")}


def _pass(
    training: TrainingState, batch: Batch, step: int, shard: int, with_values: bool, updates: bool
) -> tuple[tuple[int, int], Values]:
    """Run the step's forward and backward passes, with the values that are logged.

    Args:
        updates: whether the optimizers make their updates, too.

    Returns:
        A hash of losses and gradients, and of what the updates made; what is held then.
    """
    model, found, made = training.model, list[Tensor](), list[Tensor]()
    # A forward pass may change weights, as it may its inputs.
    reached = updates or training.overrides("configure_optimizers")  # it may have kept them
    with _weights_kept(model), _state_kept(training) if reached else nullcontext():
        trainable.choose(training, step)
        for update in updates_of(training, step):
            copied = Batch(batch.ids, *map_tensors(Tensor.clone, (batch.inputs, batch.targets)))
            moved = to_device(copied, training)

            def run(moved: Batch = moved, update: Update = update) -> tuple[Found, None]:
                return forward_and_backward(training, moved, update, shard, with_values), None

            part, _ = run()
            found += [*part.gradients, *part.values.values()]
            found = [fingerprint.of_tensors(found)]  # an update may change gradients
            if updates:
                apply_update(training, update, part, Shards(), run)
                made = [*model.parameters()]
        end_step(training, step)
        if updates:
            made += optimizer_tensors(*training.optimizers.values())
        outcome = (int(fingerprint.of_tensors(found)), int(fingerprint.of_tensors(made)))
        return outcome, _held(training).unsaved()


@contextmanager
def _state_kept(training: TrainingState) -> Iterator[None]:
    """Give the state and the options of optimizers back that an update changes."""
    optimizers = training.optimizers.values()
    state, groups = [each.state for each in optimizers], [each.param_groups for each in optimizers]
    before = Held(state=state, groups=groups)
    try:
        yield
    finally:
        before.put_back()


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
    elif path.startswith(("task.", "method.")):
        remedy = "keep it in a buffer of the model"
    elif path.startswith("optimizer."):
        remedy = "keep it in self.state, under a parameter or a name, or in its own state_dict"
    return (
        f"{path}: expected state that a checkpoint holds, got one beside it that lasts from step "
        f"to step ({kind}), which a resumed run would not have; {remedy}"
    )
