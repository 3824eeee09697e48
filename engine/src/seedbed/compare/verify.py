"""Replay a run from its record, comparing fingerprints as they grow.

A record may come from a stranger. Its configuration is data: classes are built that files
of *this* checkout name, the training process gets no environment variable that this
checkout's presets do not name (LD_PRELOAD runs code, too), and opens no address unless it is told
to. Only a tree of the record's code (`checkout.code_of`), which a user must ask for, runs such.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig
from tqdm import tqdm

from seedbed import compare, config, launch, offline, record
from seedbed.compare import Comparison, Difference, Record, checkout
from seedbed.compare.checkout import Tree
from seedbed.errors import InputError
from seedbed.record import Row, code

_POLL_SECONDS = 0.1
_STOP_SECONDS = 60


@dataclass(frozen=True)
class Outcome:
    """What became of a replay.

    Attributes:
        record, replay: both records, up to `last_step`.
        comparison: of the two.
        last_step: the last step that was to be replayed.
        reached_step: the last step that the replay recorded.
    """

    record: Record
    replay: Record
    comparison: Comparison
    last_step: int
    reached_step: int

    @property
    def reproduced(self) -> bool:
        """Return whether the replay got as far as the record, with the same bits."""
        return self.comparison.difference is None and self.reached_step == self.last_step


def replay(
    run: Path,
    folder: Path,
    steps: int | None = None,
    trust: Sequence[str] = (),
    tree: Tree | None = None,
    online: bool = False,
) -> Outcome:
    """Replay a run in a new folder until its bits differ, or to its end.

    Args:
        run: the record; nothing is written there.
        folder: where the replay's own record goes; new or empty.
        steps: how many steps to replay; None: all that are recorded.
        trust: names that the record may have, beside those of files in configs/.
        tree: the code to replay it with; None: that of this checkout.
        online: open addresses that the record names, such as those of data sets.

    Raises:
        InputError: the record cannot be read or is not trusted, or the replay fails to run.
    """
    before = read(run)
    tree = tree or checkout.here()
    settings = trusted_config(run, trust)
    whole = steps is None and before.summary.get("status") == "finished"
    last = last_step(before, steps)
    before = before if whole else prefix(before, last)
    environment = launch.training_environment(settings) | offline.variables(online)
    launch.create_run_folder(folder, settings)
    difference = _run(settings, folder, environment | tree.variables, before, whole, tree)
    after = compare.read(folder)
    if tree.is_recorded:  # whatever repository it lies in, it is the code of that commit
        after = replace(after, code=replace(after.code, commit=before.code.commit))
    if difference is not None or not whole:
        last = last if difference is None else difference.step
        before, after = prefix(before, last), prefix(after, last)
    return Outcome(before, after, compare.compare(before, after), last, _last(after))


def read(run: Path) -> Record:
    """Read a record, of a run that no process works on.

    Raises:
        InputError: the folder is no run, its record is damaged or too new, or it is still alive.
    """
    found = compare.read(run)
    if found.summary.get("status") == "running" and (run / ".lock").is_file():
        with suppress(OSError), record.lock(run):  # nobody works where nobody can write
            pass
    return found


def trusted_config(run: Path, trust: Sequence[str] = ()) -> DictConfig:
    """Return the configuration of a record, if it asks for nothing that is not trusted here.

    Args:
        trust: names that the record may have, beside those of files in configs/.

    Raises:
        InputError: it names classes or environment variables that this checkout does not, or is
        no configuration for this version.
    """
    settings = record.read_config(run)
    settings.pop("logger", None)  # a replay is nobody's run to log, and sends nothing anywhere
    config.require_trusted(settings, run, trust)
    try:
        config.check(settings)
    except InputError as error:
        raise InputError(f"{run / 'config.yaml'}: {error}") from None
    return settings


def last_step(of: Record, steps: int | None) -> int:
    """Return the last step of a record to replay: `steps`, if given, or the last one."""
    end = _last(of)
    if end == 0:
        raise InputError(f"{of.name}: expected a recorded step, got none; name a run that trained")
    if steps is None:
        return end
    recorded = [int(row["step"]) for row in _live_rows(of) if int(row["step"]) <= steps]
    if not recorded:
        first = next((row["step"] for row in _live_rows(of)), end)
        raise InputError(f"--steps: expected {first} or more, the first step recorded, got {steps}")
    return recorded[-1]


def prefix(of: Record, last: int) -> Record:
    """Return a record up to a step, as if the run had been interrupted there."""
    metrics = [row for row in of.metrics if int(row["step"]) <= last]
    fingerprints = [row for row in of.fingerprints if int(row["step"]) <= last]
    summary = {**of.summary, "status": "interrupted", "steps": last}
    return replace(of, summary=summary, metrics=metrics, fingerprints=fingerprints)


def follow(
    path: Path, fields: tuple[str, ...], process: "subprocess.Popen[bytes]"
) -> Iterator[Row]:
    """Yield the rows of a CSV file that a process is writing, until the process has ended.

    Args:
        fields: the first columns. The process may replace the file by one with more of them.
    """
    position, rest, seen, inode = 0, b"", 0, None
    while True:
        ended = process.poll() is not None  # asked before reading: nothing is written after it
        if path.exists():
            with open(path, "rb") as file:
                is_other = inode not in (None, os.fstat(file.fileno()).st_ino)
                inode = os.fstat(file.fileno()).st_ino
                position, rest = (0, b"") if is_other else (position, rest)
                file.seek(position)
                content = file.read()
            position += len(content)
            *lines, rest = (rest + content).split(b"\n")
            new = lines[seen:] if is_other else lines
            seen += len(new)
            rows = (line.decode().split(",")[: len(fields)] for line in new)
            yield from (dict(zip(fields, row, strict=True)) for row in rows if row != [*fields])
        if ended:
            return
        time.sleep(_POLL_SECONDS)


def _run(
    settings: DictConfig,
    folder: Path,
    environment: Mapping[str, str],
    before: Record,
    whole: bool,
    tree: Tree,
) -> Difference | None:
    """Train in a folder until the fingerprints diverge, or to the last step of the record."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            launch.worker_command(settings, folder),
            env=launch.alone(environment),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            difference = compare.first_difference(
                _live_rows(before), _growing_rows(before, folder, process)
            )
            if whole and difference is None:
                process.wait()
            ended = process.poll()
        finally:
            stop(process)
        if ended and difference is None:
            output.seek(0)
            advice = "" if tree.is_recorded else advice_on_code(before)
            _check_failure(folder, None if whole else _last(before), output.read(), advice)
    return difference


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a training process: it saves its checkpoint, and is killed if that takes too long."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _live_rows(of: Record) -> list[Row]:
    """Return the rows to compare as they come: the fingerprints, or the losses without any."""
    return of.fingerprints or list(_losses(of.metrics))


