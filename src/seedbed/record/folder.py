"""Reading and writing run folders: the record of a run."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from omegaconf import DictConfig

from seedbed.errors import InputError
from seedbed.record import untrusted

FORMAT_VERSION = 1
STREAMS = ("init", "order", "augment", "dropout", "data", "split")  # of randomness, in `seeds`
METRIC_FIELDS = ("step", "epoch", "phase", "loss", "metric", "learning_rate")
STAGES = ("sample_ids", "batch", "loss", "gradients", "weights", "buffers", "optimizer")
FINGERPRINT_FIELDS = ("step", *STAGES)
LAST_CHECKPOINTS = ("last.pt", "previous.pt")  # newest first
# What a run writes; train.log, which Hydra may start, is only ever added to.
FILES = (
    "config.yaml", "environment.json", "source.patch", "metrics.csv", "fingerprints.csv",
    "loss_curve.png", "checkpoints", "summary.json", "test_predictions.csv",
)  # fmt: skip
Row = dict[str, str]


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run (it has a config.yaml and a summary.json)."""
    return (folder / "config.yaml").is_file() and (folder / "summary.json").is_file()


def require_run(folder: Path) -> Path:
    """Return the folder if it holds a run that this version can read, else raise InputError."""
    if not is_run(folder):
        raise InputError(
            f"{folder}: expected a run folder (config.yaml, summary.json), got "
            f"{'a folder without them' if folder.is_dir() else 'no folder'}; name a run folder"
        )
    read_summary(folder)
    return folder


def read_config(path: Path) -> DictConfig:
    """Read a resolved configuration, from a run folder or a YAML file."""
    return untrusted.read_config(path / "config.yaml" if path.is_dir() else path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a record."""
    return untrusted.read_json(path)


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json; a record of a newer format is refused."""
    summary = read_json(folder / "summary.json")
    version = summary.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f"{folder}: expected a record of format {FORMAT_VERSION} or older, got {version}; "
            "read it with the version of Seedbed that wrote it"
        )
    return summary


def altered(summary: Mapping[str, Any]) -> list[tuple[Any, list[str]]]:
    """Return after which steps a run went on with something changed that can alter bits, and what.

    Such a record is that of no single configuration, code and environment.
    """
    resumes = summary.get("resumes")
    found = []
    for resume in resumes if isinstance(resumes, list) else []:
        keys = resume.get("can_alter_bits") if isinstance(resume, Mapping) else None
        if isinstance(keys, list) and keys:
            found.append((resume.get("step"), [str(key) for key in keys]))
    return found


def read_metrics(folder: Path) -> list[Row]:
    """Read metrics.csv as a list of rows of strings (`METRIC_FIELDS`)."""
    return list(untrusted.read_rows(folder / "metrics.csv", METRIC_FIELDS))


def read_fingerprints(folder: Path) -> list[Row]:
    """Read fingerprints.csv as a list of rows of strings (`FINGERPRINT_FIELDS`)."""
    return list(untrusted.read_rows(folder / "fingerprints.csv", FINGERPRINT_FIELDS))


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings, and of lists of mappings, by dotted path."""
    if isinstance(tree, list) and any(isinstance(item, Mapping) for item in tree):
        tree = {str(number): item for number, item in enumerate(tree)}
    if not isinstance(tree, Mapping):
        return {prefix.removesuffix("."): tree}
    return {
        path: leaf
        for name, value in tree.items()
        for path, leaf in flatten(value, f"{prefix}{name}.").items()
    }


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file so that a reader, or a power cut, finds the old content or the new."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
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
    """Write a JSON object atomically, readable by people and by `git diff`."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=True) + "\n")


def require_bytes(path: Path, least: int) -> None:
    """Raise InputError for a table that is shorter than it was when a checkpoint was made."""
    size = path.stat().st_size if path.exists() else 0
    if size < least:
        raise InputError(
            f"{path}: expected at least {least} bytes, got {size}; the record was shortened, "
            "replay the run with scripts/verify.py"
        )


def write_environment(folder: Path, environment: Mapping[str, Any], patch: bytes) -> None:
    """Write environment.json and source.patch."""
    write_json(folder / "environment.json", environment)
    write_atomically(folder / "source.patch", patch)


class Table:
    """A CSV file of a record that only grows, and can be cut back to where a checkpoint was."""

    def __init__(self, path: Path, fields: tuple[str, ...], keep_bytes: int | None = None) -> None:
        """Start the file with its header, or resume with its first `keep_bytes` bytes."""
        self._fields = fields
        if keep_bytes is None:
            self._file = open(path, "w", newline="")
            self.append([dict(zip(fields, fields, strict=True))])
            return
        require_bytes(path, keep_bytes)
        os.truncate(path, keep_bytes)
        self._file = open(path, "a", newline="")

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add rows; fields that are missing stay empty."""
        for row in rows:
            self._file.write(",".join(str(row.get(field, "")) for field in self._fields) + "\n")
        self._file.flush()

    def sync(self) -> int:
        """Make what was written survive a power cut; return the file's length in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


_held: dict[Path, IO[str]] = {}  # the lock file of each run that this process holds


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the run for this process alone; the system lets go of it when the process dies."""
    with open(folder / ".lock", "a") as file:  # for writing, which NFS wants
        try:
            # Not lockf: whoever reads the folder in this process, and closes .lock, would end it.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder}: expected a run that no process works on, got one that is still alive; "
                "wait for it, or stop it"
            ) from None
        except OSError as error:
            raise InputError(
                f"{folder}: expected a file system with locks, got {error.strerror}; choose a "
                "folder on another one"
            ) from None
        _held[folder] = file
        _share_no_lock()
        try:
            yield
        finally:
            _held.pop(folder, None)


@cache
def _share_no_lock() -> None:
    """Let children that are forked, such as loader workers, close locks: they may outlive us."""

    def close() -> None:
        while _held:
            _held.popitem()[1].close()

    os.register_at_fork(after_in_child=close)


def require_in_place(folder: Path) -> None:
    """Raise InputError if a folder that this process holds is no longer at its path."""
    if folder not in _held:
        return
    try:
        found = os.path.samestat(os.stat(folder / ".lock"), os.fstat(_held[folder].fileno()))
    except OSError:
        found = False
    if not found:
        raise InputError(
            f"{folder}: expected the run folder, and .lock in it, to stay, got them moved or "
            "deleted; resume the run by scripts/resume.py where the folder is now"
        )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
