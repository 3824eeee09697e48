"""Kill runs at random moments, resume them, and compare each with the run that nobody killed.

usage: python tests/end_to_end/kill_anywhere.py [--kills 100]

A CNN and an LSTM, with 0 and with 3 loader workers, are killed by SIGKILL, all processes at once:
while they start, train, validate, write a checkpoint, or resume. What they end with must be the
bits of the uninterrupted run: weights, optimizer, best checkpoint, tables, summary.

exit status: 0 all the same, 1 at least one differs
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from seedbed import record
from seedbed.training import checkpoint

ROOT = Path(__file__).resolve().parents[1] / "tiny"  # the project that tests train
TABLES = ("metrics.csv", "fingerprints.csv", "test_predictions.csv")
COMMON = (
    "determinism.threads=1",
    "trainer.max_steps=40",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=2",
    "data.persistent_workers=false",
)
VALIDATED_STEPS = (16, 20, 32, 40)  # of the two experiments below
FINISHED = "finished"
MOST_KILLS_OF_A_RUN = 6
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Case:
    """An experiment that is killed."""

    name: str
    overrides: tuple[str, ...]

    def command(self, folder: Path) -> list[str]:
        """Return the command that trains it, or goes on with it if its record has begun."""
        if (folder / "config.yaml").exists():
            return [sys.executable, "-m", "seedbed", "resume", str(folder)]
        return [sys.executable, "train.py", f"hydra.run.dir={folder}", *COMMON, *self.overrides]


def case(model: str, workers: int) -> Case:
    """Return the CNN on 20 batches an epoch, or the LSTM on 16, so that a run has validations."""
    overrides = {
        "CNN": ("data.batch_size=200", "model.channels=[8,8,8]"),
        "LSTM": ("experiment=adding_lstm", "data.length=20", "data.train.samples=1024"),
    }[model]
    name = f"{model} {workers} workers"
    return Case(name, (*overrides, f"data.num_workers={workers}"))


@dataclass(frozen=True)
class Kill:
    """When a run was killed, and what it was doing, as its folder tells."""

    moment: str
    phase: str


def uninterrupted(of: Case, folder: Path) -> float:
    """Train without a kill; return how many seconds it took."""
    since = time.monotonic()
    finish(of, folder)
    return time.monotonic() - since


def finish(of: Case, folder: Path) -> None:
    """Run to the end."""
    done = subprocess.run(of.command(folder), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{folder}: exit status {done.returncode}\n{done.stderr}")


def killed(of: Case, folder: Path, seconds: float, kills: int, draw: random.Random) -> list[Kill]:
    """Run to the end through a number of kills, or as many as hit it before the end."""
    found = []
    for _ in range(kills):
        kill = run_and_kill(of, folder, seconds, draw)
        if kill is None:
            return found
        found.append(kill)
    finish(of, folder)
    return found


def run_and_kill(of: Case, folder: Path, seconds: float, draw: random.Random) -> Kill | None:
    """Start or resume a run and kill it; return None if it ended before the moment came.

    Every third moment is any time from the start on; the others are in any step, because starting
    takes longer than all steps together.
    """
    starts = _starts(folder)
    process = subprocess.Popen(
        of.command(folder),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, which is killed as one
    )
    if draw.random() < 1 / 3:
        moment = draw.uniform(0, seconds)
        text = f"{moment:.2f} s after the start"
        _wait(process, moment)
    else:
        rows, more = draw.randrange(1, 40), draw.uniform(0, 0.1)
        text = f"{more:.3f} s after step {rows} was noted"
        wait_for_rows(process, folder, starts, rows)
        _wait(process, more)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    _, errors = process.communicate()
    if process.returncode == 0 or phase(folder, starts) == FINISHED:
        return None
    if process.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{folder}: exit status {process.returncode}\n{errors}")
    return Kill(text, phase(folder, starts))


def wait_for_rows(process: subprocess.Popen[str], folder: Path, starts: int, rows: int) -> None:
    """Wait until this process trains and a step is noted, or until it ends."""
    while process.poll() is None:
        if _starts(folder) > starts and _rows(folder / "fingerprints.csv") >= rows:
            return
        time.sleep(_POLL_SECONDS)


def phase(folder: Path, starts: int) -> str:
    """Say what a run was doing when it was killed, given how often it had begun to train before."""
    if not (folder / "config.yaml").exists():
        return "before the record"
    if '"status": "finished"' in _text(folder / "summary.json"):
        return FINISHED
    leftovers = [path.name for path in (folder / "checkpoints").glob(".*")]
    if leftovers:
        return f"writing {'best.pt' if 'best' in leftovers[0] else 'last.pt'}"
    if _starts(folder) == starts:
        return "resuming" if starts else "starting"
    rows = _rows(folder / "fingerprints.csv")
    return "validating or testing" if rows in VALIDATED_STEPS else "training"


def differences(a: Path, b: Path) -> list[str]:
    """Name everything in which two finished runs do not have the same bits."""
    tables = [name for name in TABLES if (a / name).exists() or (b / name).exists()]
    names = [name for name in tables if (a / name).read_bytes() != (b / name).read_bytes()]
    for name in ("last.pt", "best.pt"):
        left, right = (checkpoint.load(run / "checkpoints" / name) for run in (a, b))
        optimizers = sorted(key for key in {*left, *right} if key.startswith("optimizer"))
        for part in ("model", "buffers", *optimizers, "metric", "step", "last"):
            if not _same(left.get(part), right.get(part)):
                names.append(f"{name}: {part}")
    left, right = record.read_summary(a), record.read_summary(b)
    keys = ("status", "steps", "metrics", "objective", "fingerprints")
    return names + [f"summary: {key}" for key in keys if left[key] != right[key]]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _starts(folder: Path) -> int:
    """Count how often the run began to train, or went on."""
    return _text(folder / "train.log").count("determinism=")


def _rows(table: Path) -> int:
    return max(0, _text(table).count("\n") - 1)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _wait(process: subprocess.Popen[str], seconds: float) -> None:
    """Sleep, but not beyond the end of a process."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def main() -> int:
    """Kill until there were enough kills, print the table, and say whether all came back."""
    arguments = parse()
    draw = random.Random()
    cases = [case(model, workers) for model in ("CNN", "LSTM") for workers in (0, 3)]
    runs, wrong = 0, 0
    phases: dict[str, Counter[str]] = {one.name: Counter() for one in cases}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        seconds = {one: uninterrupted(one, place / one.name) for one in cases}
        while (left := arguments.kills - sum(sum(count.values()) for count in phases.values())) > 0:
            one = cases[runs % len(cases)]
            folder = place / f"killed_{runs}"
            most = min(left, draw.randint(1, MOST_KILLS_OF_A_RUN))
            kills = killed(one, folder, seconds[one], most, draw)
            found = differences(place / one.name, folder)
            phases[one.name].update(kill.phase for kill in kills)
            runs, wrong = runs + 1, wrong + bool(found)
            moments = "; ".join(kill.moment for kill in kills) or "never, it was too fast"
            print(f"{', '.join(found) or 'same'}: {one.name}, killed {moments}", flush=True)
    report(phases, runs, wrong)
    return 1 if wrong else 0


def report(phases: dict[str, Counter[str]], runs: int, wrong: int) -> None:
    """Print how often each experiment was killed doing what, and what came of it."""
    rows = sorted({phase for count in phases.values() for phase in count})
    width = max(map(len, rows), default=0)
    print(f"\n{'killed while':{width}}" + "".join(f"  {name:>16}" for name in phases))
    for row in rows:
        print(f"{row:{width}}" + "".join(f"  {count[row]:>16}" for count in phases.values()))
    kills = sum(sum(count.values()) for count in phases.values())
    print(
        f"\n{kills} kills in {runs} runs: {runs - wrong} of {runs} runs ended with the bits of the "
        "uninterrupted run"
    )


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--kills", metavar="N", type=int, default=100, help="how many (100)")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
