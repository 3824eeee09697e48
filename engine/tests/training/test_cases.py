"""How the rehearsal of a resume judges models, optimizers and data sets that keep something.

Each is trained, resumed from a checkpoint in another process, and rehearsed: what gives other bits
in the step after a resume is refused, what gives the same bits passes, none is judged wrongly.
"""

import itertools
import multiprocessing
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch._dynamo  # which each process would import at its first optimizer

from seedbed.data.positions import Position
from seedbed.data.source import Batch, Source
from seedbed.errors import InputError
from seedbed.tasks import Classification
from seedbed.training import checkpoint, loop
from seedbed.training.loop import Logger
from seedbed.training.rehearsal import Rebuilt, Rehearsal
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, Plan, Progress, TrainingState
from tests.training.cases import HARMFUL, HARMLESS, LATE, SAMPLES, Case, Data

STEPS = 6  # three epochs


class Found(NamedTuple):
    """What a run left: its refusal, fingerprints by step, checkpoints by step."""

    line: str
    rows: dict[Any, Any]
    saved: dict[int, bytes]
    printed: list[str]


class Notes(Logger):
    """Keeps what a record would hold."""

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


def run(case: Case, at_start: bool = False, every_steps: int = 0, saved: bytes = b"") -> Found:
    """Train from the beginning or from a checkpoint, with rehearsals or without."""
    torch.set_num_threads(1)

    def build() -> TrainingState:
        torch.manual_seed(0)
        model, method = case.model(), case.method(Classification())
        optimizers = {"optimizer": case.optimizer(model.parameters(), lr=0.05)}
        return TrainingState(model, optimizers, method, torch.device("cpu"), strict=True)

    def batches(first: int) -> Iterator[Batch]:
        source = Source(case.data(), "train", 0, case.collate())
        for step in itertools.count(first - 1):
            yield source[Position(step // 2, np.arange(6) + 6 * step % SAMPLES)]

    def rebuild(step: int) -> Rebuilt:
        return Rebuilt(build(), [next(batches(step))], case.schedule()(step - 1))

    held_out = [Source(Data(), "validation", 0)[Position(0, np.arange(5))]]
    training, progress = build(), Progress()
    if saved:
        state = checkpoint.decode(saved)
        progress = checkpoint.restore(training, state)
    plan = Plan(STEPS, 2, 1, 1, 1, 1, None, case.schedule())
    notes = Notes(training)
    rehearsal = Rehearsal(
        rebuild, lambda: held_out, at_start, every_steps, log=notes.found.printed.append
    )
    places = batches(progress.step + 1)
    try:
        loop.fit(training, plan, progress, places, lambda: held_out, notes, Shards(), rehearsal)
    except InputError as error:
        return notes.found._replace(line=str(error))
    return notes.found


def ran(case: Case, **how: Any) -> Found:
    """Do so in a process of its own: variables of modules are as they begin."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=lambda: results.put(run(case, **how)))
    process.start()
    found: Found = results.get()
    process.join()
    return found


def resumed_differs(case: Case, whole: Found, after: int) -> bool:
    rows = ran(case, saved=whole.saved[after]).rows
    return any(row != whole.rows[step] for step, row in rows.items())


def each(cases: dict[str, Case]) -> list[Any]:
    """Return the names of cases: every sixth is tried always, the others take long."""
    return [
        name if number % 6 == 0 else pytest.param(name, marks=pytest.mark.long)
        for number, name in enumerate(cases)
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


def test_values_that_restart_in_a_resumed_run_are_named_and_change_no_bit() -> None:
    """Negative control: nothing is printed of a method that logs what the step gives."""
    smooth, plain = (ran(HARMLESS[name], at_start=True) for name in ("Smoothing", "InBuffers"))
    assert smooth.line == ""
    assert [line.partition(":")[0] for line in smooth.printed] == ["warning"]
    assert plain.printed == []
