"""The record of a run: its folder, files and append-only tables, locks, and atomic
writes."""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from seedbed.errors import InputError
from seedbed.names import STAGES
from seedbed.names import flatten as flatten
from seedbed.record import text, untrusted
from seedbed.record.change import Change as Change
from seedbed.record.change import changes as changes
from seedbed.record.code import Origin as Origin
from seedbed.record.results import BY_LOSS as BY_LOSS
from seedbed.record.results import Monitor as Monitor
from seedbed.record.results import Results as Results
from seedbed.record.untrusted import read_config as read_config
from seedbed.record.untrusted import read_json as read_json

_MAX_DEPTH = 16  # of nested folders of runs
# 2: each split was built under a seed of its own; 1: other random numbers and
# fingerprints
FORMAT_VERSION = 3
SWEEP = "sweep.json"  # in a sweep's folder: how it was started
LENGTHS = ("trainer.max_epochs", "trainer.max_steps")  # settings that make a run longer
PATIENCE = "trainer.early_stopping_patience"
LAST_CHECKPOINTS = ("last.pt", "previous.pt")  # newest first
# Files written by a run, except train.log, which is append-only and may be started by
# Hydra.
FILES = (
    "config.yaml",
    "environment.json",
    "code.zip",
    "source.patch",
    "metrics.csv",
    "fingerprints.csv",
    "loss_curve.png",
    "checkpoints",
    "summary.json",
    "test_predictions.csv",
    "interpolations.json",
    "config.mark",
    "statistics.json",
    "chain.csv",
    "plan.json",
)
# metrics follow by name
METRIC_FIELDS = ("step", "epoch", "phase", "loss", "learning_rate")
FINGERPRINT_FIELDS = ("step", *STAGES)
# The types of entries that are read, and of the values in those that are mappings or
# lists.
_SUMMARY: untrusted.Types = {
    **dict.fromkeys(("steps", "best_step", "tested_step", "parameters"), (int,)),
    **dict.fromkeys(("evaluated_by", "metric_name", "status", "error", "task"), (str,)),
    **dict.fromkeys(("epochs", "seconds", "samples_per_second"), (float,)),
    **dict.fromkeys(("metrics", "last_metrics"), (dict, float)),
    **dict.fromkeys(("fingerprints", "weights_sha256"), (dict, str)),
    **dict.fromkeys(("objective", "stopped_early"), (dict,)),
    **{
        "higher_is_better": (bool,),
        "resumes": (list, dict),
        "kept_steps": (list, int),
        "best_steps": (list, int),
    },
}
_ENVIRONMENT: untrusted.Types = {
    **dict.fromkeys(("versions", "env"), (dict, str)),
    **dict.fromkeys(("imported_files", "files_sha256"), (dict, str)),
    **dict.fromkeys(("flags", "cpu", "git", "processes"), (dict,)),
    **{"gpu": (list, dict), "device": (str,), "platform": (str,)},
}
# before the step, in the name of a checkpoint of keep_checkpoint_every_steps
KEPT = "step_"
BEST = "best_"  # the same, for trainer.keep_best
Row = dict[str, str]  # of a table: a cell by its column
Rows = Sequence[Row]


def is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "summary.json").is_file()


