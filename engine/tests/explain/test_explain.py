"""An injected fault is found: step, stage and operation; and nothing is found without one."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from seedbed import compare, names, record, rng, tasks
from seedbed.compare import Difference, checkout
from seedbed.data.positions import Position
from seedbed.data.source import Source
from seedbed.errors import InputError
from seedbed.explain import explain, replay
from seedbed.explain.places import describe_draw, describe_lines
from seedbed.explain.replay import AFTER, BEFORE
from seedbed.explain.trace_compare import Finding, describe, first_difference
from seedbed.explain.trace_data import AUGMENTATION, hashes_of, noted
from seedbed.methods import Supervised
from seedbed.operations.place import Place
from seedbed.operations.trace import Event, traced
from seedbed.record.code import Code
from seedbed.training import capture, checkpoint
from seedbed.training.state import TrainingState
from tests import fault_score
from tests.faults import FAULTS
from tests.running import ROOT

# Another order of sets takes other processes; tests/end_to_end/test_faults.py has it.
HERE = sorted(name for name, fault in FAULTS.items() if fault.part != "hashes")
# One fault of each part is injected by `make test`, and the others with it by `make test-all`.
SHORT = {fault.part: name for name, fault in FAULTS.items()}.values()


@pytest.fixture(scope="module", autouse=True)
def _flags() -> Iterator[None]:
    with fault_score.flags():
        yield


@cache
def injected(name: str) -> fault_score.Result:
    return fault_score.inject(name, 0)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in HERE],
)
def test_an_injected_fault_is_found(name: str) -> None:
    """Step and operation, or phase of the data, are those where the fault was injected."""
    result = injected(name)

    assert result.found.startswith(f"step {result.step},"), result.found
    assert result.right_operation, result.found


@pytest.mark.long
def test_the_stage_is_right_in_nineteen_of_twenty() -> None:
    """The stage is right, too, but for small changes that round away in the loss."""
    wrong = [result.found for result in map(injected, HERE) if not result.right_step_and_stage]

    assert len(wrong) <= len(HERE) / 20, wrong
    assert all(", gradients; forward: " in found for found in wrong), wrong


def test_nothing_is_found_in_clean_runs() -> None:
    """Negative control: pairs of honest replays have the same fingerprints and the same trace."""
    assert fault_score.false_alarms(5, seed=100) == 0


def test_a_step_is_replayed_from_the_newest_checkpoint_before_it(tmp_path: Path) -> None:
    """The fingerprints from a checkpoint is the end of the fingerprints from the beginning."""
    settings = fault_score.settings()
    whole = replay.replay(settings, 5)
    for name, step in zip(record.LAST_CHECKPOINTS, (5, 3), strict=True):
        save_checkpoint(settings, step, tmp_path / name)
    late = replay.replay(settings, 5, tmp_path)

    assert (late.start, whole.start) == (3, 0)
    assert late.rows == whole.rows[3:]
    assert outcomes(late) == outcomes(whole)


def outcomes(of: replay.Trace) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(e.operation, e.place.module, e.outputs) for e in of.events]


def save_checkpoint(settings: dict[str, object], step: int, path: Path) -> None:
    """Save what training to a step gives."""
    trainings = []
    build = replay.assemble.build_training_state

    def keep(*arguments: object) -> object:
        trainings.append(build(*arguments))  # type: ignore[arg-type]
        return trainings[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay.assemble, "build_training_state", keep)
        replay.replay(settings, step)
    state = {
        "format_version": record.FORMAT_VERSION,
        "progress": {"step": step},
        **capture.capture(trainings[0].model, trainings[0].optimizers),
    }
    checkpoint.save(state, path)


class Counts(nn.Linear):
    """A model with a buffer that state_dict leaves out."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__(3, outputs)
        self.register_buffer("calls", torch.zeros(()), persistent=False)


def counting_training(outputs: int = 2) -> TrainingState:
    model = Counts(outputs)
    optimizer = torch.optim.Adam(model.parameters())
    return TrainingState(
        model, {"optimizer": optimizer}, Supervised(tasks.Classification(0.0)), torch.device("cpu")
    )


def save_counting(training: TrainingState, path: Path) -> None:
    state = {
        "format_version": record.FORMAT_VERSION,
        "progress": {"step": 1},
        **capture.capture(training.model, training.optimizers),
    }
    checkpoint.save(state, path)


