"""Injected faults are found by step, stage and operation; without a fault, nothing is
found."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seedbed import config, record, rng
from seedbed.explain import replay
from seedbed.explain.difference import first_difference
from seedbed.explain.trace import (
    AFTER,
    AUGMENTATION,
    BEFORE,
    LOADING,
    Event,
    hashes_of,
    traced,
)
from seedbed.operations import Place
from tests import fault_score, faults, running, tiny
from tests.compare.test_verify import edit_stage
from tests.faults import FAULTS
from tests.run.runs import of_method, trained

# `make test` injects one fault per part, `make test-all` all of them.
SHORT = {fault.part: name for name, fault in FAULTS.items()}.values()


@pytest.fixture(scope="module", autouse=True)
def _flags() -> Iterator[None]:
    with fault_score.flags():
        yield


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.long)
        for name in FAULTS
    ],
)
def test_an_injected_fault_is_found(name: str) -> None:
    """Step, stage and operation (or loading phase) are those where the fault was
    injected."""
    result = fault_score.inject(name, 0)
    assert result.right_step_and_stage, result.found
    assert result.right_operation, result.found


def test_nothing_is_found_in_clean_runs() -> None:
    """Negative control: pairs of fault-free replays have the same fingerprints and
    trace."""
    assert fault_score.false_alarms(5, seed=100) == 0


def event(
    name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **changes: object
) -> Event:
    return replace(Event(Place("m", "", "forward"), name, inputs, outputs), **changes)


A = event("a", (1,), (2,))
B = event("b", (2,), (3,))
C = event("c", (3,), (4,))
DRAW = replace(A, draws=True)
END = Event(Place("", "", AFTER), "weight", (9,), (9,))
NOISE = Event(Place("data.train.transform", "", AUGMENTATION), "noise", (6,), (7,))
LOAD = Event(Place("data.train", "", LOADING), "__getitem__", (5,), (6,))
BEGIN = replace(END, place=Place("", "", BEFORE))
FIRST, SECOND = (
    replace(NOISE, place=Place(f"data.train.t[{i}]", "", AUGMENTATION)) for i in "01"
)
SCALE = replace(FIRST, operation="scale", outputs=(3,))

CASES = [
    ([A, B, C], [A, B, C], None),
    ([A, B, C], [A, event("b", (7,), (8,)), C], ("b", "an input differs")),
    # Called with other arguments.
    (
        [A, B, END],
        [A, event("b", (2,), (8,), arguments=("5",)), replace(END, outputs=(8,))],
        ("b", "is called with nothing in A, 5 in B"),
    ),
    # Missing in B.
    ([A, B, C], [A, event("c", (2,), (8,))], ("b", "runs in A only")),
    # Added without effect, before an operation that itself goes wrong, or before none.
    (
        [A, B, C],
        [A, event("x", (2,), (2,)), B, event("c", (3,), (8,))],
        ("c", "gives diff"),
    ),
    ([A, B, C], [A, event("x", (2,), (2,)), B, C], None),
    # A draw that advances the generator of the next one.
    (
        [DRAW],
        [replace(C, draws=True), replace(DRAW, outputs=(8,))],
        ("c", "runs in B only"),
    ),
    # A transform whose output is the loaded sample.
    ([LOAD], [NOISE, replace(LOAD, outputs=(7,))], ("noise", "runs in B only")),
    # A transform inserted before another one.
    (
        [FIRST],
        [SCALE, replace(SECOND, inputs=(3,), outputs=(8,))],
        ("scale", "runs in B only"),
    ),
    # A layer that draws its weights before the others.
    (
        [BEGIN],
        [replace(BEGIN, operation="new"), replace(BEGIN, outputs=(8,))],
        ("new", "runs in"),
    ),
    # An operation whose effect shows only in the state.
    (
        [A, END],
        [A, event("x", (1,), ()), replace(END, outputs=(8,))],
        ("x", "runs in B only"),
    ),
    # Called with a tensor of another shape.
    (
        [replace(A, arguments=("float32 (4,)",))],
        [replace(A, inputs=(5,), outputs=(6,), arguments=("float32 (2,)",))],
        ("a", "is called with float32 (4,) in A, float32 (2,) in B"),
    ),
]


@pytest.mark.parametrize(("first", "second", "expected"), CASES)
def test_the_first_event_is_named(
    first: list[Event], second: list[Event], expected: Any
) -> None:
    """An operation is blamed if its call or results differ, or if only one side runs
    it."""
    found = first_difference(first, second)
    if found is None or expected is None:
        assert found is expected
    else:
        assert (found.event.operation, found.reason[: len(expected[1])]) == expected


def test_weights_that_were_drawn_otherwise_are_named_before_the_step() -> None:
    """Different initial weights are named; draws within a step are among the faults
    above."""
    sides = fault_score.settings(), fault_score.settings(seeds={"init": 7})
    found = first_difference(*(replay.replay(each, 1).events for each in sides))
    assert (found.event.place.phase, found.event.operation) == (
        BEFORE,
        "blocks.0.conv.weight",
    )


class Vocabulary(dict[str, int]):
    """A callable dict with its entries as attributes; traced, it is still a dict to
    Chained."""

    __getattr__ = __call__ = dict.__getitem__


class Chained(faults.Images):
    """Images whose transforms are a module; `kind`, a class, is not a transform."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = nn.Sequential(nn.Tanh(), nn.ReLU())
        self.kind = np.float32
        self.words = Vocabulary(a=1)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = super().__getitem__(index)
        assert isinstance(self.words, Vocabulary)
        assert "a" in self.words
        assert list(self.words) == ["a"]
        return image + torch.from_numpy(np.ones(1, self.kind)), label

    def batches(self, epoch: int, n: int, draw: np.random.Generator) -> list[Any]:
        """Return batches that may repeat samples, as a sampler does."""
        return list(draw.integers(0, n, (8, 8)))


