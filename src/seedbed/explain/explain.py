"""From the first step that differs to the operation: that step replayed twice, under a trace."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from seedbed import compare, launch, offline
from seedbed.compare import Difference, Record, checkout, verify
from seedbed.compare.verify import Outcome
from seedbed.errors import InputError
from seedbed.explain import replay
from seedbed.explain.replay import Trace
from seedbed.explain.trace_compare import describe, first_difference
from seedbed.explain.trace_data import DATA_PHASES
from seedbed.operations.trace import Event
from seedbed.record import Row

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
        checkpoints: the folder of its checkpoints.
        rows: the fingerprints of its record.
        variables: environment variables beside those of its preset.
    """

    name: str
    settings: DictConfig
    checkpoints: Path
    rows: Sequence[Row]
    variables: Mapping[str, str]


def of_replay(
    run: Path, outcome: Outcome, trust: Sequence[str], restore_code: bool, online: bool = False
) -> Iterator[str]:
    """Yield lines on why a run was not reproduced, from two more replays of that step."""
    difference = outcome.comparison.difference
    if difference is None:
        yield "\nNothing to explain: no recorded step differs"
        return
    settings = verify.trusted_config(run, trust)
    with checkout.environment(run, outcome.record.code, restore_code) as variables:
        variables = variables | offline.variables(online)
        side = Side(
            "the record", settings, run / "checkpoints", outcome.record.fingerprints, variables
        )
        traces, step = trace_both([side, side], difference.step)
    yield f"\n{_opening(traces, step)}, both times with this configuration"
    found = first_difference(traces[0].events, traces[1].events)
    if found is not None:
        yield "The two replays differ from each other: the step is nondeterministic"
        yield from describe(found)
        return
    yield "The two replays have the same bits"
    yield from _omissions(left_out([side]))
    yield from _beside_record(side, traces[0], difference)


def of_runs(
    runs: Sequence[Path],
    records: Sequence[Record],
    difference: Difference,
    trust: Sequence[str],
    online: bool = False,
) -> Iterator[str]:
    """Yield lines on why two runs differ, from a replay of each of the step that differs."""
    sides = [
        Side(
            *(name, verify.trusted_config(run, trust), run / "checkpoints", held.fingerprints),
            offline.variables(online),
        )
        for name, run, held in zip(("run A", "run B"), runs, records, strict=True)
    ]
    traces, step = trace_both(sides, difference.step)
    yield f"\n{_opening(traces, step)}, once with each configuration"
    if records[0].code != records[1].code:
        yield "note: the records name different code; both are replayed with the code that is here"
    if not _same_shards(sides):
        yield "note: trainer.shards is not the same, so the phases of the data are not compared"
    found = first_difference(*(_comparable_events(sides, each) for each in traces))
    if found is not None:
        yield "First that differs"
        yield from describe(found)
        return
    omitted = left_out(sides)
    yield "The two replays have the same bits" + (
        "" if omitted else ": the configurations do not explain it"
    )
    yield from _omissions(omitted)
    same_code = records[0].code == records[1].code
    for side, replayed in zip(sides, traces, strict=True):
        yield from _beside_record(side, replayed, difference, same_code)


def trace_both(sides: Sequence[Side], step: int) -> tuple[list[Trace], int]:
    """Replay both sides to a step and trace it, or an earlier one at which they diverge."""
    traces = run_traces(sides, step)
    for _ in range(_MOST_TRACES - 1):
        diverged = compare.first_difference(*(_comparable_rows(sides, each) for each in traces))
        if diverged is None or diverged.step == step:
            break
        step = diverged.step
        traces = run_traces(sides, step)
    return traces, step


def _same_shards(sides: Sequence[Side]) -> bool:
    return len({side.settings.trainer.shards for side in sides}) == 1


def _comparable_rows(sides: Sequence[Side], of: Trace) -> list[Row]:
    stages = compare.comparable_stages(*(side.settings.trainer.shards for side in sides))
    return [{key: row[key] for key in ("step", *stages) if key in row} for row in of.rows]


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
        omitted += ["trainer.compile=true"] if trainer.compile else []
        if trainer.processes > 1 and trainer.reduce == "allreduce":
            omitted.append("trainer.reduce=allreduce")
        omitted += [f"data.num_workers={workers}"] if workers else []
    return list(dict.fromkeys(omitted))


def _omissions(omitted: Sequence[str]) -> Iterator[str]:
    if omitted:
        yield f"  but the replay leaves out {', '.join(omitted)}, which can change bits"


def run_traces(sides: Sequence[Side], step: int) -> list[Trace]:
    """Trace a step of each side, in processes of their own that run side by side.

    Raises:
        InputError: one of them failed.
    """
    with tempfile.TemporaryDirectory(prefix="seedbed-explain-") as name, ExitStack() as stack:
        started = []
        for index, side in enumerate(sides):
            folder = Path(name, str(index))
            launch.create_run_folder(folder, side.settings)
            files = (str(folder), str(step), str(folder / "trace.jsonl"), str(side.checkpoints))
            environment = launch.training_environment(side.settings) | dict(side.variables)
            process = subprocess.Popen(
                [sys.executable, "-m", "seedbed.explain.replay", *files],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            stack.callback(verify.stop, process)
            started.append((side, process, folder / "trace.jsonl"))
        return [_result(*entry) for entry in started]


def _result(side: Side, process: "subprocess.Popen[bytes]", out: Path) -> Trace:
    message = process.communicate()[1].decode(errors="replace")
    if process.returncode:
        last = (message.strip().splitlines() or ["no message"])[-1].removeprefix("error: ")
        raise InputError(f"--explain: expected a replay of {side.name} that runs, got {last}")
    return replay.read(out)


def _opening(traces: Sequence[Trace], step: int) -> str:
    starts = sorted({"the beginning" if t.start == 0 else f"step {t.start}" for t in traces})
    count = len(traces[0].events)
    return f"Step {step} replayed twice from {' and '.join(starts)}, {count:,} events traced"


def _beside_record(
    side: Side, replayed: Trace, difference: Difference, same_code: bool = True
) -> Iterator[str]:
    """Yield lines on whether a replay has the bits of a record, and what follows if not."""
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
        if not same_code:
            yield "  the two records name different code, which can be the cause: see above"
        elif not left_out([side]):
            yield "  the cause is not in this configuration and code: look at the causes above, and"
            yield "  for what no record holds, such as a bit that flipped in memory"