def test_a_replay_starts_with_the_buffers_that_no_state_dict_has(tmp_path: Path) -> None:
    """A buffer that is not persistent comes back from the checkpoint, as in a resume."""
    training, restored = counting_training(), counting_training()
    training.model.calls.fill_(7.0)  # type: ignore[operator, union-attr]
    save_counting(training, tmp_path / "last.pt")

    assert replay.restore(restored, tmp_path, 2) == 1
    assert restored.model.calls == 7.0


def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    """A replay that cannot start from it says so without a traceback."""
    save_counting(counting_training(), tmp_path / "last.pt")

    with pytest.raises(InputError, match="expected a checkpoint of this configuration, got"):
        replay.restore(counting_training(outputs=5), tmp_path, 2)


FINGERPRINTS = [{"step": "1", "loss": "a"}, {"step": "2", "loss": "b"}]


def side(name: str = "run A", compile: bool = False, **trainer: Any) -> explain.Side:
    trainer = {"processes": 1, "reduce": "tree", "compile": compile, "shards": 1} | trainer
    settings = OmegaConf.create({"trainer": trainer, "data": {"num_workers": 0}})
    return explain.Side(name, settings, Path("nowhere"), FINGERPRINTS, {}, checkout.here())


def beside(of: explain.Side, loss: str = "b", stage: str = "loss", same_code: bool = True) -> str:
    """Return what is said of a replay whose second loss is `loss`."""
    replayed = replay.Trace(0, [FINGERPRINTS[0], {"step": "2", "loss": loss}], [])
    difference = Difference(2, stage, "", "")
    return "\n".join(explain._beside_record(of, replayed, difference, same_code))


@pytest.mark.parametrize(
    ("trainer", "omitted"),
    [
        ({"compile": True}, ["trainer.compile=true"]),
        ({"processes": 2, "reduce": "allreduce"}, ["trainer.reduce=allreduce"]),
        ({"processes": 2}, []),
        ({"reduce": "allreduce"}, []),
        ({}, []),
    ],
)
def test_a_replay_accuses_nobody_of_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any], omitted: list[str]
) -> None:
    """Not the memory, not what lies beside the configuration; negative control: where nothing is
    left out."""
    sides = [side(), side("run B", **trainer)]
    monkeypatch.setattr(explain, "_side", lambda name, *_: sides[name == "run B"])
    monkeypatch.setattr(explain, "run_traces", lambda *_: [replay.Trace(0, FINGERPRINTS, [])] * 2)
    held = compare.Record("x", {}, {}, Code(None, {}, {}), {}, [], [])
    runs, trees = [Path("a"), Path("b")], [checkout.here()] * 2
    said = explain.of_runs(runs, [held] * 2, Difference(2, "loss", "", ""), trees)
    text = "\n".join(said)

    assert explain.left_out(sides) == omitted
    assert [each for each in omitted if f"the replay leaves out {each}" not in text] == []
    assert ("the configurations do not explain it" in text) == (not omitted)
    assert ("a bit that flipped in memory" in beside(sides[1], loss="c")) == (not omitted)
    other_code = beside(sides[1], loss="c", same_code=False)
    assert "the two runs had different code" in other_code
    assert "a bit that flipped in memory" not in other_code


def test_what_was_measured_in_a_step_is_no_evaluation() -> None:
    """A training loss that differs is not looked for after the step; negative control: a
    validation loss."""
    evaluation = "but in an evaluation after it"

    assert not any(evaluation in beside(side(), stage=r) for r in ("train_loss", "train_metric"))
    assert all(evaluation in beside(side(), stage=r) for r in ("validation_loss", "test_metric"))


