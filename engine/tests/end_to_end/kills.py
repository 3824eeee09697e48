"""Kill what trains at random moments, go on, and compare the bits with what nobody killed.

usage: python -m tests.end_to_end.kills [runs|ranks|sweeps] [--kills 30] [--seed N]

runs: a CNN and an LSTM, with 0 and with 3 loader workers, killed with all their processes.
ranks: they train in 4 shards on 2 or 4 processes, one of which is killed, and go on on 1, 2 or 4.
sweeps: over 6 seeds, one job after another and two at a time, killed with all their processes.

They are killed by SIGKILL while they start, train, validate, write a checkpoint, or resume.

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
from dataclasses import dataclass
from pathlib import Path

from tests import ways
from tests.end_to_end.live import processes
from tests.running import ROOT

SHORT = ("determinism.threads=1", "trainer.max_steps=40", "trainer.log_every_steps=1",
         "trainer.checkpoint_every_steps=2")  # fmt: skip
MODELS = {  # with validations: on 20 batches an epoch, and on 16
    "CNN": ("data.batch_size=200",),
    "LSTM": ("experiment=adding_lstm", "data.length=20", "data.train.samples=1024"),
}
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
MOST_KILLS = 5  # of one folder
FINISHED = "finished"


@dataclass(frozen=True)
class Run:
    """A run that is killed, all its processes at once."""

    name: str
    overrides: tuple[str, ...]
    steps: int = 40

    def command(self, folder: Path, draw: random.Random) -> list[str]:
        """Return the command that trains it, or goes on with it if its record has begun."""
        if (folder / "config.yaml").exists():
            return [sys.executable, "-m", "seedbed", "resume", str(folder)]
        return [sys.executable, "train.py", f"hydra.run.dir={folder}", *SHORT, *self.overrides]

    def kill(self, process: subprocess.Popen[str], folder: Path, draw: random.Random) -> str:
        """Kill what works on a folder; return what it was doing."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return doing(folder)

    def differences(self, whole: Path, folder: Path) -> list[str]:
        """Name everything in which a folder differs from the one that nobody killed."""
        return ways.differences(whole, folder)


