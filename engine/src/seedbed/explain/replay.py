"""Why two runs differ: the first differing step of each is replayed, and its operations
compared.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import torch

from seedbed import assemble, compare, config, fingerprint, launch, offline, record
from seedbed.assemble import statistics
from seedbed.compare import Difference, Record, verify
from seedbed.determinism import backends
from seedbed.errors import InputError
from seedbed.explain.difference import Finding, describe, first_difference
from seedbed.explain.trace import BEFORE, Event, noted, traced
from seedbed.operations import Place
from seedbed.record import Row
from seedbed.record.code import Tree
from seedbed.training import checkpoint, schedules
from seedbed.training.shards import Shards
from seedbed.training.state import Plan, Progress, TrainingState
from seedbed.training.step import train_step


@dataclass(frozen=True)
class Trace:
    """The trace of one replayed step."""

    # the step of the checkpoint that the replay started from; 0: the beginning
    start: int
    # the fingerprints from `start` to the traced step, as in fingerprints.csv
    rows: list[Row]
    events: list[Event]  # the data, state and operations of the traced step


def of_runs(
    runs: Sequence[tuple[Path, Record, Tree]],
    difference: Difference | None,
    trust: Sequence[str] = (),
    online: bool = False,
) -> Iterator[str]:
    """Yield lines on why two runs differ, by replaying the first differing step of
    each.

    A run is its folder, its record and the code to replay it with. Of a single one,
    which was not reproduced, two replays are compared.
    """
    if difference is None:
        yield "\nNothing to explain: no recorded step differs"
        return
    names = ("run A", "run B") if len(runs) > 1 else ("the record",)
    replays, slices = _replays_of(runs, names, trust, online)
    if len(set(slices)) > 1:
        yield (
            f"\nNothing to explain: {slices[0]} and {slices[1]} slices of a batch give"
            " other bits"
        )
        return
    traces, step, finding = trace_to_the_cause((replays * 2)[:2], difference.step)
    starts = sorted({f"step {t.start}" if t.start else "the beginning" for t in traces})
    count = len(traces[0].events)
    yield (
        f"\nStep {step} replayed twice from {' and '.join(starts)}, {count:,} events"
        " traced"
    )
    if len(runs) > 1:  # verify.py prints this advice itself
        advice = [
            verify.advice_on_code(recorded)
            for _, recorded, tree in runs
            if not tree.is_recorded
        ]
        yield from dict.fromkeys(f"note: {each}" for each in advice if each)
    if finding is not None:
        one = "The two replays differ from each other: the step is nondeterministic"
        yield "First that differs" if len(runs) > 1 else one
        yield from describe(finding, [tree.root for _, _, tree in runs])
        return
    yield (
        "The two replays have the same bits; they ran in one process, without loader"
        " workers and evaluations, and not compiled"
    )
    records = [recorded for _, recorded, _ in runs]
    yield from _unlike_records(names, records, traces)


def _replays_of(
    runs: Sequence[tuple[Path, Record, Tree]],
    names: Sequence[str],
    trust: Sequence[str],
    online: bool,
) -> tuple[list[Callable[[int, bool], Trace]], list[int]]:
    """Return a function for each run that traces a step of it, and the slices of a
    step."""
    replays: list[Callable[[int, bool], Trace]] = []
    slices = []
    for name, (run, _, tree) in zip(names, runs, strict=True):
        settings = verify.trusted_config(run, trust, tree)
        variables = launch.training_environment(settings) | offline.variables(
            config.may_connect(run, online)
        )
        replays.append(partial(trace, name, run, variables | tree.variables))
        slices.append(settings.trainer.slices)
    return replays, slices


def _unlike_records(
    names: Sequence[str], records: Sequence[Record], traces: Sequence[Trace]
) -> Iterator[str]:
    """Yield a line on where the replay of each run differs from its record."""
    for name, recorded, replayed in zip(names, records, traces, strict=False):
        diverged = compare.first_difference(recorded.fingerprints, replayed.rows)
        where = "no recorded fingerprint"
        if diverged is not None:
            where = f"the record, at step {diverged.step}, stage {diverged.stage}"
        yield f"  {name}: the replay differs from {where}"


def trace_to_the_cause(
    replays: Sequence[Callable[[int, bool], Trace]], step: int
) -> tuple[list[Trace], int, Finding | None]:
    """Trace both replays at the step where they diverge; return the first difference
    there.

    If they diverge before `step`, that earlier step is traced instead, repeatedly in
    case of nondeterminism. If the state differs before the step, both restart without
    checkpoints.
    """
    from_checkpoint = True
    while True:
        traces = [replay(step, from_checkpoint) for replay in replays]
        diverged = compare.first_difference(*(each.rows for each in traces))
        finding = first_difference(*(each.events for each in traces))
        if diverged is not None and diverged.step < step:
            step = diverged.step
        elif (
            finding
            and finding.event.place.phase == BEFORE
            and any(each.start for each in traces)
        ):
            from_checkpoint = False
        else:
            return traces, step, finding


def trace(
    name: str, run: Path, variables: Mapping[str, str], step: int, from_checkpoint: bool
) -> Trace:
    """Trace a step of a run, called `name` in errors, in a process with these
    variables.

    Raises:
        InputError: the replay failed, or a record's code wrote another version's trace.
    """
    checkpoints = [run / "checkpoints" / each for each in record.LAST_CHECKPOINTS]
    with tempfile.TemporaryDirectory(prefix="seedbed-explain-") as folder:
        out = Path(folder, "trace.pt")
        candidates = checkpoints if from_checkpoint else ()
        asked = {"step": step, "out": out, "checkpoints": [*candidates]}
        command = launch.worker_command(
            "trace", str(run), json.dumps(asked, default=str)
        )
        done = subprocess.run(command, env=variables, capture_output=True)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [
                "no message"
            ]
            raise InputError(
                f"--explain: expected the replay of {name} to run, got "
                f"{lines[-1].removeprefix('error: ')}"
            )
        try:  # numbers and strings: no code in the file is executed
            start, rows, events = torch.load(out, weights_only=True)
            return Trace(
                start,
                rows,
                [Event(Place(*place_fields), *rest) for place_fields, *rest in events],
            )
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{out.name}: expected a trace of this version, got {error}"
            ) from None


def replay(
    settings: config.Settings,
    step: int,
    checkpoints: Iterable[Path] = (),
    validations: Iterable[Row] = (),
) -> Trace:
    """Train to a step in this process, and trace the last one.

    All shards are computed in this process; their sums follow a tree, so no bit
    changes.

    Args:
        checkpoints: candidates to start from, newest first: the first of a step before
        `step`.
        validations: rows of metrics.csv, by which schedule=plateau lowers learning
        rates.
    """
    _fill_uninitialized_memory(settings)
    device = assemble.choose_device(settings.trainer.device)
    shards = Shards(settings.trainer.slices)
    parts = assemble.build_parts(settings, device, shards)
    source = parts.sources["train"]
    training = parts.training
    plan = parts.plan
    progress = _restored(training, checkpoints, step, device)
    start = progress.step
    rows_of = {
        int(row["step"]): row for row in validations if row["phase"] == "validation"
    }
    shards.begin(training, start)
    hashes = list[tuple[int, torch.Tensor]]()
    hasher = fingerprint.Hasher(device)
    nothing: AbstractContextManager[list[Event]] = nullcontext([])
    gives_values = training.overrides("epoch_values")
    positions_of_steps = parts.positions(start, step)
    for number in range(start + 1, step + 1):
        progress.step = number - 1
        if progress.validated_step < progress.step and progress.step in rows_of:
            _note_validation(training, plan, progress, rows_of[progress.step])
        schedules.set_learning_rates(
            training.optimizers, plan.learning_rate_factor(number - 1)
        )
        if gives_values and (number == start + 1 or plan.ends_epoch(number - 1)):
            parts.begin_epoch(progress)
        positions = list(shards.divide(iter([next(positions_of_steps)])))
        is_last = number == step
        with noted(source, positions) if is_last else nothing as loaded:
            batches = [source[position] for position in positions]
        model = training.model
        optimizers = training.optimizers.values()
        with traced(model, optimizers) if is_last else nothing as operations:
            stages = train_step(training, batches, number, shards, False, hasher).stages
        assert stages is not None  # a hasher was passed
        hashes.append((number, stages))
    return Trace(start, fingerprint.rows(hashes), loaded + operations)


def _fill_uninitialized_memory(settings: config.Settings) -> None:
    """Fill it if the run has done so in its rehearsal: operations that only write to
    their inputs, as dropout does, are then equal."""
    fill = backends.flags()["fill_uninitialized_memory"]
    if (
        fill.set is not None
        and settings.determinism.fill_uninitialized_memory == "rehearsal"
    ):
        fill.set(True)


def _restored(
    training: TrainingState,
    checkpoints: Iterable[Path],
    step: int,
    device: torch.device,
) -> Progress:
    """Restore the first checkpoint of a step before `step`; return its progress, or
    that of a beginning."""
    for path in checkpoints:
        with suppress(InputError):  # damaged or missing: try the next
            kept = checkpoint.load(path, device)
            if checkpoint.progress_of(kept).step < step:
                return checkpoint.restore(training, kept)
    return Progress()


def _note_validation(
    training: TrainingState, plan: Plan, progress: Progress, row: Row
) -> None:
    """Let a recorded validation lower the learning rates of schedule=plateau."""
    if not plan.plateau:
        return
    values = record.values_of(row)
    value = training.monitored({name: float(cell) for name, cell in values.items()})
    progress.plateau = schedules.note_validation(
        plan.plateau, progress.plateau, value, training.monitor, training.optimizers
    )


def trace_as_requested(arguments: Sequence[str]) -> int:
    """Trace a step of a run; the task `trace` of `seedbed.worker`.

    RUN/config.yaml is a resolved configuration. The run starts from the first of
    `checkpoints` that is of a step before `step`, or from the beginning; the trace of
    its data, operations and state is written to `out`.
    """
    run = Path(arguments[0])
    asked = json.loads(arguments[1])
    offline.enforce()
    settings = statistics.of_record(config.check(record.read_config(run)), run)
    settings.trainer.compile = False  # a compiled model's operations cannot be seen
    assemble.prepare_backends(settings)
    rows = record.read_metrics(run)
    traced_step = replay(settings, asked["step"], map(Path, asked["checkpoints"]), rows)
    torch.save(astuple(traced_step), asked["out"])
    return 0
