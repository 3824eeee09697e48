"""A package for readers of a paper: records, their code, and one command that replays them.

The same runs make the same bytes: entries are sorted, have one time, and are not compressed. A
package that is read may come from a stranger: only the names below are taken out, as plain files.
"""

import io
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seedbed import config, record
from seedbed.errors import InputError
from seedbed.record import git, source, untrusted
from seedbed.tools import places

MAX_BYTES = 4 << 30  # of a package, and of the code of a commit
MAX_ENTRIES = 10_000
_FILES = (
    *("config.yaml", "environment.json", "fingerprints.csv", "metrics.csv", "source.patch"),
    *("summary.json", "test_predictions.csv"),
)
_NAME = re.compile(
    rf"README\.md|requirements\.txt|code/[0-9a-f]{{40,64}}\.tar"
    rf"|runs/[1-9][0-9]{{0,3}}/({'|'.join(map(re.escape, _FILES))})"
)
_COMMIT = [
    *("-c", "user.name=package", "-c", "user.email=package"),
    *("commit", "--quiet", "--no-verify", "--message=the code of a package"),
]
_README = """# Runs that can be repeated bit for bit

| run | model | data | preset | steps | weights |
| --- | --- | --- | --- | --- | --- |
{rows}

`runs/` has the records, `code/` the code of their commits (`git archive`; what was not committed is
in the `source.patch` of a run), `requirements.txt` the pinned packages. SHA-256 of the data:

{data}

With these packages installed, in a checkout of the code, this replays each run and prints
REPRODUCED, or where it differs:

    python scripts/verify.py PACKAGE.zip --restore-code

Without `--restore-code` it prints what it would execute.
"""


def pack(folder: Path) -> bytes:
    """Return the package of a run, or of all runs of a sweep.

    Raises:
        InputError: there is none, one did not finish, or its code is not all there.
    """
    runs = list(places.run_folders(folder))
    if not runs or len(runs) > 9_999:
        raise InputError(
            f"{folder}: expected a run or a sweep of at most 9,999 runs, got {len(runs)}; name one"
        )
    entries: dict[str, bytes] = {}
    rows: list[str] = []
    data: list[str] = []
    for number, run in enumerate(runs, 1):
        settings, environment, summary = _complete(run)
        commit = environment["git"]["commit"]
        if f"code/{commit}.tar" not in entries:
            entries[f"code/{commit}.tar"] = _of_commit(run, "archive", "--format=tar", commit)
        if number == 1:
            lock = f"{commit}:./requirements.txt"
            entries["requirements.txt"] = _of_commit(run, "show", lock)
        for name in _FILES:
            if (run / name).exists():
                limit = untrusted.MAX_TABLE_BYTES
                entries[f"runs/{number}/{name}"] = untrusted.read_bytes(run / name, limit)
        names = (settings.get(key) for key in ("model.name", "data.name", "determinism.name"))
        weights = summary["fingerprints"]["weights"]
        rows.append(" | ".join(map(str, (number, *names, summary["steps"], weights))))
        data += _digests(environment)
    entries["README.md"] = _README.format(
        rows="\n".join(f"| {row} |" for row in rows), data="\n".join(dict.fromkeys(data))
    ).encode()
    return _zipped(entries)


def unpack(path: Path, folder: Path) -> list[Path]:
    """Take the entries of a package out into an empty folder; return its run folders.

    Raises:
        InputError: it is no package, or holds what a package does not.
    """
    left, seen = MAX_BYTES, set()
    try:
        with untrusted.open_file(path, MAX_BYTES) as file, zipfile.ZipFile(file) as package:
            if len(package.infolist()) > MAX_ENTRIES:
                raise InputError(f"{path}: expected at most {MAX_ENTRIES:,} entries, got more")
            for entry in package.infolist():
                is_file = (entry.external_attr >> 28) in (0, 0o10)
                stored = entry.compress_type == zipfile.ZIP_STORED
                known = _NAME.fullmatch(entry.filename) and entry.filename not in seen
                if not (is_file and stored and known and entry.file_size <= left):
                    raise InputError(
                        f"{path}: expected files of a package, stored as they are, got "
                        f"{entry.filename[:100]!r}; make it by scripts/pack.py"
                    )
                seen.add(entry.filename)
                left -= entry.file_size
                target = folder / entry.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(package.read(entry))
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise InputError(f"{path}: expected a package of scripts/pack.py, got {error}") from None
    found = sorted((folder / "runs").glob("*"), key=lambda run: int(run.name))
    if not found:
        raise InputError(f"{path}: expected a package with runs, got none; make it anew")
    return [record.require_run(run) for run in found]