def test_the_phases_of_the_data_are_told_apart() -> None:
    """Order, augmentation, loading and collate have separate events, with a sampler,
    too."""
    plain = fault_score.settings().plain
    own = {"_target_": f"{__name__}.Chained"}
    plain["data"] |= {"train": own, "sampler": own}
    events = replay.replay(running.typed(**plain), 1).events
    loaded = [("augmentation", "Sequential"), ("sample loading", "__getitem__")] * 8
    data = [("data order", "sample ids"), *loaded, ("collate", "collate")]
    assert [(e.place.phase, e.operation) for e in events[: len(data)]] == data
    assert "container.py:" in events[1].place.line, (
        "where the module's forward pass is written"
    )
    draws = hashes_of([rng.Draws(0, np.arange(2)) for _ in range(2)])
    assert draws[0] == draws[1], "as objects of other processes"


def test_what_lies_in_memory_before_it_is_written_is_not_looked_at() -> None:
    """Traces ignore uninitialized memory, as in LSTM workspaces. Negative control:
    other inputs."""

    def trace(dirt: float, value: float) -> list[Event]:
        torch.manual_seed(0)
        model = nn.LSTM(2, 64, batch_first=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.full((6_300_000,), dirt)  # freed memory of the workspace's size
        target = torch.full((3,), dirt)
        with traced(model, [optimizer]) as events:
            model(torch.full((64, 100, 2), value))[0].sum().backward()
            target.copy_(torch.full((3,), 1e30))  # which target may hold already
        return events

    first = trace(1e30, 0.5)
    second = trace(math.nan, 0.5)
    assert any("mkldnn_rnn_layer_backward" in event.operation for event in first)
    assert first_difference(first, second) is None
    lstms = [
        [e for e in events if "copy_" not in e.operation] for events in (first, second)
    ]
    assert lstms[0] == lstms[1]
    assert first_difference(second, trace(math.nan, 0.25))


def nudge(bias: Tensor) -> None:
    bias[3] = torch.nextafter(bias[3], torch.tensor(9.0))


@pytest.mark.parametrize(
    ("write", "operation"),
    [
        (nudge, "aten.nextafter"),
        (lambda bias: bias[1:].mul_(2), "aten.mul_"),
        (lambda bias: bias.data.view(2, 2)[0].fill_(7), "aten.fill_"),
        (lambda bias: bias.detach()[2:].add_(1), "aten.add_"),
    ],
)
def test_a_write_through_a_view_is_named(
    write: Callable[[Tensor], object], operation: str
) -> None:
    """The operation that wrote is blamed, not the next one, which only read the
    weight."""

    @torch.no_grad()
    def before(conv: Any, _: object) -> None:
        write(conv.bias)

    traces = []
    for writes in (False, True):
        torch.manual_seed(0)
        model = nn.Conv2d(1, 4, 3)
        if writes:
            model.register_forward_pre_hook(before)
        with traced(model) as events:
            model(torch.zeros(1, 1, 5, 5))  # the output is the bias alone
        traces.append(events)
    found = first_difference(*traces)
    assert found.reason == "runs in B only"
    assert found.event.operation.startswith(operation)
    assert "tests/explain/test_explain.py:" in found.event.place.line


@pytest.mark.usefixtures("this_process_trains")
@pytest.mark.parametrize("method", ["WassersteinGAN", "FineTuning"])
def test_a_step_of_several_updates_is_replayed_to_the_bit(
    method: str, tmp_path: Path
) -> None:
    """Replays from the newest earlier checkpoint and the start agree, and name
    optimizer states."""
    run = trained(tmp_path / "run", *of_method(method, "trainer.max_steps=5"))
    settings = config.check(record.read_config(run))
    checkpoints = [run / "checkpoints" / name for name in record.LAST_CHECKPOINTS]
    # from one line, which events name
    whole, trace = (replay.replay(settings, 5, given) for given in ((), checkpoints))
    assert (whole.start, trace.start) == (0, 3), "there is one of step 5, too"
    recorded = [
        {k: v for k, v in row.items() if v} for row in record.read_fingerprints(run)
    ]
    assert whole.rows == recorded
    assert trace.rows == recorded[3:]
    assert whole.events == trace.events
    names = {event.operation for event in trace.events}
    inner = "critic.0.weight" if method == "WassersteinGAN" else "0.weight"
    assert f"exp_avg of {inner}" in names
    assert {event.place.phase for event in trace.events} >= {"backward", "update"}


IMAGES = {
    key: {"_target_": "tests.faults.Images", "number": number}
    for number, key in enumerate(("train", "validation", "test"))
}
DATA = tiny.DATA | IMAGES | {"collate": "tests.faults.collate"}
WORDS = tiny.overrides({"name": "faulty", "_target_": "tests.faults.Net"}, DATA)


def explained(*words: object) -> str:
    """Run a command with --explain that must find a difference; return its output."""
    done = running.command(*map(str, words), "--explain", "--trust", "tests.faults")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.long
def test_compare_names_the_stage_of_the_data(tmp_path: Path) -> None:
    """Labels from the order of a set of strings depend on PYTHONHASHSEED: a fault in
    loading."""
    fault = ("+data.train.fault=set_of_strings", "+data.train.sample_id=5")
    a, b = (
        running.trained(
            tmp_path / seed, *WORDS, *fault, f"determinism.env.PYTHONHASHSEED='{seed}'"
        )
        for seed in ("1", "2")
    )
    text = explained("scripts/compare.py", a, b)
    assert "batch contents (augmentation or loading)" in text
    assert "sample loading: __getitem__ in module data.train" in text
    assert "determinism.env.PYTHONHASHSEED" in text


@pytest.mark.long
def test_verify_names_what_does_not_repeat(tmp_path: Path) -> None:
    """An unseeded generator in a layer makes two replays of one configuration differ.

    Negative control: if a bit of the record is flipped, the replays agree; no operation
    is named.
    """
    fault = ("+model.fault=unseeded_generator", "+model.step=3", "+model.where=0")
    text = explained(
        "scripts/verify.py", running.trained(tmp_path / "run", *WORDS, *fault)
    )
    assert "diverge at step 3: loss" in text
    assert (
        "The two replays differ from each other: the step is nondeterministic" in text
    )
    assert "forward: aten.rand.generator in module blocks.0" in text
    edit_stage(running.trained(tmp_path / "clean", *WORDS), 4, "gradients")
    text = explained("scripts/verify.py", tmp_path / "clean")
    assert "The two replays have the same bits" in text
    assert "the replay differs from the record, at step 4, stage gradients" in text
    assert "aten." not in text