def _growing_rows(of: Record, folder: Path, process: "subprocess.Popen[bytes]") -> Iterator[Row]:
    total = _last(of)
    bar = tqdm(total=total, unit=" steps", leave=False, disable=None, file=sys.stdout)
    if of.fingerprints:
        table = follow(folder / "fingerprints.csv", record.FINGERPRINT_FIELDS, process)
    else:
        table = _losses(follow(folder / "metrics.csv", record.METRIC_FIELDS, process))
    with bar:
        for row in table:
            bar.update(min(int(row["step"]), total) - bar.n)
            yield row


def _losses(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        if row["phase"] == "train":
            yield {"step": row["step"], "train_loss": row["loss"], "train_metric": row["metric"]}


def _last(of: Record) -> int:
    return max((int(row["step"]) for row in _live_rows(of)), default=0)


def advice_on_code(of: Record) -> str:
    """Return what to do where this checkout has other code than a record; "" where it has not."""
    changed = code.changed_here(of.code)
    if not changed:
        return ""
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return (
        f"the code here is not that of the record ({changed[0]}{more}); replay with the record's, "
        "if you trust it: --restore-code"
    )


def _check_failure(folder: Path, last: int | None, output: bytes, advice: str) -> None:
    """Raise InputError for a replay that failed before the last step asked for, or at all."""
    summary = record.read_summary(folder) if (folder / "summary.json").exists() else {}
    if last is not None and summary.get("steps", 0) >= last:
        return
    lines = output.decode(errors="replace").strip().splitlines() or ["no message"]
    error = summary.get("error") or lines[-1].removeprefix("error: ")
    raise InputError(
        f"replay: expected a training process that runs to its end, got {error}"
        + (f"; {advice}" if advice else "")
    )