@contextmanager
def importing_code(folder: Path, run: Path) -> Iterator[None]:
    """Let training processes that start meanwhile import the code of a run of a package.

    Args:
        folder: where the package was taken out to; the code goes there, too.

    Raises:
        InputError: the package lacks the commit, or the patch does not apply to it.
    """
    commit = commit_of(run)
    tree = folder / "trees" / run.name
    tree.mkdir(parents=True)
    try:
        with tarfile.open(folder / "code" / f"{commit}.tar", "r:") as archive:
            if sum(member.size for member in archive) > MAX_BYTES:
                raise InputError(f"code/{commit}.tar: expected at most {MAX_BYTES:,} bytes")
            archive.extractall(tree, filter="data")  # nothing outside, no devices
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"code/{commit}.tar: expected the code of a commit, got {error}") from None
    commands = [["init", "--quiet", "--template="], ["add", "--all", "--force"], _COMMIT]
    patch = run / "source.patch"
    if patch.is_file() and patch.stat().st_size:
        commands.append(["apply", "--whitespace=nowarn", str(patch.resolve())])
    for words in commands:  # committed, so that the replay's record knows what the patch changed
        if git.run(tree, *words) is None:
            raise InputError(
                f"run {run.name}: expected code and a patch that fits it, got none ({words[0]} "
                "failed); ask for the package anew"
            )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join((str(tree / "src"), str(tree)))
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def commit_of(run: Path) -> str:
    """Return the commit that the record of a run names."""
    state = record.read_json(run / "environment.json").get("git")
    commit = str(state.get("commit")) if isinstance(state, Mapping) else ""
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise InputError(f"{run}: expected a record with a git commit, got {commit or 'none'}")
    return commit


def _complete(run: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return configuration (flat), environment and summary of a run that can be packed."""
    record.require_run(run)
    config.require_replayable(record.read_config(run))
    settings = record.flatten(untrusted.read_yaml(run / "config.yaml"))
    environment, summary = record.read_json(run / "environment.json"), record.read_summary(run)
    if summary.get("status") != "finished":
        raise InputError(
            f"{run}: expected a run that finished, got status {summary.get('status')}; resume it "
            "by scripts/resume.py"
        )
    commit_of(run)
    lacks = environment["git"].get("lacks")
    if lacks:
        raise InputError(
            f"{run}: expected a record of all code that ran, got one that lacks "
            f"{', '.join(list(lacks)[:3])}; commit it, and run again"
        )
    return settings, environment, summary


def _of_commit(run: Path, *arguments: str) -> bytes:
    content = git.run(source.project_root(), *arguments)
    if content is None:
        raise InputError(
            f"{run}: expected a commit that this checkout has, got {commit_of(run)} (git "
            f"{arguments[0]} failed); fetch it"
        )
    return content


def _digests(environment: Mapping[str, Any]) -> Iterator[str]:
    for key in ("data_sha256", "files_sha256"):
        for name, digest in (environment.get(key) or {}).items():
            yield f"    {digest}  {name}"


def _zipped(entries: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as package:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name)  # of 1980-01-01, the first time there is
            entry.create_system = 3  # Unix, also where it is not
            entry.external_attr = 0o100644 << 16
            package.writestr(entry, entries[name])
    return buffer.getvalue()