def test_the_step_that_is_named_was_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the replays part earlier each time, and no trace is left to follow them."""
    traced_steps: list[int] = []

    def run_traces(_sides: Sequence[explain.Side], step: int) -> list[replay.Trace]:
        traced_steps.append(step)
        row = {"step": str(step - 1), "loss": "a"}
        return [replay.Trace(0, [row], []), replay.Trace(0, [row | {"loss": "b"}], [])]

    monkeypatch.setattr(explain, "run_traces", run_traces)
    _, named = explain.trace_both([side(), side("run B")], 9)

    assert (named, traced_steps) == (7, [9, 8, 7])


@pytest.mark.parametrize("shards", [1, 4])
def test_other_shards_are_not_looked_for_in_the_data(shards: int) -> None:
    """Hashes of shards differ though the samples are the same; negative control: with one number
    they count."""
    sides = [side(), side("run B", shards=shards)]
    loading, stepped = (Event(Place("", "", phase), "x", (), (1,)) for phase in ("loading", AFTER))
    row = {"step": "1", "sample_ids": "a", "batch": "b", "loss": "c"}
    of = replay.Trace(0, [row], [loading, stepped])

    assert explain._comparable_events(sides, of) == of.events[shards > 1 :]
    keys = {"step", "loss"} if shards > 1 else set(row)
    assert [set(each) for each in explain._comparable_rows(sides, of)] == [keys]


def test_a_trace_changes_no_bit() -> None:
    """A step has the same fingerprints with and without a trace."""
    settings = fault_score.settings()

    assert replay.replay(settings, 2).rows == replay.replay(settings, 4).rows[:2]


def test_a_trace_reads_back(tmp_path: Path) -> None:
    """What is written is what is read."""
    found = replay.replay(fault_score.settings(), 1)
    replay.write(found, tmp_path / "trace.jsonl")

    assert replay.read(tmp_path / "trace.jsonl") == found
    assert {event.place.phase for event in found.events} >= {
        *("order", "loading", "augmentation", "collate"),
        *("before the step", "forward", "backward", "update", "after the step"),
    }


def test_changes_in_place_are_seen() -> None:
    """Running averages are no output by batch norm's schema, and are among its outputs here."""
    images = torch.ones(2, 3, 4, 4)

    def outputs(mean: float) -> tuple[int, ...]:
        norm = nn.BatchNorm2d(3)
        norm.running_mean.fill_(mean)
        with traced(norm) as events:
            norm(images)
        (event,) = (e for e in events if "batch_norm" in e.operation)
        return event.outputs

    assert outputs(0.0) == outputs(0.0)
    assert outputs(0.0) != outputs(1.0)


@dataclass(frozen=True)
class Frozen:
    """A data set that cannot be changed."""

    transform: Callable[[Tensor], Tensor] = torch.neg

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(torch.ones(2)), index


