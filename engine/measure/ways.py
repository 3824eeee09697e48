"""Ways of training, for the rows of guarantees.py; and the sections of
docs/measured.md.

A way trains with overrides in a folder that does not exist yet, and returns the run
folder.
"""

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from seedbed import project, record
from seedbed.errors import InputError

ROOT = project.root()


def finish(command: Sequence[str], **how: Any) -> None:
    """Run a command; raise InputError with its last line if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, **how)
    if done.returncode:
        raise InputError((done.stderr.strip().splitlines() or ["no message"])[-1])


@contextmanager
def started(command: Sequence[str], **how: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start a command in a new session; at the end, kill its whole process group."""
    how = {"stdout": DEVNULL, "stderr": DEVNULL} | how
    process: subprocess.Popen[Any] = subprocess.Popen(
        command, start_new_session=True, **how
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def command(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Return the command that runs train.py."""
    return [
        sys.executable,
        str(ROOT / "train.py"),
        *overrides,
        f"hydra.run.dir='{folder}'",
    ]


def plainly(folder: Path, overrides: Sequence[str], **variables: str) -> Path:
    """Train with `python train.py` and further environment variables, if any."""
    finish(command(folder, overrides), env={**os.environ, **variables})
    return folder


def evaluated(folder: Path, overrides: Sequence[str]) -> Path:
    """Train, and raise InputError unless evaluate.py gives the recorded values of both
    sets."""
    return _evaluated(plainly(folder, overrides))


def _evaluated(run: Path) -> Path:
    summary = record.read_summary(run)
    for split, checkpoint, values in (
        ("test", "best", "metrics"),
        ("validation", "best", "metrics"),
        ("validation", "last", "last_metrics"),
    ):
        recorded = summary[values]
        how = [
            f"--split={split}",
            f"--checkpoint={checkpoint}",
            "--json",
            "data.num_workers=2",
        ]
        words = [sys.executable, str(ROOT / "scripts/evaluate.py"), str(run), *how]
        trust = ["--trust", "noisy_split", "--trust", "kill_in"]
        done = subprocess.run(
            [*words, *trust], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        for name, value in found.items():
            if name in recorded and recorded[name] != value:
                raise InputError(
                    f"{name}: expected {recorded[name]}, got {value} by evaluate.py"
                )
    return run


def elsewhere(folder: Path, overrides: Sequence[str]) -> Path:
    """Train in a folder with spaces and an umlaut in its name, started from another
    folder."""
    folder.mkdir(parents=True)
    run = folder / "with a space, ünd more"
    finish(command(run, overrides), cwd=folder)
    return run


def beside_a_load(folder: Path, overrides: Sequence[str]) -> Path:
    """Train while two other processes per core keep the machine busy."""
    words = [sys.executable, "-c", "while True: sum(i * i for i in range(10**5))"]
    with ExitStack() as busy:
        for _ in range(2 * (os.cpu_count() or 1)):
            busy.enter_context(started(words))
        return plainly(folder, overrides)


def in_a_sweep(
    folder: Path,
    overrides: Sequence[str],
    seeds: str = "1,0",
    words: Sequence[str] = (),
) -> Path:
    """Train a sweep over seeds; return the run with seed 0."""
    train = [
        sys.executable,
        str(ROOT / "train.py"),
        "-m",
        f"seed={seeds}",
        *overrides,
        *words,
    ]
    finish([*train, f"hydra.sweep.dir={folder}"])
    runs = [path for path in folder.glob("*") if record.is_run(path)]
    [run] = [run for run in runs if record.read_summary(run)["seed"] == 0]
    return run


def interrupted(
    folder: Path,
    overrides: Sequence[str],
    number: signal.Signals = signal.SIGTERM,
    changed: Sequence[str] = (),
) -> Path:
    """Send a signal to a run soon after its first checkpoint, at step 7, then resume
    it."""
    with started(
        command(folder, [*overrides, "trainer.checkpoint_every_steps=7"])
    ) as process:
        checkpoint = folder / "checkpoints" / "last.pt"
        while process.poll() is None and not checkpoint.exists():
            time.sleep(0.002)
        if process.poll() is not None:  # also one that failed before its first step
            raise InputError(
                "interruption: expected a run that was stopped, got one that ended with"
                f" status {process.returncode}"
            )
        os.killpg(process.pid, number)
        process.wait()
    _wait_for_the_lock(folder)
    if record.read_summary(folder)["status"] == "finished":
        raise InputError(
            "interruption: expected a run that was stopped, got one that finished"
        )
    finish([sys.executable, str(ROOT / "scripts" / "resume.py"), str(folder), *changed])
    return folder


def killed_in(folder: Path, overrides: Sequence[str], phase: str) -> Path:
    """Kill a run in a phase, resume it, and evaluate its weights again by
    evaluate.py."""
    kill = f"+callbacks.kill={{_target_: kill_in.Kill, phase: {phase}}}"
    done = subprocess.run(
        command(folder, [*overrides, kill]), capture_output=True, text=True
    )
    if not (folder / "killed").exists():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"kill in {phase}: expected a run that was killed, got {last}")
    _wait_for_the_lock(folder)
    finish([sys.executable, str(ROOT / "scripts" / "resume.py"), str(folder)])
    return _evaluated(folder)


def _wait_for_the_lock(folder: Path, seconds: float = 60) -> None:
    """Wait until the training process is dead, which may be after `train.py`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with record.lock(folder):
                return
        except InputError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


killed = partial(interrupted, number=signal.SIGKILL)


def write_section(name: str, tables: list[str], environment: Mapping[str, Any]) -> None:
    """Replace the text between `<!-- NAME -->` and `<!-- end of NAME -->` in
    docs/measured.md.

    Each table is Markdown with its title; machine and versions are those of a run's
    environment.
    """
    page = ROOT / "docs" / "measured.md"
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, rest = page.read_text().split(start)
    _, after = rest.split(end)
    command = " ".join(
        ["python", f"engine/measure/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    )
    measured = (
        f"`{command}`, {datetime.date.today().isoformat()}, {machine(environment)}."
    )
    page.write_text(
        before + start + "\n\n".join([measured, *tables]) + f"\n{end}" + after
    )
    print(page)


def machine(environment: Mapping[str, Any]) -> str:
    """Return a short description of the hardware and versions of a run."""
    found = record.flatten(environment)
    gpu = f"{found['gpu.0.name']}, " if "gpu.0.name" in found else ""
    return (
        f"{gpu}{found['cpu.model']} ({found['cpu.cores']} cores,"
        f" {found['cpu.capability']}, {found['cpu.threads']} threads in use),"
        f" {found['platform']}, Python {found['versions.python']}, torch"
        f" {found['versions.torch']}"
    )
