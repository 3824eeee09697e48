"""A zip of runs for others to verify: records, checkpoints that audits need, a page for
the reader.

What nobody needs to verify a run is left out, in checkpoints too: loggers, tags, notes,
commands, paths of tools, files for people. What may concern the author is listed before
anything is written; a secret is refused.
"""

import json
import mmap
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import OmegaConf

from seedbed import project, record, weights
from seedbed.compare import Record, stated, verify
from seedbed.config import variables
from seedbed.errors import InputError, printable
from seedbed.record import chain, change, files, text, untrusted
from seedbed.tools import page
from seedbed.training import checkpoint

PAGE = "README.md"  # at the top of the archive
_COPIED = (
    *("code.zip", "metrics.csv", "fingerprints.csv", chain.PLAN, chain.FILE),
    *("test_predictions.csv", "statistics.json"),
)
# as they are published
_SETTINGS: dict[str, Any] = {"logger": {}, "tags": [], "notes": None}
_SWEEP = ("varied", "jobs", "additions", "looks")  # of sweep.json
_PREFIX = ".publish-"
_LEAST_CHARACTERS = 8  # of a secret: shorter ones are in every file
_HOME = re.compile(rb"/(?:home|Users)/[\w.-]+")
_URL = re.compile(rb"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+")
_TEXTS = ("config.yaml", "environment.json", "summary.json", chain.PLAN, "sweep.json")


@dataclass(frozen=True)
class Run:
    """A run that is to be published."""

    folder: Path
    name: str  # in the archive
    recorded: Record
    steps: Sequence[int]  # of the kept checkpoints that are published
    kept: int  # how many there are


@dataclass(frozen=True)
class Draft:
    """What an archive will hold: files by name, and lines on what may concern its
    author."""

    runs: Sequence[Run]
    entries: Mapping[str, Path]
    concerns: Sequence[str]


def runs_of(path: Path, every: int) -> list[Run]:
    """Return the runs to publish, with every n-th of their kept checkpoints.

    Those that failed before their first step have no record. Raises InputError for a
    run whose process is alive, or that contradicts itself.
    """
    folders = [
        folder
        for folder in record.runs_below(path)
        if folder == path or (folder / "metrics.csv").is_file()
    ]
    if not folders:
        raise InputError(f"{path}: expected a run folder or a sweep, got none")
    top = path.resolve()
    runs = []
    for folder in folders:
        untrusted.reject_external_links(folder)
        recorded = verify.read(folder)
        inner = folder.resolve().relative_to(top).as_posix()
        name = top.name if inner == "." else f"{top.name}/{inner}"
        if not untrusted.is_inside(name):
            raise InputError(f"{folder}: expected a printable name, got {name!r}")
        rows = chain.checkpoints(folder)
        # last.pt is the one of the last step
        chained = rows.keys() - {max(rows, default=0)}
        kept = [step for step in record.kept_checkpoints(folder) if step in chained]
        steps = kept[every - 1 :: every]
        if kept and not steps:
            raise InputError(
                f"--every: expected at most {len(kept)}, the number of checkpoints that"
                f" {folder} has kept before the last step, got {every}"
            )
        for line in _contradictions(folder, recorded, steps):
            raise InputError(
                f"{folder}: expected a record that does not contradict itself, got"
                f" {line}; verify it, or train again"
            )
        runs.append(Run(folder, name, recorded, steps, len(kept)))
    return runs


def _contradictions(
    folder: Path, recorded: Record, steps: Sequence[int]
) -> Iterator[str]:
    """Yield a line for each thing in a record that contradicts itself."""
    yield from chain.contradictions(folder, recorded.origin, recorded.summary)
    yield from stated.contradictions(recorded.summary, recorded.metrics)
    if (name := recorded.origin.unlike_archive()) is not None:
        yield f"another {name} in code.zip than was imported"
    yield from weights.unlike_record(folder, steps)
    for name in (checkpoint.BEST, checkpoint.LAST):
        path = folder / "checkpoints" / name
        if path.exists():
            weights.require_same_bytes(folder, path, checkpoint.load(path))


def draft(path: Path, runs: Sequence[Run], folder: Path) -> Draft:
    """Write what an archive will hold into a folder, without what is left out.

    Raises InputError for a secret: the value of an environment variable that is named
    like one.
    """
    entries = dict[str, Path]()
    for number, run in enumerate(runs):
        target = folder / str(number)
        target.mkdir()
        for name, file in _of_run(run, target):
            entries[f"{run.name}/{name}"] = file
    if record.is_sweep(path):
        entries[f"{path.resolve().name}/{record.SWEEP}"] = _of_sweep(path, folder)
    concerns = [*_from_environment(runs), *_concerns(entries)]
    _require_no_secret(entries)
    left_out = [
        str(run_folder.relative_to(path))
        for run_folder in record.runs_below(path)
        if run_folder not in [run.folder for run in runs]
    ]
    (folder / PAGE).write_text(page.of(runs, path.resolve().name, left_out))
    return Draft(runs, {PAGE: folder / PAGE, **entries}, concerns)


