"""A package for readers of a paper: records, their code, and one command that replays them.

The same runs make the same bytes: entries are sorted, have one time, and are not compressed. A
package that is read may come from a stranger: only the names below are taken out, as plain files,
if they have the digests that SHA256SUMS says.
"""

import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from seedbed import config, project, record
from seedbed.compare import Record
from seedbed.compare.checkout import Tree
from seedbed.errors import InputError
from seedbed.record import blobs, git, untrusted
from seedbed.tools import places

MAX_BYTES = 1 << 30  # of a package, and of the code of a commit
MAX_ENTRIES = 10_000
_SUMS = "SHA256SUMS"  # of all other entries, as sha256sum --check reads it
_FILES = (
    *("config.yaml", "environment.json", "fingerprints.csv", "metrics.csv", "source.patch"),
    *("summary.json", "test_predictions.csv"),
)
_NAME = re.compile(
    rf"README\.md|requirements\.txt|{_SUMS}|code/[0-9a-f]{{40,64}}\.tar"
    rf"|runs/[1-9][0-9]{{0,3}}/({'|'.join(map(re.escape, _FILES))})"
)
_COMMIT = [
    *("-c", "user.name=package", "-c", "user.email=package"),
    *("commit", "--quiet", "--no-verify", "--message=the code of a package"),
]
# Whatever a user has set: the modes and the line ends that `git archive` writes.
_AS_IT_IS = ("-c", "tar.umask=0002", "-c", "core.autocrlf=false", "-c", "core.eol=lf")
_README = """# Runs that can be repeated bit for bit

| run | model | data | preset | steps | weights |
| --- | --- | --- | --- | --- | --- |
{rows}

`runs/` has the records, `code/` the code of their commits (`git archive`; what was not committed is
in the `source.patch` of a run), `requirements.txt` the pinned packages, `SHA256SUMS` the digests of
these files. SHA-256 of the data:

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
    entries[_SUMS] = _sums(entries)
    return _zipped(entries)


def unpack(path: Path, folder: Path) -> list[Path]:
    """Take the entries of a package out into an empty folder; return its run folders.

    Raises:
        InputError: it is no package, or holds what a package does not.
    """
    try:
        with untrusted.open_file(path, MAX_BYTES) as file, zipfile.ZipFile(file) as package:
            _require_plain(path, package.infolist())
            entries = {entry.filename: package.read(entry) for entry in package.infolist()}
    except (
        *(OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError),
    ) as error:
        reason = str(error) or "one that is cut off"
        raise InputError(f"{path}: expected a package of scripts/pack.py, got {reason}") from None
    if _SUMS not in entries:
        raise InputError(f"{path}: expected a package with {_SUMS}, got none; make it anew")
    if entries.pop(_SUMS) != _sums(entries):
        raise InputError(
            f"{path}: expected entries with the digests of its {_SUMS}, got others; ask for the "
            "package anew"
        )
    for name, content in entries.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    found = sorted((folder / "runs").glob("*"), key=lambda run: int(run.name))
    if not found:
        raise InputError(f"{path}: expected a package with runs, got none; make it anew")
    return [record.require_run(run) for run in found]


def _require_plain(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Raise InputError for entries that no package has, too many of them, or too much in them."""
    if len(entries) > MAX_ENTRIES:
        raise InputError(f"{path}: expected at most {MAX_ENTRIES:,} entries, got more; refuse it")
    left, seen = MAX_BYTES, set[str]()
    for entry in entries:
        is_file = (entry.external_attr >> 28) in (0, 0o10)
        stored = entry.compress_type == zipfile.ZIP_STORED
        known = _NAME.fullmatch(entry.filename) and entry.filename not in seen
        if not (is_file and stored and known and entry.file_size <= left):
            raise InputError(
                f"{path}: expected files of a package, each once and stored as it is, got "
                f"{entry.filename[:100]!r}; make it by scripts/pack.py"
            )
        seen.add(entry.filename)
        left -= entry.file_size


def described(of: Record) -> str:
    """Return what a replay of a run of a package executes, in a few words."""
    patch = " and its source.patch" if of.patch else ""
    return (
        f"{of.config.get('model.name')} on {of.config.get('data.name')}, "
        f"{of.summary.get('steps')} steps, by the code of commit {of.code.commit}{patch}"
    )


@contextmanager
def code_of(run: Path, of: Record) -> Iterator[Tree]:
    """Yield the code of a run of a package, taken out into a folder beside it for a while.

    Args:
        run: its folder, as `unpack` returned it.

    Raises:
        InputError: the package lacks the commit, or the patch does not apply to it.
    """
    name = f"code/{of.code.commit}.tar"
    folder = run.parents[1]
    with TemporaryDirectory(prefix="code-", dir=folder) as place:
        tree = Path(place)
        try:
            if not blobs.is_commit(str(of.code.commit)):
                raise InputError(f"{run.name}: expected a record with a commit, got none")
            with tarfile.open(folder / name, "r:") as archive:
                if sum(member.size for member in archive) > MAX_BYTES:
                    raise InputError(f"{name}: expected at most {MAX_BYTES:,} bytes, got more")
                archive.extractall(tree, filter="data")  # nothing outside, no devices
        except (OSError, tarfile.TarError) as error:
            reason = str(error).replace(f"{folder}/", "")
            raise InputError(f"{name}: expected the code of a commit, got {reason}") from None
        commands = [["init", "--quiet", "--template="], ["add", "--all", "--force"], _COMMIT]
        if of.patch:
            commands.append(["apply", "--whitespace=nowarn", "-"])
        for (
            words
        ) in commands:  # committed, so that the replay's record knows what the patch changed
            if git.run(tree, *words, stdin=of.patch) is None:
                raise InputError(
                    f"run {run.name}: expected code and a patch that fits it, got none ({words[0]} "
                    "failed); ask for the package anew"
                )
        yield Tree.at(tree)


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
    content = git.run(project.root(), *_AS_IT_IS, *arguments)
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


def _sums(entries: Mapping[str, bytes]) -> bytes:
    digests = {name: hashlib.sha256(entries[name]).hexdigest() for name in sorted(entries)}
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode()


def _zipped(entries: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as package:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name)  # of 1980-01-01, the first time there is
            entry.create_system = 3  # Unix, also where it is not
            entry.external_attr = 0o100644 << 16
            package.writestr(entry, entries[name])
    return buffer.getvalue()