def runs_below(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the run folders at or below a folder, sorted by name."""
    # Symlinks to runs are followed; symlinks to folders of runs, which can form cycles,
    # are not.
    if is_run(folder):
        yield folder
    elif depth <= _MAX_DEPTH and (depth == 0 or not folder.is_symlink()):
        with suppress(OSError):
            for path in sorted(folder.iterdir()):
                if path.is_dir() and not path.name.startswith("."):
                    yield from runs_below(path, depth + 1)


@contextmanager
def run_folder(path: Path) -> Iterator[Path]:
    """Yield a run folder; a zip of one is extracted to a temporary folder.

    `FILE.zip/NAME` is one of several in a zip.
    """
    candidates = (path, *path.parents)
    archive = next((each for each in candidates if each.suffix == ".zip"), path)
    is_inside = archive != path and archive.is_file()
    if path.is_dir() or not (path.suffix == ".zip" or is_inside):
        yield path
        return
    archive = archive if is_inside else path
    name = path.relative_to(archive)
    if is_inside and not untrusted.is_inside(name.as_posix()):
        raise InputError(f"{path}: expected the name of a run in {archive}, got {name}")
    with TemporaryDirectory(prefix="seedbed-run-") as temporary:
        folder = Path(temporary).resolve()
        untrusted.extract_zip(archive, folder, untrusted.MAX_RUN_BYTES)
        runs = list(runs_below(folder / name))
        if len(runs) != 1:
            known = [str(run.relative_to(folder)) for run in runs_below(folder)]
            shown = f" ({', '.join(known[:3])}); name one of them: {archive}/NAME"
            raise InputError(
                f"{path}: expected a zip file of one run folder, got {len(runs)}"
                + (shown if len(known) > 1 else "")
            )
        yield runs[0]


def kept_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints that `trainer.keep_checkpoint_every_steps` kept, by
    step."""
    return _by_step(folder, KEPT)


def best_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the weights of the best validations that `trainer.keep_best` kept, by
    step."""
    return _by_step(folder, BEST)


def _by_step(folder: Path, prefix: str) -> dict[int, Path]:
    paths = (folder / "checkpoints").glob(f"{prefix}*.pt")
    steps = {path.stem.removeprefix(prefix): path for path in paths}
    return dict(
        sorted((int(step), path) for step, path in steps.items() if step.isdecimal())
    )


def checkpoint_path(folder: Path, name: str) -> Path:
    """Return the file of a checkpoint: `best`, `last`, or a step for one that was
    kept."""
    if name.isdecimal():
        best = folder / "checkpoints" / f"{BEST}{name}.pt"
        name = f"{KEPT}{name}"
        if best.exists() and not best.with_name(f"{name}.pt").exists():
            return best
    return folder / "checkpoints" / f"{name}.pt"


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP).is_file()


def write_summary(folder: Path, values: Mapping[str, Any]) -> None:
    write_json(folder / "summary.json", {**values, "format_version": FORMAT_VERSION})


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json, with results as numbers; raise InputError if its format is
    newer."""
    path = folder / "summary.json"
    summary = untrusted.read_json(path)
    version = summary.get("format_version")
    if type(version) is not int or version > FORMAT_VERSION:
        raise InputError(
            f"{folder}: expected a record of format {FORMAT_VERSION} or older, got"
            f" {version}"
        )
    for name in ("metrics", "last_metrics", "objective"):  # JSON has no NaN or inf
        if isinstance(results := summary.get(name), dict):
            results.update(
                {k: float(v) for k, v in results.items() if v in ("nan", "inf", "-inf")}
            )
    untrusted.require_types(path, summary, _SUMMARY)
    return summary


def read_environment(folder: Path) -> dict[str, Any]:
    """Read environment.json."""
    path = folder / "environment.json"
    environment = untrusted.read_json(path)
    untrusted.require_types(path, environment, _ENVIRONMENT)
    return environment


def altered(summary: Mapping[str, Any]) -> list[tuple[Any, dict[str, str]]]:
    """Return (step, changes) of each resume with changes that can alter bits.

    Changes are texts by key, such as `4 -> 8`.
    """
    resumes = summary.get("resumes")
    entries = list[tuple[Any, dict[str, str]]]()
    for entry in resumes if isinstance(resumes, list) else ():
        keys = entry.get("can_alter_bits") if isinstance(entry, Mapping) else None
        if not isinstance(keys, list) or not keys:
            continue
        changes = entry.get("changes")
        values = changes if isinstance(changes, Mapping) else {}
        shown = dict[str, str]()
        for key in map(str, keys):
            pair = values.get(key)
            shown[key] = "changed"
            if isinstance(pair, list) and len(pair) == 2:
                shown[key] = f"{pair[0]} -> {pair[1]}"
        entries.append((entry.get("step"), shown))
    return entries


def new_best_steps(summary: Mapping[str, Any]) -> list[int]:
    """Return the steps from which a run chose its best weights anew after resumes.

    A resume from an earlier step undoes later ones.
    """
    resumes = summary.get("resumes")
    steps = list[int]()
    for entry in resumes if isinstance(resumes, list) else ():
        step, anew = (entry.get(key) for key in ("step", "best_starts_anew"))
        steps = [each for each in steps if type(step) is not int or each <= step]
        steps += [anew] if type(anew) is int else []
    return steps


def require_run(folder: Path) -> Path:
    """Return the folder if it holds a run that this version can read, else raise
    InputError."""
    if not is_run(folder):
        got = "a folder without them" if folder.is_dir() else "no folder"
        raise InputError(
            f"{folder}: expected a run folder (config.yaml, summary.json), got {got}"
        )
    read_summary(folder)
    return folder


def require_unfinished(folder: Path, asked: Iterable[str] = ()) -> dict[str, Any]:
    """Return the summary of a run that can be resumed; {} if it was killed before
    writing one.

    A finished run can be resumed only if one of the keys to be changed, `asked`, makes
    it longer.
    """
    summary = read_summary(folder) if (folder / "summary.json").exists() else {}
    if summary.get("status") == "finished" and not {*asked} & {*LENGTHS, PATIENCE}:
        raise InputError(
            f"{folder}: expected a run to resume, got one that finished; make it longer"
            " by trainer.max_epochs=N (if the schedule allows it), or reproduce it"
            " with scripts/verify.py"
        )
    return summary


@contextmanager
def lock(folder: Path, noun: str = "run") -> Iterator[None]:
    """Lock a folder for this process; the system releases the lock when the process
    dies."""
    # writable, as NFS requires for locks
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(folder / ".lock", flags, 0o666), "r+", errors="replace") as file:
        try:
            # Not lockf: any reader in this process that closes .lock would release the
            # lock.
            # readers hold it for a moment
            if not _locked(file, fcntl.LOCK_EX, attempts=5):
                raise _in_use(folder, noun, file)
        except OSError as error:
            raise InputError(
                f"{folder}: expected a file system with locks, got {error.strerror};"
                " choose another"
            ) from None
        file.truncate()
        print(
            f" (process {os.getpid()} on {os.uname().nodename})",
            end="",
            file=file,
            flush=True,
        )
        # Forked children, such as loader workers, may outlive us and must not hold the
        # lock.
        os.register_at_fork(after_in_child=file.close)
        yield