def _of_run(run: Run, target: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of what is published of a run; those that differ from the
    run's are written to a folder."""
    record.write_atomically(target / "config.yaml", OmegaConf.to_yaml(_settings(run)))
    environment = _environment(record.read_environment(run.folder))
    record.write_json(target / "environment.json", environment)
    record.write_json(target / "summary.json", _summary(run))
    for path in sorted(target.iterdir()):
        yield path.name, path
    copied = [
        *_COPIED,
        *(
            path.name
            for path in run.folder.glob("code_until_step_*.zip")
            if re.fullmatch(r"code_until_step_\d{1,18}", path.stem)
        ),
    ]
    for name in copied:
        if (run.folder / name).is_file():
            yield name, run.folder / name
    names = [checkpoint.BEST, checkpoint.LAST]
    for path in [
        *(run.folder / "checkpoints" / name for name in names),
        *(record.kept_checkpoints(run.folder)[step] for step in run.steps),
    ]:
        if path.is_file():
            state = checkpoint.load(path)
            with checkpoint.fitting(path):
                if "origin" in state:
                    state["origin"] = {
                        "settings": {**state["origin"]["settings"], **_SETTINGS},
                        "environment": _environment(state["origin"]["environment"]),
                    }
            checkpoint.save(state, target / path.name, keep_previous=False)
            yield f"checkpoints/{path.name}", target / path.name


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings of a run without those that nobody needs to repeat it."""
    settings = untrusted.read_dict(run.folder)
    return {**settings, **{k: v for k, v in _SETTINGS.items() if k in settings}}


def _environment(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment without the variables that cannot change a bit."""
    published = dict(environment)
    if isinstance(published.get("env"), Mapping):
        published["env"] = {
            name: value
            for name, value in published["env"].items()
            if not change.matches(f"env.{name}", change.NEUTRAL_ENVIRONMENT)
        }
    return published


def _summary(run: Run) -> dict[str, Any]:
    """Return the summary of a run without its command and changes of loggers."""
    summary = record.read_json(run.folder / "summary.json")
    summary.pop("command", None)
    for entry in summary.get("resumes") or ():
        if isinstance(entry, dict) and isinstance(entry.get("changes"), dict):
            entry["changes"] = {
                key: value
                for key, value in entry["changes"].items()
                if key.partition(".")[0] not in _SETTINGS
            }
    return summary


def _of_sweep(path: Path, folder: Path) -> Path:
    """Write sweep.json without its command and users' names; return the file."""
    plan = record.read_json(path / record.SWEEP)
    published = {name: plan[name] for name in _SWEEP if name in plan}
    for name in ("additions", "looks"):
        entries = published.get(name)
        published[name] = [
            {key: value for key, value in entry.items() if key != "by"}
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, dict)
        ]
    record.write_json(folder / record.SWEEP, published)
    return folder / record.SWEEP


