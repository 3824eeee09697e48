"""Kill trainings at random moments, resume them, and compare the bits with undisturbed
ones.

usage: python -m tests.end_to_end.kills [runs|ranks|sweeps] [--kills 30] [--seed N]

runs: a CNN and an LSTM, with 0 and with 3 loader workers, killed with all their
processes.
ranks: the same in 4 shards on 2 or 4 processes, one of which is killed; resumed on 1, 2
or 4.
sweeps: over 6 seeds, one job after another and two at a time, killed with all their
processes.

They are killed by SIGKILL while they start, train, validate, write a checkpoint, or
resume.

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests import ways
from tests.end_to_end.live import ADDING, SHORT, begin, processes
from tests.running import command

MODELS = {  # with validations: an epoch has 20 and 16 steps
    "CNN": ("data.batch_size=200",),
    "LSTM": ADDING,
}
SHARDED = ("trainer.shards=4", "trainer.distributed_timeout_seconds=60")
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


@dataclass(frozen=True)
class Case:
    """A run or sweep to kill. Of `ranks`, one is killed, and the others end by
    themselves."""

    name: str
    overrides: tuple[str, ...]
    kind: str = "runs"
    seeds: int = 6  # of a sweep

    @property
    def steps(self) -> int:
        return 40 * self.seeds if self.kind == "sweeps" else 40

    def command(self, folder: Path, draw: random.Random) -> list[str]:
        """Return the command that starts it, or that resumes it if its record has
        begun."""
        if self.kind == "sweeps":
            return sweep_words(folder, self.seeds, *self.overrides)
        words = ["train.py", f"hydra.run.dir={folder}", *SHORT, *self.overrides]
        begun = (folder / "config.yaml").exists()
        if begun:
            words = ["-m", "seedbed", "resume", str(folder)]
        if self.kind == "ranks":
            words.append(
                f"trainer.processes={draw.choice((1, 2, 4) if begun else (2, 4))}"
            )
        return words

    def kill(self, process: subprocess.Popen[str], draw: random.Random) -> None:
        """Kill all its processes, or one rank, and wait until all have ended."""
        if self.kind != "ranks":
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return
        if ranks := processes(parent=process.pid):
            os.kill(draw.choice(ranks), signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode in (0, 2, 128 + signal.SIGKILL), errors
        assert "Traceback" not in errors, errors
        assert processes(group=process.pid) == [], "they outlived the run"

    def differences(self, whole: Path, folder: Path) -> list[str]:
        """Return everything in which a folder differs from the undisturbed one."""
        if self.kind != "sweeps":
            return ways.differences(whole, folder)
        configs = [
            path for sweep in (whole, folder) for path in sweep.glob("*/config.yaml")
        ]
        jobs = {path.parent.name for path in configs}
        found = [
            f"no {job}" for job in jobs if not (folder / job / "summary.json").exists()
        ]
        there = [job for job in jobs if f"no {job}" not in found]
        found += [
            name
            for job in there
            for name in ways.differences(whole / job, folder / job)
        ]
        tables = [(sweep / "sweep.csv").read_text() for sweep in (whole, folder)]
        return found + ([] if tables[0] == tables[1] else ["sweep.csv"])


def sweep_words(folder: Path, seeds: int, *words: str) -> list[str]:
    """Return the command that starts a sweep, and resumes it."""
    chosen = (*SHORT, "data.batch_size=200", "model.channels=[8,8,8]", *words)
    return [
        "train.py",
        "--multirun",
        f"hydra.sweep.dir={folder}",
        f"seed=range({seeds})",
        *chosen,
    ]


CASES = {
    "runs": [
        Case(f"{model} {workers} workers", (*words, f"data.num_workers={workers}"))
        for model, words in MODELS.items()
        for workers in (0, 3)
    ],
    "ranks": [
        Case(model, (*SHARDED, *words), "ranks") for model, words in MODELS.items()
    ],
    "sweeps": [
        Case("one by one", (), "sweeps"),
        Case("two at a time", JOBLIB, "sweeps"),
    ],
}


def finish(case: Case, folder: Path, draw: random.Random) -> float:
    since = time.monotonic()
    words = case.command(folder, draw)
    done = command(*words, timeout_seconds=3600)
    assert done.returncode == 0, (
        f"{folder}: status {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return time.monotonic() - since


def killed(
    case: Case, folder: Path, seconds: float, kills: int, draw: random.Random
) -> list[int]:
    """Run to the end through up to `kills` kills; return fingerprints.csv's lines
    before each.

    A third of the moments lie anywhere in the first `seconds`; the others lie in a
    random step, because starting takes longer than all steps together.
    """
    hits = []
    for _ in range(kills):
        starts = count(folder, "train.log", "determinism=")
        with begin(*case.command(folder, draw), stdout=subprocess.DEVNULL) as process:
            moment = draw.uniform(0, seconds)
            if draw.random() > 1 / 3:
                step = draw.randrange(1, case.steps)
                moment = draw.uniform(0, 0.1)
                while process.poll() is None and (
                    count(folder, "train.log", "determinism=") == starts
                    or count(folder, "fingerprints.csv", "\n") <= step
                ):
                    time.sleep(0.005)
            with suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            if process.poll() is None:
                case.kill(process, draw)
        summary = folder / "summary.json"
        if process.returncode == 0 or (
            summary.exists() and '"finished"' in summary.read_text()
        ):
            return hits
        hits.append(count(folder, "fingerprints.csv", "\n"))
    finish(case, folder, draw)
    return hits


def count(folder: Path, name: str, text: str) -> int:
    """Count a text in the file `name` of a run folder, or of all run folders of a
    sweep."""
    files = [folder / name, *folder.glob(f"*/{name}")]
    return sum(path.read_text().count(text) for path in files if path.exists())


def main() -> int:
    """Kill as often as asked; return 0 if all ended with the same bits, otherwise 1."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("kind", nargs="?", choices=CASES, default="runs")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    cases = CASES[arguments.kind]
    hits: list[int] = []
    folders = 0
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        seconds = {case.name: finish(case, place / case.name, draw) for case in cases}
        while (left := arguments.kills - len(hits)) > 0:
            case = cases[folders % len(cases)]
            folder = place / f"killed_{folders}"
            found = killed(
                case, folder, seconds[case.name], min(left, draw.randint(1, 5)), draw
            )
            different = case.differences(place / case.name, folder)
            hits += found
            folders = folders + 1
            wrong = wrong + bool(different)
            what = ", ".join(different) or "same"
            print(f"{what}: {case.name}, killed after rows {found}", flush=True)
    print(
        f"{len(hits)} kills, {folders - wrong} of {folders} {arguments.kind} the same"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
