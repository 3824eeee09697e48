"""Rehearsal of a resume: a run that is rebuilt and restored must take the same next step.

A step must depend only on the checkpoint, its batch and seeded draws. State that a checkpoint
lacks, restores inexactly or cannot hold changes a fingerprint of the step. So a run is resumed
once in its first steps, within its own process, and continues as the resumed run.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from seedbed import fingerprint
from seedbed.data.remedy import remedy_for
from seedbed.data.source import Batch
from seedbed.data.tensors import map_tensors, tensors_of
from seedbed.errors import InputError
from seedbed.names import STAGES
from seedbed.operations.refusals import explained
from seedbed.training import checkpoint, optimizers, schedules
from seedbed.training.callbacks import Callbacks
from seedbed.training.evaluate import measure
from seedbed.training.shards import Shards
from seedbed.training.state import Progress, StepResult, TrainingState
from seedbed.training.step import train_step
from seedbed.training.variables import Variables

_IN_MODEL = (
    "model",
    "keep what lasts from step to step in buffers or parameters of the model, not in attributes, "
    "variables or closures, and let evaluations change nothing",
)
_IN_OPTIMIZER = (
    "optimizer",
    "let it keep what lasts in self.state, or in a state_dict and load_state_dict of its own, and "
    "on_step_end in buffers of the model",
)
# What is compared, in causal order, with the configuration key to look at and the remedy.
_WHERE = {
    "learning rate": ("schedule", "let a schedule alone set learning rates, by the step"),
    "sample_ids": ("data.sampler", "let batches depend on epoch, n and rng alone"),
    "batch": ("data.train", "let a sample depend on its index and on seeded draws alone"),
    "loss": _IN_MODEL,
    "gradients": _IN_MODEL,
    "weights": _IN_OPTIMIZER,
    "buffers": _IN_MODEL,
    "optimizer": _IN_OPTIMIZER,
    "validation batch": ("data.validation", "let a sample depend on its index and seeded draws"),
    "evaluation": _IN_MODEL,
    "logged values": _IN_MODEL,
}


# What a resuming process has built for a step before it restores a checkpoint: the training state,
# the batches of the step, and the factor of its learning rates.
Rebuilt = tuple[TrainingState, Sequence[Batch], schedules.Factor]


@dataclass
class Rehearsal:
    """Takes steps twice: normally, and resumed from a checkpoint made just before."""

    rebuild: Callable[[int], Rebuilt]  # for a step, from the settings alone
    held_out: Callable[[], Sequence[Batch]]  # a batch of the validation set
    at_start: bool = True  # the second step of a new run is taken twice
    every_steps: int = 0  # and every n-th step; 0: none
    variables: Variables = field(default_factory=Variables)  # as they were before the run was built
    log: Callable[[str], None] = print
    dataset: Any = None  # of the training samples, for advice

    def is_due(self, step: int, first_step: int) -> bool:
        """Return whether to take a step twice, in a process that began after `first_step`."""
        # A run that is resumed later has rehearsed that already.
        begins = self.at_start and first_step < 2 and step == first_step + 2
        return begins or bool(self.every_steps and step % self.every_steps == 0)

    def take_step(
        self,
        training: TrainingState,
        batches: Sequence[Batch],
        step: int,
        shards: Shards,
        with_values: bool,
    ) -> StepResult:
        """Take a step, resume from before it, take it again, and continue as the resumed run.

        If the run is not strict or not seeded, only check that the checkpoint can be loaded.
        """
        with checkpoint.fitting("checkpoint"):
            saved = checkpoint.encode(checkpoint.capture(training, Progress(step - 1)))
        if not training.strict or training.dropout_seed is None:
            hasher = fingerprint.Hasher(training.device)
            return train_step(training, batches, step, shards, with_values, hasher)
        held_out = self.held_out()
        take = partial(_take, training, step, shards, with_values)
        _evaluate(training, held_out)
        # Callbacks see only the resumed step, the one that counts.
        callbacks, training.callbacks = training.callbacks, Callbacks()
        with explained(training.model):
            expected, _ = take(batches, held_out)
        training.callbacks = callbacks
        batches, held_out = self._resume(training, saved, step, shards), self.held_out()
        with checkpoint.fitting("checkpoint"):
            resumed, result = take(batches, held_out)
        stage = _first_difference(expected, resumed, shards)
        if stage == "logged values":  # a counter that training does not depend on
            self.log(
                f"warning: what {type(training.method).__name__} logs restarts in a resumed run "
                "(metrics.csv, not the weights); keep what it counts in buffers of the model"
            )
        if stage in (None, "logged values"):
            return result if with_values else result._replace(values=None)

        advice = remedy_for(self.dataset) if stage == "batch" else ""
        # A second resumed step tells missing state from a step that does not repeat.
        batches = self._resume(training, saved, step, shards)
        before = _attributes(training)
        again, _ = take(batches, held_out)
        unlike = _first_difference(resumed, again, shards)
        if unlike is not None:
            raise InputError(
                f"{_WHERE[unlike][0]}: expected the same {unlike} each time that step {step} is "
                "taken from one checkpoint, got another; draw from the global generators, and look "
                f"for a nondeterministic kernel or faulty hardware{advice}"
            )
        key, remedy = _WHERE[stage]
        changed = [name for name, now in _attributes(training).items() if now != before.get(name)]
        hint = f" (a step changes {', '.join(changed[:3])})" if changed else ""
        raise InputError(
            f"{key}: expected the same {stage} in step {step} from a run that is resumed after "
            f"step {step - 1}, got another{hint}; {remedy}, or set "
            f"determinism.on_nondeterministic=warn{advice}"
        )

    def _resume(
        self, training: TrainingState, saved: bytes, step: int, shards: Shards
    ) -> Sequence[Batch]:
        """Replace the training state by that of a resumed process; return the step's batches."""
        # Free the present state before building another: memory may suffice for only one.
        training.become(replace(training, model=nn.Module(), optimizers={}))
        gc.collect()
        self.variables.restore()
        rebuilt, batches, factor = self.rebuild(step)
        training.become(replace(rebuilt, callbacks=training.callbacks))
        if training.callbacks.run is not None:
            training.callbacks.run.model = training.model
        with checkpoint.fitting("checkpoint"):
            checkpoint.restore(training, checkpoint.decode(saved, training.device))
        shards.begin(training, step - 1)
        schedules.set_learning_rates(training.optimizers, factor)
        return batches