def _from_environment(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a line for each published setting that an environment variable gave; raise
    InputError if its name is that of a secret."""
    for run in runs:
        for key, variable in dict.fromkeys(variables.of_project()):
            section = key.partition(".")[0]
            value = run.recorded.config.get(key)
            if section in ("determinism", *_SETTINGS) or value is None:
                continue
            if variables.is_secret(variable):
                raise InputError(
                    f"{run.folder}: expected no secret, got {key}, from the environment"
                    f" variable {variable}; let the class that needs it read the"
                    " variable, and train again"
                )
            yield f"{run.name}/config.yaml: {key}, from the variable {variable}"


def _concerns(entries: Mapping[str, Path]) -> Iterator[str]:
    """Yield a line for each path of a user and each address in texts."""
    user = os.path.basename(str(Path.home())).encode()
    mine = re.escape(os.fsencode(Path.home())) if len(user) > 1 else b"(?!)"
    root = re.escape(os.fsencode(project.root().resolve()))
    paths = re.compile(b"|".join((root, mine, _HOME.pattern)))
    for name, path in entries.items():
        last = name.rpartition("/")[2]
        patterns = [paths] if path.suffix in (".zip", ".csv") else []
        patterns = [paths, _URL] if last in _TEXTS else patterns
        content = path.read_bytes() if patterns else b""
        counts = dict[str, int]()
        for pattern in patterns:
            for match in pattern.findall(content):
                shown = match.decode(errors="replace")
                counts[shown] = counts.get(shown, 0) + 1
        for shown, count in counts.items():
            yield printable(f"{name}: {shown}" + (f" ({count:,} times)" * (count > 1)))


def _require_no_secret(entries: Mapping[str, Path]) -> None:
    """Raise InputError if a file has the value of a variable that is named like a
    secret."""
    secrets = [
        (name, form)
        for name, value in os.environ.items()
        if variables.is_secret(name) and len(value) >= _LEAST_CHARACTERS
        for form in _forms_of(value)
    ]
    for name, path in entries.items():
        if not path.stat().st_size:
            continue
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            for variable, form in secrets:
                if content.find(form) >= 0:
                    raise InputError(
                        f"{name}: expected no secret, got the value of the environment"
                        f" variable {variable}; let the class that needs it read the"
                        " variable, and train again"
                    )


def _forms_of(value: str) -> set[bytes]:
    """Return the bytes of a text as files may have it: as it is, escaped as in JSON,
    YAML and Python, and each of its lines."""
    escaped = [json.dumps(value, ensure_ascii=each)[1:-1] for each in (True, False)]
    lines = [line.strip() for line in value.splitlines()]
    forms = [value, value.strip(), *escaped, repr(value)[1:-1], *lines]
    return {
        form.encode(errors="surrogateescape")
        for form in forms
        if len(form) >= _LEAST_CHARACTERS
    }


def write(made: Draft, out: Path) -> dict[str, Any]:
    """Write an archive, which appears whole or not at all; return what it has.

    Raises InputError if there is such a file, and for more than a reader's limits.
    """
    require_new(out)
    with _writable(out), TemporaryDirectory(dir=out.parent, prefix=_PREFIX) as folder:
        path = Path(folder, "new.zip")
        try:
            with zipfile.ZipFile(path, "x", allowZip64=False) as archive:
                for name in sorted(made.entries):
                    _add(archive, name, made.entries[name])
        except zipfile.LargeZipFile:
            raise InputError(
                "--every: expected an archive of at most 4 GiB, got a larger one;"
                " publish fewer checkpoints: --every N"
            ) from None
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        digest = files.of_file(path)
        size = path.stat().st_size
        _place(path, out)
    record.sync_folder(out.parent)
    return {
        "file": str(out),
        "bytes": size,
        "sha256": digest,
        "runs": {
            run.name: {"checkpoints": [*run.steps], "of": run.kept} for run in made.runs
        },
    }


@contextmanager
def _writable(out: Path) -> Iterator[None]:
    """Turn an error of the file system into one line."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{error.filename or out}: expected a file that can be written, or read,"
            f" got {error.strerror}"
        ) from error


def require_new(out: Path) -> None:
    """Raise InputError if there is a file of a name."""
    if os.path.lexists(out):
        raise InputError(
            f"{out}: expected a new file, got one that is there; delete it, or choose"
            " another name"
        )


def _add(archive: zipfile.ZipFile, name: str, path: Path) -> None:
    """Add a file under a fixed date and mode, so that equal content is equal bytes."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o100644 << 16
    is_dense = path.suffix == ".pt"
    entry.compress_type = zipfile.ZIP_STORED if is_dense else zipfile.ZIP_DEFLATED
    entry.file_size = path.stat().st_size
    with open(path, "rb") as source, archive.open(entry, "w") as target:
        while block := source.read(1 << 20):
            target.write(block)


def _place(path: Path, out: Path) -> None:
    try:
        os.link(path, out)  # unlike a rename, it replaces nothing
    except FileExistsError:
        require_new(out)
    except OSError:  # a file system without links
        require_new(out)
        os.replace(path, out)


def lines_of(concerns: Iterable[str]) -> Iterator[str]:
    """Yield the lines to print before anything is written."""
    for concern in concerns:
        yield f"the archive has {concern}"


def shown(written: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines to print on an archive."""
    for key in ("file", "bytes", "sha256", "signature"):
        if key in written:
            yield f"{key} {text.show(written[key])}"
    for name, entry in written["runs"].items():
        steps = entry["checkpoints"]
        if steps:
            yield (
                f"{name}: {len(steps)} of {entry['of']} checkpoints kept before the"
                " last step, for verify.py --sample K"
            )
        else:
            yield (
                f"{name}: no kept checkpoints (trainer.keep_checkpoint_every_steps), so"
                " it can be verified as a whole only"
            )
