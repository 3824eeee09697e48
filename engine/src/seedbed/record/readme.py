"""README.txt of a run folder: what ran, on what, what came of it, and how to verify it."""

import resource
import shlex
import sys
from datetime import date
from pathlib import Path

from seedbed.errors import printable
from seedbed.names import flatten
from seedbed.record.folder import read_summary, write_atomically
from seedbed.record.terminal import resume_command
from seedbed.record.untrusted import read_json


def write_readme(folder: Path) -> None:
    """Write README.txt into the folder of a run that made steps, at the end of its process."""
    environment, summary = read_json(folder / "environment.json"), read_summary(folder)
    git, cpu = environment["git"], environment["cpu"]
    machine = [f"{cpu.get('model')}, {cpu.get('cores')} cores, {cpu.get('threads')} threads"]
    machine += [str(gpu.get("name")) for gpu in environment["gpu"]] + [environment["platform"]]
    digests = [
        f"{key.partition('.')[2]}  SHA-256 {digest}"
        for key, digest in flatten(environment).items()
        if key.startswith(("data_sha256.", "files_sha256."))
    ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB, on macOS in bytes
    peak_mib = peak / (1024**2 if sys.platform == "darwin" else 1024)
    lines = [
        f"{summary['status']} after {summary.get('steps')} steps",
        "",
        f"command   {summary.get('command') or resume_command(folder)}",
        f"code      code.zip; commit {git.get('commit')}{' with changes' * bool(git.get('dirty'))}",
        f"machine   {'; '.join(machine)}",
        f"versions  {', '.join(f'{k} {v}' for k, v in environment['versions'].items())}",
        f"time      {summary.get('seconds', 0.0):.1f} seconds of training, until {date.today()}",
        f"memory    {peak_mib:,.0f} MiB (largest process)",
        "",
        *(f"{name} {value!r}" for name, value in (summary.get("metrics") or {}).items()),
        "",
        *digests,
        "",
        f"to replay it and compare every bit: python scripts/verify.py {shlex.quote(str(folder))}",
    ]
    write_atomically(folder / "README.txt", printable("".join(f"{line}\n" for line in lines)))