def _take(
    training: TrainingState,
    step: int,
    shards: Shards,
    logs: bool,
    batches: Sequence[Batch],
    held_out: Sequence[Batch],
) -> tuple[dict[str, Any], StepResult]:
    """Take a step and evaluate a batch; return the values to compare, as in `_WHERE`."""
    hasher = fingerprint.Hasher(training.device)
    result = train_step(training, batches, step, shards, True, hasher, logs)
    assert result.stages is not None
    assert result.values is not None
    compared = {
        # After the step, since a scheduler in the method may have changed them.
        "learning rate": repr(schedules.learning_rates(training.optimizers)),
        **dict(zip(STAGES, result.stages.tolist(), strict=True)),
        "validation batch": int(fingerprint.of_tensors(tensors_of([b[1:] for b in held_out]))),
        "evaluation": _evaluate(training, held_out),
        "logged values": {name: repr(float(value)) for name, value in result.values.items()},
    }
    return compared, result


def _first_difference(a: dict[str, Any], b: dict[str, Any], shards: Shards) -> str | None:
    """Return the first stage, in causal order, that differs in any process; None if none does."""
    # Callbacks log values too, but are not called in the first of the two steps.
    values = {name: b["logged values"].get(name) for name in a["logged values"]}
    b = {**b, "logged values": values}
    differing = shards.gather(lambda: {stage for stage in _WHERE if a[stage] != b[stage]})
    return next((stage for stage in _WHERE if any(stage in each for each in differing)), None)


def _evaluate(training: TrainingState, batches: Sequence[Batch]) -> list[Any]:
    """Return the output hashes of copies of batches, since a model may change its inputs."""
    copies = [Batch(each.ids, *map_tensors(torch.Tensor.clone, each[1:])) for each in batches]
    return [row.output_hash.tolist() for row in measure(training, copies, Shards())]


def _attributes(training: TrainingState) -> dict[str, str]:
    """Return the `repr` of each public attribute of modules, method and optimizers, by path."""
    roots = {f"model.{path}".rstrip("."): each for path, each in training.model.named_modules()}
    roots |= {"method": training.method, **optimizers.labelled(training.optimizers)}
    return {
        f"{path}.{name}": repr(value)
        for path, root in roots.items()
        for name, value in vars(root).items()
        if not name.startswith("_") and name not in ("training", "state", "param_groups")
    }
