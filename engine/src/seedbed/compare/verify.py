"""Replay a run from its record, and compare every recorded result bit for bit.

A record may come from a stranger, so its configuration is treated as data: it may use
only classes and environment variables (LD_PRELOAD runs code) that files of *this*
checkout name. The user must ask for addresses to be opened, and for the record's own
code to run (`code.code_of`).
"""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seedbed import compare, config, launch, offline, record, signals
from seedbed.compare import Comparison, Record
from seedbed.compare.stages import in_order
from seedbed.compare.stated import compare_stated, last_step
from seedbed.config import Settings
from seedbed.errors import InputError, some
from seedbed.launch import ChildProcesses
from seedbed.names import flatten
from seedbed.record import chain, change, code, files
from seedbed.record.code import Tree

_STOP_SECONDS = 60
_MOST_FILES = 5  # to be named


@dataclass(frozen=True)
class Range:
    """The steps of a record to replay."""

    start: int  # the step of the checkpoint to start from; 0: the beginning
    last: int
    ends: bool  # the run finished, and is replayed to its end

    @property
    def whole(self) -> bool:
        return self.ends and not self.start

    def of(self, recorded: Record) -> Record:
        """Return a record cut to these steps, as if the run had been interrupted after
        the last."""
        if self.whole:
            return recorded
        metrics, fingerprints = (
            [row for row in table if self.start < int(row["step"]) <= self.last]
            for table in (recorded.metrics, recorded.fingerprints)
        )
        # The final test has the step of the tested weights, which may be an earlier
        # one.
        metrics = [row for row in metrics if row["phase"] != "test"]
        if self.ends:
            metrics += [row for row in recorded.metrics if row["phase"] == "test"]
            return replace(recorded, metrics=metrics, fingerprints=fingerprints)
        end = recorded.summary.get("steps")
        summary = {**recorded.summary, "status": "cut", "steps": self.last, "end": end}
        return replace(
            recorded, summary=summary, metrics=metrics, fingerprints=fingerprints
        )


@dataclass(frozen=True)
class Outcome:
    """The result of a replay."""

    record: Record  # cut to the replayed steps, like `replay`
    replay: Record
    comparison: Comparison
    steps: Range  # to be replayed
    reached_step: int
    forged: list[str]  # a line for each thing that the record states and that is not so
    not_compared: list[str]  # what the record states and the replay cannot tell

    @property
    def reproduced(self) -> bool:
        reached = self.reached_step == self.steps.last
        return self.comparison.difference is None and reached and not self.forged