class Biased(nn.Module):
    """Changes a bias in its forward pass, if asked to, through a view of it."""

    def __init__(self, write: Callable[[Tensor], object] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.write = nn.Conv2d(1, 4, 3), write

    def forward(self, x: Tensor) -> Tensor:
        if self.write is not None:
            with torch.no_grad():
                self.write(self.conv.bias)  # type: ignore[arg-type]
        return self.conv(x)


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
def test_a_write_through_a_view_is_named(write: Callable[[Tensor], object], operation: str) -> None:
    """The operation that wrote is blamed, not the next one, which only read the weight."""
    traces = []
    for model in (Biased(None), Biased(write)):
        with traced(model) as events:
            model(torch.zeros(1, 1, 5, 5))  # gives the bias alone
        traces.append(events)
    found = first_difference(*traces)
    assert found is not None
    assert found.reason == "runs in B only"
    assert found.event.operation.startswith(operation)
    assert "tests/explain/test_explain.py:" in found.event.place.line


def test_a_frozen_data_set_is_noted_and_left_as_it_was() -> None:
    """Its transform is an event like any other's, and is its own again afterwards."""
    source, events = Source(Frozen(), "train", 0), list[Event]()
    with noted(source, events):
        source[Position(0, np.array([0, 1]))]

    assert [e.place.module for e in events if e.place.phase == AUGMENTATION] == (
        ["data.train.transform"] * 2
    )
    assert source.dataset == Frozen()


class HoldsItself(Frozen):
    def __init__(self) -> None:
        self.__dict__.update(transform=torch.neg, whole=self)


def test_a_data_set_that_holds_itself_is_noted_once() -> None:
    """As one that hands itself to its parts does."""
    source, events = Source(HoldsItself(), "train", 0), list[Event]()
    with noted(source, events):
        source[Position(0, np.array([0, 1]))]

    assert [e.place.module for e in events if e.place.phase == AUGMENTATION] == (
        ["data.train.transform"] * 2
    )


def test_a_foreach_update_is_seen() -> None:
    """What a foreach operation returns is nothing; what it changes counts."""
    weights = [torch.ones(3), torch.zeros(2)]

    def outputs(amount: float) -> tuple[int, ...]:
        copies = [w.clone() for w in weights]
        with traced(nn.Identity()) as events:
            torch._foreach_add_(copies, amount)
        return events[-1].outputs

    assert outputs(1.0) != outputs(2.0)


def event(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **changes: object) -> Event:
    return replace(Event(Place("m", "", "forward"), name, inputs, outputs), **changes)


A, B, C = event("a", (1,), (2,)), event("b", (2,), (3,)), event("c", (3,), (4,))
END = Event(Place("m", "", AFTER), "weight", (), (9,))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([A, B, C], [A, B, C], None),
        ([A, B, C], [A, event("b", (2,), (8,)), C], ("b", "gives other bits")),
        ([A, B, C], [A, event("b", (7,), (8,)), C], ("b", "gets other bits")),
        # Another form of an operation is another operation.
        (
            [A, B, END],
            [A, event("b", (2,), (8,), numbers=("5",)), replace(END, outputs=(8,))],
            ("b", "runs in A only"),
        ),
        # An operation that is added and whose result is used.
        ([A, B], [A, event("x", (2,), (7,)), event("b", (7,), (8,))], ("x", "runs in B only")),
        # Two that are added: the first of those that led to it.
        (
            [A, B],
            [A, event("x", (2,), (6,)), event("y", (6,), (7,)), event("b", (7,), (8,))],
            ("x", "runs in B only"),
        ),
        # One that is missing.
        ([A, B, C], [A, event("c", (2,), (8,))], ("b", "runs in A only")),
        # One that is added and does nothing, before one that goes wrong itself.
        ([A, B, C], [A, event("x", (2,), (2,)), B, event("c", (3,), (8,))], ("c", "gives other")),
        ([A, B, C], [A, event("x", (2,), (2,)), B, C], None),
        # One whose effect is seen in the state alone.
        ([A, END], [A, event("x", (1,), ()), replace(END, outputs=(8,))], ("x", "runs in B only")),
        ([A, END], [A, replace(END, outputs=(8,))], ("weight", "was changed by no operation")),
        ([A], [replace(A, inputs=(1, 1), outputs=(5,))], ("a", "takes 1 tensors in A, 2 in B")),
        # One that is given a tensor of another shape.
        (
            [replace(A, taken=("float32 (4,)",))],
            [replace(A, inputs=(5,), outputs=(6,), taken=("float32 (2,)",))],
            ("a", "takes float32 (4,) in A, float32 (2,) in B"),
        ),
    ],
)
def test_the_first_event_that_differs_is_named(
    first: list[Event], second: list[Event], expected: tuple[str, str] | None
) -> None:
    """An operation is blamed for what it makes of what it is given, or for being there at all."""
    found = first_difference(first, second)

    if found is None or expected is None:
        assert found is expected
    else:
        assert (found.event.operation, found.reason[: len(expected[1])]) == expected


def test_what_is_found_is_told_with_module_line_and_shapes() -> None:
    """The lines for a person name all that the trace knows."""
    tensor = "float32 (2, 3)"
    one = Event(Place("head", "net.py:7", "forward"), "aten.mm", (1,), (2,), taken=(tensor,) * 9)
    found = first_difference([one], [replace(one, outputs=(3,))])
    assert found is not None
    lines = describe_lines(found, [Path("/a"), Path("/a")])
    text = "\n".join([*describe(found), *lines])

    for part in ("forward: aten.mm in module head", "net.py:7", tensor, "9 tensors", "no tensor"):
        assert part in text


class Skips(nn.Module):
    """A model with an operation that needs no gradient between two that do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_a_backward_pass_is_placed_where_its_forward_pass_was() -> None:
    """Counting batches, which has no backward pass, does not take the place of the layer before."""
    model = Skips()
    with traced(model) as events:
        model(torch.rand(4, 3)).sum().backward()
    places = {
        e.place.module for e in events if e.place.phase == "backward" and ".mm" in e.operation
    }

    assert places == {"first"}


def test_the_page_and_the_faults_name_each_other() -> None:
    """Every entry of docs/debugging.md is backed by a fault, and every fault has an entry."""
    page = (ROOT / "docs" / "debugging.md").read_text()
    entries = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    backed = [
        re.findall(r"`(\w+)`", line) for line in re.findall(r"^<!-- faults: (.*) -->$", page, re.M)
    ]

    assert len(backed) == len(entries)
    assert all(backed)
    assert sorted(name for names in backed for name in names) == sorted(FAULTS)


def test_the_page_quotes_what_is_really_said() -> None:
    """Each answer in the page's table is in the code that gives it."""
    page = (ROOT / "docs" / "debugging.md").read_text()
    table = page.split("| message | meaning |")[1].split("\n\n")[0]
    code = "".join(
        (ROOT / "engine/src/seedbed/explain" / name).read_text()
        for name in ("trace_compare.py", "explain.py")
    )
    said = [text for line in table.splitlines() for text in re.findall(r"`([^`]+)`", line)]
    words = [text for text in said if not re.search(r"\b[xymnAB]\b", text)]

    assert len(words) >= 5
    flat = re.sub(r"\{[^}\n]*\}", "", code)
    missing = [w for w in words if w.replace("gets other bits, ", "") not in flat]
    assert missing == []


