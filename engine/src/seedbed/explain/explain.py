"""From the first step that differs to the operation: that step replayed twice, under a trace."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig

from seedbed import compare, launch, offline
from seedbed.compare import Difference, Record, verify
from seedbed.compare.checkout import Tree
from seedbed.errors import InputError
from seedbed.explain import replay
from seedbed.explain.replay import BEFORE, Trace
from seedbed.explain.trace_compare import Finding, describe, first_difference
from seedbed.explain.trace_data import DATA_PHASES

# An earlier step is traced instead if the replays diverge before it; with a nondeterministic
# operation they may diverge at another step each time.
_MOST_TRACES = 4
# What was compared at these was measured after the step.
_EVALUATIONS = ("validation_", "test_", "final_")


@dataclass(frozen=True)
class Side:
    """One of the two things that are replayed.

    Attributes:
        name: what the report calls it.
        settings: its configuration, checked.
        checkpoints: the folder of its checkpoints; None to start from the beginning.
        record: its record.
        tree: the code to replay it with, and variables beside those of its preset.
    """

    name: str
    settings: DictConfig
    checkpoints: Path | None
    record: Record
    tree: Tree


def of_runs(
    runs: Sequence[tuple[Path, Record, Tree]],
    difference: Difference | None,
    trust: Sequence[str] = (),
    online: bool = False,
) -> Iterator[str]:
    """Yield lines on why two runs differ, from a replay of each of the step that differs.

    Args:
        runs: folder, record and the code to replay it with; of one run, which was not reproduced,
            two replays are compared.
    """
    if difference is None:
        yield "\nNothing to explain: no recorded step differs"
        return
    names = ("run A", "run B") if len(runs) > 1 else ("the record",)
    sides = [
        Side(
            name,
            settings=verify.trusted_config(run, trust),
            checkpoints=run / "checkpoints",
            record=record,
            tree=replace(tree, variables=offline.variables(online) | tree.variables),
        )
        for name, (run, record, tree) in zip(names, runs, strict=True)
    ]
    heading = "First that differs"
    if len(sides) == 1:
        sides *= 2
        heading = "The two replays differ from each other: the step is nondeterministic"
    traces, step, finding = trace_to_the_cause(sides, difference.step)
    starts = sorted({f"step {t.start}" if t.start else "the beginning" for t in traces})
    count = len(traces[0].events)
    yield f"\nStep {step} replayed twice from {' and '.join(starts)}, {count:,} events traced"
    if sides[0] is not sides[1]:  # verify.py prints that of its own
        advice = [verify.advice_on_code(x.record) for x in sides if not x.tree.is_recorded]
        yield from dict.fromkeys(f"note: {each}" for each in advice if each)
    if not _same_shards(sides):
        yield "note: trainer.shards is not the same, so the phases of the data are not compared"
    if finding is not None:
        yield heading
        yield from describe(finding, [side.tree.root for side in sides])
    else:
        yield from dict.fromkeys(_unexplained(sides, traces, difference))


def trace_to_the_cause(sides: Sequence[Side], step: int) -> tuple[list[Trace], int, Finding | None]:
    """Trace both sides at the step where they diverge; return what differs first there.

    That is an earlier step where the replays diverge before it. What differs when a step begins is
    older than it: then both are replayed from the beginning.
    """
    stages = compare.comparable_stages(*(side.settings.trainer.shards for side in sides))
    # Other shards are loaded in other pieces, which cannot be aligned.
    skipped = () if _same_shards(sides) else DATA_PHASES
    for attempts_left in reversed(range(_MOST_TRACES)):
        traces = [trace(side, step) for side in sides]
        rows = (
            [{key: row[key] for key in ("step", *stages) if key in row} for row in each.rows]
            for each in traces
        )
        events = [[e for e in each.events if e.place.phase not in skipped] for each in traces]
        diverged, finding = compare.first_difference(*rows), first_difference(*events)
        is_older = finding is not None and finding.phase == BEFORE
        if attempts_left and diverged is not None and diverged.step < step:
            step = diverged.step
        elif attempts_left and is_older and any(each.start for each in traces):
            sides = [replace(side, checkpoints=None) for side in sides]
        else:
            break
    return traces, step, finding


def trace(side: Side, step: int) -> Trace:
    """Trace a step of a side, in a process of its own.

    Raises:
        InputError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="seedbed-explain-") as name:
        folder, out = Path(name, "run"), Path(name, "trace.pt")
        launch.create_run_folder(folder, side.settings)
        command = [sys.executable, "-m", "seedbed.explain.replay", str(folder), str(step), str(out)]
        done = subprocess.run(
            command + ([str(side.checkpoints)] if side.checkpoints else []),
            env=launch.training_environment(side.settings) | side.tree.variables,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise InputError(
                f"--explain: expected a replay of {side.name} that runs, got "
                f"{lines[-1].removeprefix('error: ')}"
            )
        return replay.read(out)


def _same_shards(sides: Sequence[Side]) -> bool:
    return len({side.settings.trainer.shards for side in sides}) == 1


def _unexplained(
    sides: Sequence[Side], traces: Sequence[Trace], difference: Difference
) -> Iterator[str]:
    """Yield lines on replays that have the same bits though the records have not."""
    yield (
        "The two replays have the same bits; they ran in one process, without loader workers, and "
        "not compiled"
    )
    for side, replayed in zip(sides, traces, strict=False):
        diverged = compare.first_difference(side.record.fingerprints, replayed.rows)
        if not side.record.fingerprints:
            yield f"  {side.name}: holds no fingerprints to compare a replay with"
        elif diverged is not None:
            place = f"at step {diverged.step}, stage {diverged.stage}"
            yield f"  {side.name}: the replay differs from the record, {place}"
        else:
            yield f"  {side.name}: the replay has the bits that were recorded"
    if difference.stage.startswith(_EVALUATIONS):
        yield "  the difference is not in the step, but in an evaluation after it"
