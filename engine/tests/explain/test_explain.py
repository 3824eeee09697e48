"""An injected fault is found: step, stage and operation; and nothing is found without one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seedbed import record
from seedbed.explain import replay
from seedbed.explain.replay import AFTER
from seedbed.explain.trace import Event
from seedbed.explain.trace_compare import first_difference
from seedbed.operations.place import Place
from seedbed.training import checkpoint
from seedbed.training.state import Progress, TrainingState
from tests import fault_score
from tests.faults import FAULTS

# One fault of each part is injected by `make test`, and the others with it by `make test-all`.
SHORT = {fault.part: name for name, fault in FAULTS.items()}.values()


@pytest.fixture(scope="module", autouse=True)
def _flags() -> Iterator[None]:
    with fault_score.flags():
        yield


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in FAULTS],
)
def test_an_injected_fault_is_found(name: str) -> None:
    """Step and operation, or phase of the data, are those where the fault was injected."""
    result = fault_score.inject(name, 0)
    assert result.found.startswith(f"step {result.step},"), result.found
    assert result.right_operation, result.found


def test_nothing_is_found_in_clean_runs() -> None:
    """Negative control: pairs of honest replays have the same fingerprints and the same trace."""
    assert fault_score.false_alarms(5, seed=100) == 0


def test_a_step_is_replayed_from_the_newest_checkpoint_before_it(tmp_path: Path) -> None:
    """Its rows are the end of those from the beginning."""
    settings = fault_score.settings()
    whole = replay.replay(settings, 5)
    for name, step in zip(record.LAST_CHECKPOINTS, (5, 3), strict=True):

        def save(training: TrainingState, step: int = step, name: str = name) -> None:
            state = checkpoint.capture(training, Progress(step=step))
            checkpoint.save(state, tmp_path / name)

        replay.replay(settings, step + 1, before_last=save)
    late = replay.replay(settings, 5, tmp_path)
    assert (late.start, whole.start) == (3, 0)
    assert late.rows == whole.rows[3:]
    assert outcomes(late) == outcomes(whole)


def outcomes(of: replay.Trace) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(e.operation, e.place.module, e.outputs) for e in of.events]


def event(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **changes: object) -> Event:
    return replace(Event(Place("m", "", "forward"), name, inputs, outputs), **changes)


A, B, C = event("a", (1,), (2,)), event("b", (2,), (3,)), event("c", (3,), (4,))
END = Event(Place("m", "", AFTER), "weight", (), (9,))


CASES = [
    ([A, B, C], [A, B, C], None),
    ([A, B, C], [A, event("b", (7,), (8,)), C], ("b", "an input differs")),
    # Another form of an operation is another operation.
    (
        [A, B, END],
        [A, event("b", (2,), (8,), numbers=("5",)), replace(END, outputs=(8,))],
        ("b", "runs in A only"),
    ),
    # One that is missing.
    ([A, B, C], [A, event("c", (2,), (8,))], ("b", "runs in A only")),
    # One that is added and does nothing, before one that goes wrong itself, or none that does.
    ([A, B, C], [A, event("x", (2,), (2,)), B, event("c", (3,), (8,))], ("c", "gives diff")),
    ([A, B, C], [A, event("x", (2,), (2,)), B, C], None),
    # One whose effect is seen in the state alone.
    ([A, END], [A, event("x", (1,), ()), replace(END, outputs=(8,))], ("x", "runs in B only")),
    ([A], [replace(A, inputs=(1, 1), outputs=(5,))], ("a", "gets 1 tensors in A, 2 in B")),
    # One that is given a tensor of another shape.
    (
        [replace(A, taken=("float32 (4,)",))],
        [replace(A, inputs=(5,), outputs=(6,), taken=("float32 (2,)",))],
        ("a", "gets float32 (4,) in A, float32 (2,) in B"),
    ),
]


@pytest.mark.parametrize(("first", "second", "expected"), CASES)
def test_the_first_event_is_named(first: list[Event], second: list[Event], expected: Any) -> None:
    """An operation is blamed for what it makes of what it is given, or for being there at all."""
    found = first_difference(first, second)
    if found is None or expected is None:
        assert found is expected
    else:
        assert (found.event.operation, found.reason[: len(expected[1])]) == expected


@pytest.mark.parametrize(
    ("stream", "phase", "operation"),
    [
        ("order", "data order", "sample ids"),
        ("augment", "augmentation", "Noise"),
        ("init", "before the step", "blocks.0.conv.weight"),
        ("dropout", "forward", "aten.bernoulli_.float"),
    ],
)
def test_a_draw_that_is_another_one_is_named(stream: str, phase: str, operation: str) -> None:
    """The phase that draws, also where it was drawn before the step."""
    sides = fault_score.settings(), fault_score.settings(seeds={stream: 7})
    found = first_difference(*(replay.replay(each, 1).events for each in sides))
    assert found is not None
    assert (found.phase, found.event.operation) == (phase, operation)
