"""From the first step that differs to the operation: that step replayed twice, under a trace."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig

from seedbed import compare, launch, offline
from seedbed.compare import Difference, Record, verify
from seedbed.compare.checkout import Tree
from seedbed.compare.verify import Outcome
from seedbed.errors import InputError
from seedbed.explain import replay
from seedbed.explain.replay import BEFORE, Trace
from seedbed.explain.trace_compare import Finding, describe, describe_lines, first_difference
from seedbed.explain.trace_data import DATA_PHASES
from seedbed.operations.trace import Event
from seedbed.record import Row, change

# An earlier step is traced instead if the replays diverge before it; with a nondeterministic
# operation they may diverge at another step each time.
_MOST_TRACES = 3
# What was compared at these was measured after the step.
_EVALUATIONS = ("validation_", "test_", "final_")


@dataclass(frozen=True)
class Side:
    """One of the two things that are replayed.

    Attributes:
        name: what the report calls it.
        settings: its configuration, checked.
        checkpoints: the folder of its checkpoints; None to start from the beginning.
        rows: the fingerprints of its record.
        variables: environment variables beside those of its preset.
        tree: its code.
        advice: what to do if that is not the code that ran; else "".
    """

    name: str
    settings: DictConfig
    checkpoints: Path | None
    rows: Sequence[Row]
    variables: Mapping[str, str]
    tree: Tree
    advice: str = ""


def of_replay(
    run: Path, outcome: Outcome, trust: Sequence[str], tree: Tree, online: bool = False
) -> Iterator[str]:
    """Yield lines on why a run was not reproduced, from two more replays of that step.

    Args:
        tree: the code that the outcome's replay ran.
    """
    difference = outcome.comparison.difference
    if difference is None:
        yield "\nNothing to explain: no recorded step differs"
        return
    side = _side("the record", run, outcome.record, trust, tree, online)
    traces, step = trace_both([side, side], difference.step)
    yield f"\n{_opening(traces, step)}, both times with this configuration"
    found = first_difference(traces[0].events, traces[1].events)
    if found is not None:
        yield "The two replays differ from each other: the step is nondeterministic"
        yield from describe(found)
        yield from describe_lines(found, [tree.root, tree.root])
        return
    same_code = change.same_code(outcome.record.code, outcome.replay.code)
    yield from _unexplained([side], traces, difference, same_code)


def of_runs(
    runs: Sequence[Path],
    records: Sequence[Record],
    difference: Difference,
    trees: Sequence[Tree],
    trust: Sequence[str] = (),
    online: bool = False,
) -> Iterator[str]:
    """Yield lines on why two runs differ, from a replay of each of the step that differs.

    Args:
        trees: the code to replay each with.
    """
    each = zip(("run A", "run B"), runs, records, trees, strict=True)
    sides = [_side(name, run, held, trust, tree, online) for name, run, held, tree in each]
    traces, step, found = trace_to_the_cause(sides, difference.step)
    code_too = " and its own code" if all(tree.is_recorded for tree in trees) else ""
    yield f"\n{_opening(traces, step)}, once with each configuration{code_too}"
    yield from dict.fromkeys(f"note: {side.advice}" for side in sides if side.advice)
    if not _same_shards(sides):
        yield "note: trainer.shards is not the same, so the phases of the data are not compared"
    if found is None:
        same_code = change.same_code(records[0].code, records[1].code)
        yield from _unexplained(sides, traces, difference, same_code)
        return
    yield "First that differs"
    yield from describe(found)
    yield from describe_lines(found, [side.tree.root for side in sides])


def _side(
    name: str, run: Path, held: Record, trust: Sequence[str], tree: Tree, online: bool
) -> Side:
    settings = verify.trusted_config(run, trust)
    variables = offline.variables(online) | tree.variables
    advice = "" if tree.is_recorded else verify.advice_on_code(held)
    return Side(name, settings, run / "checkpoints", held.fingerprints, variables, tree, advice)


def trace_to_the_cause(sides: Sequence[Side], step: int) -> tuple[list[Trace], int, Finding | None]:
    """Trace both sides at the step where they diverge; return what differs first there.

    What differs when a step begins is older than it. Then both are replayed from the beginning.
    """
    traces, step = trace_both(sides, step)
    found = first_difference(*(_comparable_events(sides, each) for each in traces))
    is_older = found is not None and found.phase == BEFORE
    if is_older and any(each.start for each in traces):
        return trace_to_the_cause([replace(side, checkpoints=None) for side in sides], step)
    return traces, step, found


def trace_both(sides: Sequence[Side], step: int) -> tuple[list[Trace], int]:
    """Replay both sides to a step and trace it, or an earlier one at which they diverge."""
    stages = compare.comparable_stages(*(side.settings.trainer.shards for side in sides))
    for _ in range(_MOST_TRACES):
        traces = run_traces(sides, step)
        rows = (
            [{key: row[key] for key in ("step", *stages) if key in row} for row in each.rows]
            for each in traces
        )
        diverged = compare.first_difference(*rows)
        traced, step = step, diverged.step if diverged else step
        if traced == step:
            break
    return traces, traced


def run_traces(sides: Sequence[Side], step: int) -> list[Trace]:
    """Trace a step of each side, in processes of their own.

    Raises:
        InputError: one of them failed.
    """
    traces = []
    for side in sides:
        with tempfile.TemporaryDirectory(prefix="seedbed-explain-") as name:
            folder, out = Path(name, "run"), Path(name, "trace.pt")
            launch.create_run_folder(folder, side.settings)
            words = [str(folder), str(step), str(out)]
            words += [str(side.checkpoints)] if side.checkpoints else []
            done = subprocess.run(
                [sys.executable, "-m", "seedbed.explain.replay", *words],
                env=launch.training_environment(side.settings) | dict(side.variables),
                capture_output=True,
                check=False,
            )
            if done.returncode:
                lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
                raise InputError(
                    f"--explain: expected a replay of {side.name} that runs, got "
                    f"{lines[-1].removeprefix('error: ')}"
                )
            traces.append(replay.read(out))
    return traces


def _same_shards(sides: Sequence[Side]) -> bool:
    return len({side.settings.trainer.shards for side in sides}) == 1


def _comparable_events(sides: Sequence[Side], of: Trace) -> list[Event]:
    """Return the events that can be aligned: other shards are loaded in other pieces."""
    skipped = () if _same_shards(sides) else DATA_PHASES
    return [event for event in of.events if event.place.phase not in skipped]


def left_out(sides: Sequence[Side]) -> list[str]:
    """Return the settings that can change bits and that a trace does without.

    It runs in one process, without loader workers, and not compiled.
    """
    omitted: list[str] = []
    for side in sides:
        trainer, workers = side.settings.trainer, side.settings.data.num_workers
        omitted += ["trainer.compile=true"] * trainer.compile
        allreduce = trainer.processes > 1 and trainer.reduce == "allreduce"
        omitted += ["trainer.reduce=allreduce"] * allreduce
        omitted += [f"data.num_workers={workers}"] if workers else []
    return list(dict.fromkeys(omitted))


def _opening(traces: Sequence[Trace], step: int) -> str:
    starts = sorted({"the beginning" if t.start == 0 else f"step {t.start}" for t in traces})
    count = len(traces[0].events)
    return f"Step {step} replayed twice from {' and '.join(starts)}, {count:,} events traced"


def _unexplained(
    sides: Sequence[Side], traces: Sequence[Trace], difference: Difference, same_code: bool
) -> Iterator[str]:
    """Yield lines on replays that have the same bits though the records have not."""
    omitted = ", ".join(left_out(sides))
    but = f", but the replay leaves out {omitted}, which can change bits" if omitted else ""
    yield f"The two replays have the same bits{but}"
    for side, replayed in zip(sides, traces, strict=False):
        diverged = compare.first_difference(side.rows, replayed.rows)
        if not side.rows:
            yield f"  {side.name}: holds no fingerprints to compare a replay with"
        elif diverged is None:
            yield f"  {side.name}: the replay has the bits that were recorded"
            if difference.stage.startswith(_EVALUATIONS):
                yield "  the difference is not in the step, but in an evaluation after it"
        else:
            place = f"at step {diverged.step}, stage {diverged.stage}"
            yield f"  {side.name}: the replay differs from the record, {place}"
            if side.advice or not same_code:
                yield "  the code is not the same, which can be the cause"
            elif not omitted:
                yield (
                    "  the cause is not in this configuration and code: look at the changes above, "
                    "and for what no record holds, such as a bit that flipped in memory"
                )