def is_held(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder; nothing is written."""
    try:
        require_free(folder)
    except InputError:
        return True
    return False


def require_free(folder: Path, noun: str = "run") -> None:
    """Raise InputError, with the process, if one holds the lock of a folder; nothing is
    written."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with (
        suppress(OSError),
        open(os.open(folder / ".lock", flags), errors="replace") as file,
    ):
        if not _locked(file, fcntl.LOCK_SH):
            raise _in_use(folder, noun, file)


def _in_use(folder: Path, noun: str, file: IO[str]) -> InputError:
    return InputError(
        f"{folder}: expected a {noun} without a running process, got one that is still "
        f"alive{file.read(200)}; wait for it, or stop it"
    )


def _locked(file: IO[str], operation: int, attempts: int = 1) -> bool:
    """Return whether a file could be locked."""
    for attempt in range(attempts):
        time.sleep(0.01 if attempt else 0)
        with suppress(BlockingIOError):
            fcntl.flock(file, operation | fcntl.LOCK_NB)
            return True
    return False


def status_of(folder: Path, summary: Mapping[str, Any]) -> str:
    """Return the status in a run's summary; `killed` if it says `running` and no
    process runs."""
    status = str(summary.get("status"))
    return "killed" if status == "running" and not is_held(folder) else status


