"""A run folder: what is in it, who works in it, and its files, which are replaced whole."""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from seedbed.errors import InputError
from seedbed.record import text, untrusted

_MAX_DEPTH = 16  # of folders of runs
FORMAT_VERSION = 2  # 1: other random numbers for equal seeds, and other fingerprints
SWEEP = "sweep.json"  # in a sweep's folder: how it was started
LENGTHS = ("trainer.max_epochs", "trainer.max_steps")  # settings that make a run longer
LAST_CHECKPOINTS = ("last.pt", "previous.pt")  # newest first
# What a run writes; train.log, which Hydra may start, is only ever added to.
FILES = (
    "config.yaml", "environment.json", "code.zip", "source.patch", "metrics.csv",
    "fingerprints.csv", "loss_curve.png", "checkpoints", "summary.json", "test_predictions.csv",
)  # fmt: skip


def is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and (folder / "summary.json").is_file()


def runs_below(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the run folders at or below a folder, sorted by name.

    Links to runs are followed; those to folders of runs, which can go round in circles, are not.
    """
    if is_run(folder):
        yield folder
    elif depth <= _MAX_DEPTH and (depth == 0 or not folder.is_symlink()):
        with suppress(OSError):
            for path in sorted(folder.iterdir()):
                if path.is_dir() and not path.name.startswith("."):
                    yield from runs_below(path, depth + 1)


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP).is_file()


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json, its results as numbers; a record of a newer format is refused."""
    summary = untrusted.read_json(folder / "summary.json")
    version = summary.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f"{folder}: expected a record of format {FORMAT_VERSION} or older, got {version}"
        )
    for results in (summary.get("metrics"), summary.get("objective")):  # JSON has no such numbers
        if isinstance(results, dict):
            results.update({k: float(v) for k, v in results.items() if v in ("nan", "inf", "-inf")})
    return summary


def altered(summary: Mapping[str, Any]) -> list[tuple[Any, list[str]]]:
    """Return where a run was resumed with changes that can alter bits: (step, changed keys)."""
    resumes = summary.get("resumes")
    known = [r for r in resumes if isinstance(r, Mapping)] if isinstance(resumes, list) else []
    keys = [(each.get("step"), each.get("can_alter_bits")) for each in known]
    return [(step, list(map(str, each))) for step, each in keys if isinstance(each, list) and each]


def require_run(folder: Path) -> Path:
    """Return the folder if it holds a run that this version can read, else raise InputError."""
    if not is_run(folder):
        got = "a folder without them" if folder.is_dir() else "no folder"
        raise InputError(f"{folder}: expected a run folder (config.yaml, summary.json), got {got}")
    read_summary(folder)
    return folder


def require_unfinished(folder: Path, asked: Iterable[str] = ()) -> dict[str, Any]:
    """Return the summary of a run that can be resumed: {} if it was killed before it wrote one.

    One that finished can be resumed only if a key that is `asked` to change makes it longer.
    """
    summary = read_summary(folder) if (folder / "summary.json").exists() else {}
    if summary.get("status") == "finished" and not {*asked} & {*LENGTHS}:
        raise InputError(
            f"{folder}: expected a run to resume, got one that finished; make it longer by "
            "trainer.max_epochs=N (if the schedule allows it), or repeat it by scripts/verify.py"
        )
    return summary


@contextmanager
def lock(folder: Path, what: str = "run") -> Iterator[None]:
    """Hold the run for this process alone; the system lets go of it when the process dies."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # for writing, which NFS wants
    with open(os.open(folder / ".lock", flags, 0o666), "r+", errors="replace") as file:
        try:
            # Not lockf: whoever reads the folder in this process, and closes .lock, would end it.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder}: expected a {what} that no process works on, got one that is still "
                f"alive{file.read(200)}; wait for it, or stop it"
            ) from None
        except OSError as error:
            raise InputError(
                f"{folder}: expected a file system with locks, got {error.strerror}; choose another"
            ) from None
        file.truncate()
        print(f" (process {os.getpid()} on {os.uname().nodename})", end="", file=file, flush=True)
        # Children that are forked, such as loader workers, may outlive us.
        os.register_at_fork(after_in_child=file.close)
        yield


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file: a reader, or a power cut, finds the old content or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, text.as_json(value) + "\n")
