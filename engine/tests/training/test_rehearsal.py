"""Verdicts of the rehearsal of a resume on models, methods, optimizers and data sets with state.

Each is trained, resumed from a checkpoint in another process, and rehearsed: it is refused if and
only if its bits differ in the step after a resume.
"""

import itertools
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch._dynamo  # otherwise each process imports it at its first optimizer
from torch import nn

from seedbed.data.positions import Position
from seedbed.data.source import Batch, Source
from seedbed.errors import InputError
from seedbed.tasks import Classification
from seedbed.training import checkpoint, loop
from seedbed.training.loop import Logger
from seedbed.training.rehearsal import Rebuilt, Rehearsal
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, Plan, Progress, TrainingState
from tests.distributed.test_distributed import in_processes
from tests.odd_optimizers import NumPyScale
from tests.training import cases
from tests.training.cases import CLASSES, FEATURES, HARMFUL, HARMLESS, LATE, SAMPLES, Case

STEPS = 6  # three epochs


class Found(NamedTuple):
    """The results of a run: its refusal, fingerprints and checkpoints by step, printed lines."""

    line: str
    rows: dict[Any, Any]
    saved: dict[int, bytes]
    printed: list[str]


class Notes(Logger):
    """Keeps fingerprints and checkpoints in memory, in place of a record."""

    def __init__(self, training: TrainingState) -> None:
        super().__init__()
        self.training, self.found = training, Found("", {}, {}, [])

    def log_step(self, step: int, loss: Any, values: Any, stages: Any) -> None:
        self.found.rows[step] = stages.tolist()

    def log_validation(self, progress: Progress, result: Evaluation, is_best: bool) -> None:
        self.found.rows[progress.step, "validation"] = result.output_hashes.tolist()

    def save_checkpoint(self, progress: Progress) -> None:
        state = checkpoint.capture(self.training, progress)
        self.found.saved[progress.step] = checkpoint.encode(state)


