"""Why two runs differ: the first differing step is replayed twice to find the operation."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from seedbed import compare, launch, offline, record
from seedbed.compare import Difference, Record, verify
from seedbed.errors import InputError
from seedbed.explain import replay
from seedbed.explain.replay import Trace
from seedbed.explain.trace import BEFORE
from seedbed.explain.trace_compare import Finding, describe, first_difference
from seedbed.record.code import Tree


def of_runs(
    runs: Sequence[tuple[Path, Record, Tree]],
    difference: Difference | None,
    trust: Sequence[str] = (),
    online: bool = False,
) -> Iterator[str]:
    """Yield lines on why two runs differ, by replaying the first differing step of each.

    Args:
        runs: folder, record and the code to replay it with, of each run; for a single run,
            which was not reproduced, two replays of it are compared.
    """
    if difference is None:
        yield "\nNothing to explain: no recorded step differs"
        return
    names = ("run A", "run B") if len(runs) > 1 else ("the record",)
    replays, shards = [], []
    for name, (run, _, tree) in zip(names, runs, strict=True):
        settings = verify.trusted_config(run, trust, tree)
        variables = launch.training_environment(settings) | offline.variables(online)
        replays.append(partial(trace, name, run, variables | tree.variables))
        shards.append(settings.trainer.shards)
    if len(set(shards)) > 1:
        yield f"\nNothing to explain: trainer.shards={shards[0]} and {shards[1]} give other bits"
        return
    traces, step, finding = trace_to_the_cause((replays * 2)[:2], difference.step)
    starts = sorted({f"step {t.start}" if t.start else "the beginning" for t in traces})
    count = len(traces[0].events)
    yield f"\nStep {step} replayed twice from {' and '.join(starts)}, {count:,} events traced"
    if len(runs) > 1:  # verify.py prints this advice itself
        advice = [verify.advice_on_code(of) for _, of, tree in runs if not tree.is_recorded]
        yield from dict.fromkeys(f"note: {each}" for each in advice if each)
    if finding is not None:
        one = "The two replays differ from each other: the step is nondeterministic"
        yield "First that differs" if len(runs) > 1 else one
        yield from describe(finding, [tree.root for _, _, tree in runs])
        return
    yield (
        "The two replays have the same bits; they ran in one process, without loader workers and "
        "evaluations, and not compiled"
    )
    for name, (_, of, _), replayed in zip(names, runs, traces, strict=False):
        diverged = compare.first_difference(of.fingerprints, replayed.rows)
        if diverged is None:
            yield f"  {name}: the replay differs from no recorded fingerprint"
        else:
            place = f"at step {diverged.step}, stage {diverged.stage}"
            yield f"  {name}: the replay differs from the record, {place}"


def trace_to_the_cause(
    replays: Sequence[Callable[[int, bool], Trace]], step: int
) -> tuple[list[Trace], int, Finding | None]:
    """Trace both replays at the step where they diverge; return the first difference there.

    If they diverge before `step`, that earlier step is traced instead, repeatedly in case of
    nondeterminism. If the state differs before the step, both restart without checkpoints.
    """
    from_checkpoint = True
    while True:
        traces = [replay(step, from_checkpoint) for replay in replays]
        diverged = compare.first_difference(*(each.rows for each in traces))
        finding = first_difference(*(each.events for each in traces))
        if diverged is not None and diverged.step < step:
            step = diverged.step
        elif finding and finding.event.place.phase == BEFORE and any(each.start for each in traces):
            from_checkpoint = False
        else:
            return traces, step, finding


def trace(
    name: str, run: Path, variables: Mapping[str, str], step: int, from_checkpoint: bool
) -> Trace:
    """Trace a step of a run in a new process.

    Args:
        name: name of the run in the error message.
        variables: the environment of the process.

    Raises:
        InputError: the replay failed.
    """
    checkpoints = [run / "checkpoints" / each for each in record.LAST_CHECKPOINTS]
    with tempfile.TemporaryDirectory(prefix="seedbed-explain-") as folder:
        out = Path(folder, "trace.pt")
        words = [run, step, out, *(checkpoints if from_checkpoint else ())]
        command = [sys.executable, "-m", "seedbed.explain.replay", *map(str, words)]
        done = subprocess.run(command, env=variables, capture_output=True)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise InputError(
                f"--explain: expected the replay of {name} to run, got "
                f"{lines[-1].removeprefix('error: ')}"
            )
        return replay.read(out)
