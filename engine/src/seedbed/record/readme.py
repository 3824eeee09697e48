"""README.txt of a run folder: what ran, on what, what came of it, and how to verify it."""

import os
import resource
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from seedbed.errors import printable
from seedbed.names import flatten
from seedbed.record.files import write_atomically
from seedbed.record.folder import read_summary
from seedbed.record.untrusted import read_json

COMMAND = "SEEDBED_COMMAND"  # the environment variable that holds the command of a run


def write_readme(folder: Path) -> None:
    """Write README.txt into the folder of a run that has ended, at the end of its process."""
    text = "".join(f"{line}\n" for line in _lines(folder))
    write_atomically(folder / "README.txt", printable(text))


def _lines(folder: Path) -> Iterator[str]:
    environment, summary = read_json(folder / "environment.json"), read_summary(folder)
    git, cpu = environment["git"], environment["cpu"]
    dirty = " and source.patch" if git.get("dirty") else ""
    machine = [f"{cpu.get('model')}, {cpu.get('cores')} cores, {cpu.get('threads')} threads"]
    machine += [str(gpu.get("name")) for gpu in environment.get("gpu", [])]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB, on macOS in bytes
    peak_mib = peak / (1024**2 if sys.platform == "darwin" else 1024)
    yield f"{summary['status']} after {summary.get('steps')} steps"
    yield ""
    yield f"command   {_command(folder)}"
    yield f"code      commit {git.get('commit')}{dirty}"
    yield f"machine   {'; '.join(machine)}; {environment.get('platform')}"
    yield f"versions  {', '.join(f'{k} {v}' for k, v in environment['versions'].items())}"
    yield f"time      {summary.get('seconds', 0.0):.1f} seconds of training"
    yield f"memory    {peak_mib:,.0f} MiB at most, of one process"
    yield ""
    yield from (f"{name} {value!r}" for name, value in (summary.get("metrics") or {}).items())
    yield ""
    for key, digest in flatten(environment).items():
        if key.startswith(("data_sha256.", "files_sha256.")):
            yield f"{key.partition('.')[2]}  SHA-256 {digest}"
    yield ""
    yield f"to replay it and compare every bit: python scripts/verify.py {shlex.quote(str(folder))}"


def _command(folder: Path) -> str:
    """Return the command that started a run; one that resumes it does not replace it."""
    path, before = folder / "README.txt", []
    if path.is_file():
        lines = path.read_text().splitlines()
        before = [line[10:] for line in lines if line.startswith("command ")]
    resume = f"python scripts/resume.py {shlex.quote(str(folder))}"
    return os.environ.get(COMMAND) or (before or [resume])[0]