def replay(
    run: Path,
    folder: Path,  # for the replay's own record; new or empty
    steps: Range,
    # names that the record may use, besides those in configs/
    trust: Sequence[str] = (),
    tree: Tree | None = None,  # the code to replay it with; this checkout if None
    # open addresses that the record names, such as those of data sets
    online: bool = False,
    to_the_end: bool = False,  # do not stop at the first difference
) -> Outcome:
    """Replay a run in a new folder until its bits differ, or to the last step."""
    before = read(run)
    tree = tree or Tree()
    version = before.summary["format_version"]
    if version != record.FORMAT_VERSION and not tree.is_recorded:
        raise InputError(
            f"{run}: expected a record of format {record.FORMAT_VERSION}, got"
            f" {version}, of other random numbers; replay it with its own code, if you"
            " trust it: --restore-code"
        )
    settings = trusted_config(run, trust, tree)
    environment = launch.training_environment(settings) | offline.variables(
        config.may_connect(run, online)
    )
    launch.create_run_folder(folder, settings, is_own=False)
    request = config.Request(
        allow_changed=True,
        record=str(run.resolve()),
        first_step=steps.start,
        last_step=None if steps.ends else steps.last,
        stops_where_it_differs=not to_the_end,
        new_best_steps=record.new_best_steps(before.summary),
    )
    advice = "" if tree.is_recorded else advice_on_code(before)
    _train(settings, folder, environment | tree.variables, request, advice)
    after = compare.read(folder)
    after.summary["resumes"] = []  # omit that of --from-step
    reached = min(max(last_step(after), after.summary.get("steps") or 0), steps.last)
    cut = steps
    if after.summary.get("status") != "finished":  # stopped at the first difference
        cut = Range(steps.start, max(reached, steps.start), ends=False)
    a = cut.of(before)
    b = cut.of(after)
    comparison = _compared(run, a, b, reached)
    forged = list[str]()
    not_compared = [f"what follows step {reached}"]
    if comparison.difference is None:
        forged, not_compared = compare_stated(before, folder, a, b, cut.ends, cut.start)
    return Outcome(a, b, comparison, steps, reached, forged, not_compared)


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcomes of several replays of one run as one, of which the last may
    differ. What none of them compared is not compared."""
    *_, last = outcomes
    comparisons = [outcome.comparison for outcome in outcomes]
    stages = frozenset(stage for outcome in comparisons for stage in outcome.stages)
    notes = dict.fromkeys(note for outcome in comparisons for note in outcome.notes)
    comparison = replace(
        last.comparison,
        steps=sum(outcome.steps for outcome in comparisons),
        stages=in_order(stages),
        notes=tuple(notes),
    )
    return replace(
        last,
        comparison=comparison,
        forged=list(dict.fromkeys(x for outcome in outcomes for x in outcome.forged)),
        not_compared=[
            entry
            for entry in last.not_compared
            if all(entry in outcome.not_compared for outcome in outcomes)
        ],
    )


def _compared(run: Path, a: Record, b: Record, reached: int) -> Comparison:
    """Compare the rows of a record and its replay; where the record logged none, the
    chain is compared."""
    if a.metrics or a.fingerprints or reached not in chain.checkpoints(run):
        return compare.compare(a, b)
    return Comparison(None, 0, (), (f"no rows: compared by {chain.FILE} alone",))


def read(run: Path) -> Record:
    """Read a record; raise InputError if a process is still working on the run."""
    recorded = compare.read(run)
    if record.status_of(run, recorded.summary) == "running":
        raise InputError(
            f"{run}: expected a run that has ended, got one whose process is still"
            " alive; wait for it, or stop it"
        )
    return recorded


def trusted_config(
    run: Path, trust: Sequence[str] = (), tree: Tree | None = None
) -> Settings:
    """Return a record's settings; raise InputError if it is untrusted or invalid
    here."""
    recorded = record.read_config(run)
    # a replay is not logged, and sends nothing to any service
    recorded.pop("logger", None)
    folders = (
        [tree.root / folder for folder in code.PLACES]
        if tree and tree.is_recorded
        else []
    )
    config.require_trusted(recorded, run, trust, folders)
    try:
        return config.check(recorded)
    except InputError as error:
        raise InputError(f"{run / 'config.yaml'}: {error}") from None


def require_data(recorded: Record, online: bool) -> None:
    """Raise InputError if files that a run read are missing here, which a replay would
    find late.

    Of a data set that states its digests, the folder must be there. Online, data sets
    may download.
    """
    environment = recorded.origin.environment
    settings = flatten(recorded.origin.settings)
    lacking = files.missing(environment.get("files_sha256"))
    if stated := environment.get("data_sha256"):
        paths = [settings.get(key) for key in change.DATA_PLACES]
        lacking |= files.missing(
            {path: stated for path in paths if isinstance(path, str)}
        )
    if lacking and not online:
        shown = [
            f"{path:.200} (SHA-256 {digest:.400})" for path, digest in lacking.items()
        ]
        raise InputError(
            f"{recorded.name}: expected the files that the run read, got none at"
            f" {some(shown, _MOST_FILES)}; put them there, or let the data set download"
            " them: --online"
        )


def range_of(recorded: Record, start: int = 0, steps: int | None = None) -> Range:
    """Return the steps to replay: `steps` steps after `start`, or all that are
    recorded."""
    end = last_step(recorded)
    # maybe after its last row
    if recorded.summary.get("status") in ("interrupted", "pruned"):
        end = max(end, int(recorded.summary.get("steps") or 0))
    if end == 0:
        raise InputError(
            f"{recorded.name}: expected a recorded step, got none; name a run that has"
            " some"
        )
    if start >= end:
        raise InputError(
            f"--from-step: expected a step below {end}, the last one, got {start}"
        )
    if steps is None or start + steps >= end:
        return Range(start, end, ends=recorded.summary.get("status") == "finished")
    rows = recorded.fingerprints or recorded.metrics
    later = [s for row in rows if start < (s := int(row["step"])) <= start + steps]
    if not later:
        first = next(int(row["step"]) for row in rows if int(row["step"]) > start)
        raise InputError(
            f"--steps: expected {first - start} or more, to the first step recorded,"
            f" got {steps}"
        )
    return Range(start, later[-1], ends=False)


def _train(
    settings: Settings,
    folder: Path,
    environment: Mapping[str, str],
    request: config.Request,
    advice: str,
) -> None:
    """Run the training processes, which compare their rows with the record, until they
    end."""
    with tempfile.TemporaryFile() as output:
        command = launch.training_command(folder, request)
        streams: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
        processes = ChildProcesses(
            command, environment, settings.trainer.processes, **streams
        )
        try:
            status = processes.wait()
        finally:
            processes.end(_STOP_SECONDS)
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines() or [
            "no message"
        ]
    summary = record.read_summary(folder) if (folder / "summary.json").exists() else {}
    ended = summary.get("status") in ("finished", "interrupted")
    if ended and status in (0, signals.DIFFERS, *signals.INTERRUPTED):
        return
    error = str(summary.get("error") or lines[-1].removeprefix("error: "))
    if error.startswith("--"):  # names an option of the command
        raise InputError(error)
    advice = f"; {advice}" if advice else ""
    raise InputError(f"replay: training failed: {error}{advice}")


def advice_on_code(recorded: Record) -> str:
    """Return advice if the code of this checkout differs from the record's, else ""."""
    if not (changed := code.changed_here(recorded.origin)):
        return ""
    return (
        f"the code here is not the record's ({some(changed)}); if you trust it:"
        " --restore-code"
    )