class Ranks(Run):
    """A run in several processes, one of which is killed: the others end by themselves."""

    def command(self, folder: Path, draw: random.Random) -> list[str]:
        words = super().command(folder, draw)
        begun = (folder / "config.yaml").exists()
        return [*words, f"trainer.processes={draw.choice((1, 2, 4) if begun else (2, 4))}"]

    def kill(self, process: subprocess.Popen[str], folder: Path, draw: random.Random) -> str:
        if ranks := processes(parent=process.pid):
            os.kill(draw.choice(ranks), signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode in (0, 2, 128 + signal.SIGKILL), errors
        assert "Traceback" not in errors, errors
        assert processes(group=process.pid) == [], "they outlived the run"
        return f"{doing(folder)}, one of {len(ranks)}"


class Sweep(Run):
    """A sweep over seeds, killed with all its processes; its command goes on with it."""

    def command(self, folder: Path, draw: random.Random) -> list[str]:
        return [sys.executable, *sweep_words(folder, self.steps // 40, *self.overrides)]

    def differences(self, whole: Path, folder: Path) -> list[str]:
        jobs, others = ({path.parent.name for path in sweep.glob("*/config.yaml")}
                        for sweep in (whole, folder))  # fmt: skip
        if jobs != others:
            return [f"jobs {sorted(jobs ^ others)}"]
        found = [f"{job}: {name}" for job in sorted(jobs)
                 for name in ways.differences(whole / job, folder / job)]  # fmt: skip
        tables = [(sweep / "sweep.csv").read_text() for sweep in (whole, folder)]
        return found + ([] if tables[0] == tables[1] else ["sweep.csv"])


def sweep_words(folder: Path, seeds: int, *words: str) -> list[str]:
    """Return the words by which a sweep is started, and goes on."""
    chosen = (*SHORT, "data.batch_size=200", "model.channels=[8,8,8]", *words)
    return ["train.py", "--multirun", f"hydra.sweep.dir={folder}", f"seed=range({seeds})", *chosen]


CASES: dict[str, list[Run]] = {
    "runs": [
        Run(f"{model} {workers} workers", (*words, f"data.num_workers={workers}"))
        for model, words in MODELS.items()
        for workers in (0, 3)
    ],
    "ranks": [
        Ranks(model, ("trainer.shards=4", "trainer.distributed_timeout_seconds=60", *words))
        for model, words in MODELS.items()
    ],
    "sweeps": [Sweep("one by one", (), 240), Sweep("two at a time", JOBLIB, 240)],
}


def finish(case: Run, folder: Path, draw: random.Random) -> float:
    """Run to the end; return how many seconds it took."""
    since, words = time.monotonic(), case.command(folder, draw)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{folder}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return time.monotonic() - since


def killed(case: Run, folder: Path, seconds: float, kills: int, draw: random.Random) -> list[str]:
    """Run to the end through kills; return what each hit: fewer, if it had ended before.

    Every third moment is any time in so many seconds from the start on; the others are in any
    step, because starting takes longer than all steps together.
    """
    hits = []
    for _ in range(kills):
        starts = count(folder, "train.log", "determinism=")
        with subprocess.Popen(
            case.command(folder, draw), cwd=ROOT, text=True, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            if draw.random() < 1 / 3:
                wait(process, draw.uniform(0, seconds))
            else:
                step = draw.randrange(1, case.steps)
                while process.poll() is None and (
                    count(folder, "train.log", "determinism=") == starts
                    or count(folder, "fingerprints.csv", "\n") <= step
                ):
                    time.sleep(0.005)
                wait(process, draw.uniform(0, 0.1))
            hit = case.kill(process, folder, draw) if process.poll() is None else FINISHED
        if process.returncode == 0 or hit == FINISHED:
            return hits
        hits.append(hit)
    finish(case, folder, draw)
    return hits


def wait(process: subprocess.Popen[str], seconds: float) -> None:
    """Sleep, but not beyond the end of a process."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)


def count(folder: Path, name: str, text: str) -> int:
    """Count a text in the files of a name in a run's folder, or in those of a sweep's runs."""
    files = [folder / name, *folder.glob(f"*/{name}")]
    return sum(path.read_text().count(text) for path in files if path.exists())


def doing(folder: Path) -> str:
    """Say what a run was doing when it was killed, as its folder tells."""
    if leftovers := [path.name for path in folder.glob("**/checkpoints/.*")]:
        return f"writing {leftovers[0].split('.')[1]}.pt"
    summary = folder / "summary.json"
    if summary.exists() and '"status": "finished"' in summary.read_text():
        return FINISHED
    steps = count(folder, "fingerprints.csv", "\n") - 1
    return "before the record" if steps < 0 else "starting" if steps == 0 else "training"


def main() -> int:
    """Kill until there were enough kills, and say whether all came to the same bits."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("kind", nargs="?", choices=CASES, default="runs")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    draw, cases = random.Random(arguments.seed), CASES[arguments.kind]
    hits, folders, wrong = Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        seconds = {case.name: finish(case, place / case.name, draw) for case in cases}
        while (left := arguments.kills - hits.total()) > 0:
            case, folder = cases[folders % len(cases)], place / f"killed_{folders}"
            most = min(left, draw.randint(1, MOST_KILLS))
            found = killed(case, folder, seconds[case.name], most, draw)
            different = case.differences(place / case.name, folder)
            hits.update(found)
            folders, wrong = folders + 1, wrong + bool(different)
            print(f"{', '.join(different) or 'same'}: {case.name}, killed {'; '.join(found)}",
                  flush=True)  # fmt: skip
    print(*(f"{number:5}  {hit}" for hit, number in hits.most_common()), sep="\n")
    print(f"{hits.total()} kills, {folders - wrong} of {folders} {arguments.kind} the same")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