def run(
    case: Case,
    at_start: bool = False,
    every_steps: int = 0,
    saved: bytes = b"",
    strict: bool = True,
    shards: int = 1,
) -> Found:
    """Train from the beginning or from a checkpoint, with or without rehearsals."""

    def build() -> TrainingState:
        torch.manual_seed(0)
        model, method = case.model(), case.method(Classification())
        optimizers = {"optimizer": case.optimizer(model.parameters(), lr=0.05)}
        return TrainingState(model, optimizers, method, torch.device("cpu"), strict=strict)

    def batches(first: int) -> Iterator[Batch]:
        source = Source(case.data(), "train", 0)
        for step in itertools.count(first - 1):
            for ids in np.split(np.arange(6) + 6 * step % SAMPLES, shards):
                yield source[Position(step // 2, ids)]

    def rebuild(step: int) -> Rebuilt:
        taken = list(itertools.islice(batches(step), shards))
        return build(), taken, plan.learning_rate_factor(step - 1)

    def held_out() -> list[Batch]:
        return [Source(case.data(), "validation", 0)[Position(0, np.arange(5))]]

    training, progress = build(), Progress()
    if saved:
        progress = checkpoint.restore(training, checkpoint.decode(saved))
    often = {"log_every_steps": 1, "validate_every_epochs": 1, "checkpoint_every_steps": 1}
    trainer: Any = SimpleNamespace(**often, early_stopping_patience=None)
    plan = Plan(STEPS, 2, trainer, 1, lambda step: 1 - step / 10)
    notes = Notes(training)
    rehearsal = Rehearsal(rebuild, held_out, at_start, every_steps, log=notes.found.printed.append)
    places, cut = batches(progress.step + 1), Shards(shards)
    try:
        loop.fit(training, plan, progress, places, held_out, notes, cut, rehearsal)
    except InputError as error:
        return notes.found._replace(line=str(error))
    return notes.found


def ran(case: Case, **how: Any) -> Found:
    """Call `run` in a new process, where variables of modules have their initial values."""
    found = in_processes(1, lambda _: run(case, **how))[0]
    assert isinstance(found, Found), found
    return found


def resumed_differs(case: Case, whole: Found, after: int) -> bool:
    rows = ran(case, saved=whole.saved[after]).rows
    return any(row != whole.rows[step] for step, row in rows.items())


def each(named: dict[str, Case]) -> list[Any]:
    """Return the names of cases; all but every fourth are marked `long`."""
    return [
        name if number % 4 == 0 else pytest.param(name, marks=pytest.mark.long)
        for number, name in enumerate(named)
    ]


@pytest.mark.parametrize("name", each(HARMFUL))
def test_what_a_resume_changes_is_refused(name: str) -> None:
    case = HARMFUL[name]
    line = ran(case, at_start=True).line
    assert line.startswith(("model:", "optimizer:", "data.train:", "schedule:")), line
    assert "expected the same" in line
    assert resumed_differs(case, ran(case), after=4 if name == "counts_evaluations" else 1)


@pytest.mark.parametrize("name", each(LATE))
def test_what_begins_later_is_found_by_later_replays(name: str) -> None:
    case = LATE[name]
    assert ran(case, at_start=True).line == ""
    assert "expected the same" in ran(case, every_steps=4).line
    assert resumed_differs(case, ran(case), after=4)


@pytest.mark.parametrize("name", each(HARMLESS))
def test_what_a_resume_does_not_change_passes_to_the_same_bits(name: str) -> None:
    case, whole = HARMLESS[name], ran(HARMLESS[name])
    for rehearsed in (ran(case, at_start=True), ran(case, every_steps=1)):
        assert (rehearsed.line, rehearsed.rows) == ("", whole.rows)
    assert not resumed_differs(case, whole, after=1)
    assert not resumed_differs(case, whole, after=4)


def test_a_refusal_names_the_first_stage_that_differs_and_what_a_step_changes() -> None:
    """Negative control: nothing is refused if no bits are promised."""
    for name, stage in (("counts", "loss"), ("counts_evaluations", "evaluation")):
        line = ran(HARMFUL[name], at_start=True).line
        assert line.startswith(f"model: expected the same {stage} in step 2 from a run that is res")
        assert "model.calls" in line
    assert ran(HARMFUL["CountingSteps"], at_start=True).line.startswith("schedule: expected")
    assert ran(HARMFUL["counts"], at_start=True, strict=False).line == ""


def test_what_no_file_brings_back_is_named_under_every_preset() -> None:
    """In step 2, by the entry and its type, or by the optimizer state whose layout does not fit."""
    for strict in (True, False):
        line = ran(Case(optimizer=NumPyScale), at_start=True, strict=strict).line
        assert line.startswith("optimizer.state.scale: expected tensors, numbers, strings")
        assert "numpy.float64" in line
    unlike = ran(Case(method=cases.Orthogonal, optimizer=cases.fused), at_start=True).line
    assert unlike.startswith("optimizer: expected exp_avg of shape, dtype and strides")


def test_values_that_restart_in_a_resumed_run_are_named_and_change_no_bit() -> None:
    """Negative control: a method that logs only values of the step prints nothing."""
    smooth, plain = (ran(HARMLESS[name], at_start=True) for name in ("Smoothing", "draws_seeded"))
    assert smooth.line == ""
    assert [line.partition(":")[0] for line in smooth.printed] == ["warning"]
    assert plain.printed == []


def test_shards_go_on_with_the_model_that_was_built_anew() -> None:
    """A batch has three shards, in one process; two models never exist at the same time."""
    alive: list[int] = []

    class Counted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(FEATURES, CLASSES)
            alive.append(1)
            weakref.finalize(self, alive.pop)
            assert len(alive) == 1

    case = Case(model=Counted, optimizer=torch.optim.AdamW)
    whole, rehearsed = (ran(case, shards=3, at_start=each) for each in (False, True))
    assert (rehearsed.line, rehearsed.rows) == ("", whole.rows)