def test_fingerprints_of_replays_are_those_of_fingerprints_csv() -> None:
    """The rows of a replay compare with those of a record."""
    rows = replay.replay(fault_score.settings(), 1).rows

    assert set(rows[0]) == set(record.FINGERPRINT_FIELDS)
    assert compare.first_difference(rows, rows) is None


def test_a_trace_tells_other_draws_apart() -> None:
    """What an augmentation is given includes which draws, so that it is not blamed for them."""
    ids = np.arange(3)
    first, same, other = (hashes_of(rng.Draws(key, ids)) for key in (1, 1, 2))
    assert first == same != other


def found_between(a: dict[str, Any], b: dict[str, Any], step: int = 1) -> tuple[Finding, str]:
    """Return what differs first between two configurations, and what is said of its draw."""
    sides = (a, b)
    found = first_difference(*(replay.replay(each, step).events for each in sides))
    assert found is not None
    settings = [OmegaConf.create(each) for each in sides]
    return found, "\n".join(describe_draw(found, settings))


@pytest.mark.parametrize(
    ("stream", "phase", "operation"),
    [
        ("order", "data order", "sample ids"),
        ("augment", "augmentation", "Noise"),
        ("init", "construction", "aten.uniform_.default"),
        ("dropout", "forward", "aten.bernoulli_.float"),
    ],
)
def test_a_draw_that_is_another_one_is_named(stream: str, phase: str, operation: str) -> None:
    """The phase that draws and the seed, also where it was drawn before the step."""
    found, said = found_between(fault_score.settings(), fault_score.settings(seeds={stream: 7}))

    assert (found.phase, found.event.operation) == (phase, operation)
    assert said == f"    drawn from seeds.{stream}, which is 0 in A and 7 in B"


def test_a_seed_that_streams_follow_is_named() -> None:
    """Of all draws that are other ones, the first is named."""
    seeded = fault_score.settings(seeds=dict.fromkeys(names.STREAMS, 7)) | {"seed": 7}
    found, said = found_between(fault_score.settings(), seeded)

    assert found.phase == "data order"
    assert said == "    drawn from seeds.order, which is 0 in A and 7 in B, as seed is"


def test_a_change_that_is_no_draw_blames_no_seed() -> None:
    """Negative control: an operation is added, and the seeds differ."""
    model = {"fault": "operation_added", "step": 1}
    found, said = found_between(
        fault_score.settings(), fault_score.settings(model=model, seeds={"split": 7})
    )

    assert found.event.operation.startswith("aten.mul")
    assert said == ""


def test_what_is_older_than_a_step_is_looked_for_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights that differ in the checkpoints; control: operations that differ are not older."""

    def trace(start: int, phase: str, outcome: int) -> replay.Trace:
        state = Event(Place("m", "", phase), "weight", (), (outcome,))
        return replay.Trace(start, [{"step": "9", "loss": str(outcome)}], [state])

    asked: list[list[Path | None]] = []

    def first_of(phase: str) -> list[Path | None]:
        """Return where the traces started that were asked for, if the first differ in a phase."""

        def run_traces(sides: Sequence[explain.Side], _step: int) -> list[replay.Trace]:
            asked.append([side.checkpoints for side in sides])
            if asked[-1][0] is None:
                return [trace(0, "construction", n) for n in (1, 2)]
            return [trace(8, phase, n) for n in (1, 2)]

        asked.clear()
        monkeypatch.setattr(explain, "run_traces", run_traces)
        explain.trace_to_the_cause([side(), side("run B")], 9)
        assert all(a == b for a, b in asked)
        return [a for a, _ in asked]

    assert first_of("forward") == [Path("nowhere")]
    assert first_of(BEFORE) == [Path("nowhere"), None]