def write_atomically(path: Path, content: str | bytes | Path) -> None:
    """Replace a file atomically: readers see the old or the new content, even after a
    power cut.

    The content may be that of another file, which is copied without being held in
    memory.
    """
    if path.exists() and not path.is_file():  # a rename would remove a pipe or device
        raise InputError(
            f"{path}: expected a file to replace, got a folder, pipe or device; name"
            " another one"
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            if isinstance(content, Path):
                with open(content, "rb") as source:
                    shutil.copyfileobj(source, file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, text.as_json(value) + "\n")


class Table:
    """An append-only CSV file of a record; new columns in a row are added on the
    right."""

    def __init__(
        self,
        path: Path,
        fields: Sequence[str],
        keeps: Callable[[Row], bool] | None = None,
    ) -> None:
        """Start the file, or resume it with the rows for which `keeps` returns true."""
        self._path = path
        rows = [] if keeps is None else list(filter(keeps, self._rows(fields)))
        # Drop columns that are empty in all of these rows: they were added later.
        used = dict.fromkeys(name for row in rows for name, cell in row.items() if cell)
        self._write((*fields, *(name for name in used if name not in fields)), rows)

    def append(self, rows: Rows) -> None:
        """Append rows; missing fields stay empty."""
        for row in rows:
            if new := [name for name in row if name not in self._fields]:
                self.close()
                self._write((*self._fields, *new), self._rows(self._fields))
            self._file.write(self._line(row))
        self._file.flush()

    def sync(self) -> None:
        """Fsync the file, so that the appended rows survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _rows(self, fields: Sequence[str]) -> list[Row]:
        """Return the rows so far; their number is not limited, since the run is our
        own."""
        return untrusted.read_rows(self._path, fields, sys.maxsize)

    def _write(
        self, fields: tuple[str, ...], rows: Iterable[Mapping[str, object]]
    ) -> None:
        """Replace the file with these columns and rows, and open it for appending."""
        self._fields = fields
        header = dict(zip(fields, fields, strict=True))
        write_atomically(self._path, "".join(map(self._line, (header, *rows))))
        self._file = open(self._path, "a", newline="")

    def _line(self, row: Mapping[str, object]) -> str:
        return ",".join(str(row.get(field, "")) for field in self._fields) + "\n"


class Tables:
    """metrics.csv and fingerprints.csv of a run that is being written."""

    def __init__(
        self, folder: Path, keeps: Callable[[Row], bool] | None = None
    ) -> None:
        """Start them, or resume them with the rows to keep."""
        self._metrics = Table(folder / "metrics.csv", METRIC_FIELDS, keeps)
        self._fingerprints = Table(
            folder / "fingerprints.csv", FINGERPRINT_FIELDS, keeps
        )

    def append(self, metrics: Rows, fingerprints: Rows = ()) -> None:
        """Append rows; metrics last, so that a row of theirs tells how far both tables
        reach."""
        self._fingerprints.append(fingerprints)
        self._metrics.append(metrics)

    def sync(self) -> None:
        self._fingerprints.sync()
        self._metrics.sync()

    def close(self) -> None:
        self._fingerprints.close()
        self._metrics.close()


def read_metrics(folder: Path) -> list[Row]:
    """Read metrics.csv as a list of rows of strings (`METRIC_FIELDS`, then metrics by
    name)."""
    return untrusted.read_rows(folder / "metrics.csv", METRIC_FIELDS)


def differing(
    a: Mapping[str, Any], b: Mapping[str, Any], columns: Iterable[str] | None = None
) -> list[str]:
    """Return the columns in which two rows differ, in the order of `columns` (all).

    A missing cell equals an empty one. Replays, the resume check, compare.py and
    verify.py compare steps by this function.
    """
    named = dict.fromkeys((*a, *b)) if columns is None else columns
    return [name for name in named if a.get(name, "") != b.get(name, "")]


def values_of(row: Mapping[str, object]) -> dict[str, str]:
    """Return the non-empty cells of a row of metrics.csv (losses, rates, metrics), by
    column."""
    others = ("step", "epoch", "phase")
    return {
        name: str(cell)
        for name, cell in row.items()
        if name not in others and cell != ""
    }


def read_fingerprints(folder: Path) -> list[Row]:
    """Read fingerprints.csv as a list of rows of strings (`FINGERPRINT_FIELDS`)."""
    return untrusted.read_rows(folder / "fingerprints.csv", FINGERPRINT_FIELDS)
