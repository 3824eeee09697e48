"""Kill sweeps at random moments, repeat their commands, and compare with one that nobody killed.

usage: python -m tests.end_to_end.kill_sweep [--kills 10]

Sweeps over 6 seeds, one job after another and two at a time in turn, are killed by SIGKILL, all
processes at once, also while they resume. All 6 runs must end with the bits of the uninterrupted
sweep, and sweep.csv must be the same.

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
from collections.abc import Sequence
from pathlib import Path

from tests.end_to_end.kill_anywhere import COMMON, differences
from tests.running import ROOT

BASIC: tuple[str, ...] = ()
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
SETTINGS = (*COMMON, "data.batch_size=200", "model.channels=[8,8,8]")
MOST_KILLS_OF_A_SWEEP = 4


def command(folder: Path, seeds: int, launcher: Sequence[str]) -> list[str]:
    """Return the command that starts a sweep, and resumes it."""
    words = [f"hydra.sweep.dir={folder}", f"seed=range({seeds})", *SETTINGS, *launcher]
    return [sys.executable, "train.py", "--multirun", *words]


def finish(folder: Path, seeds: int, launcher: Sequence[str] = BASIC) -> float:
    """Start or resume, to the end; return how many seconds it took."""
    since = time.monotonic()
    words = command(folder, seeds, launcher)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{folder}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - since


def kill(folder: Path, seeds: int, launcher: Sequence[str], moment: float) -> str | None:
    """Start or resume, and kill all processes after some seconds; return what there was by then.

    None if it ended before.
    """
    process = subprocess.Popen(
        command(folder, seeds, launcher),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a process group, which is killed as one
    )
    try:
        process.wait(moment)
        return None
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    summaries = [path.read_text() for path in folder.glob("*/summary.json")]
    finished = sum('"status": "finished"' in text for text in summaries)
    begun = len(list(folder.glob("*/config.yaml"))) - finished
    return f"after {moment:.2f} s with {finished} finished and {begun} begun"


def killed(
    folder: Path, seeds: int, launcher: Sequence[str], moments: Sequence[float]
) -> list[str]:
    """Bring a sweep to its end through kills; return what each of them hit."""
    found = []
    for moment in moments:
        hit = kill(folder, seeds, launcher, moment)
        if hit is None:
            break
        found.append(hit)
    finish(folder, seeds, launcher)
    return found


def different(whole: Path, folder: Path) -> list[str]:
    """Name everything in which a sweep does not have the bits of the uninterrupted one."""
    runs, others = ({p.parent.name for p in f.glob("*/config.yaml")} for f in (whole, folder))
    if runs != others:
        return [f"runs {sorted(runs ^ others)}"]
    found = [f"{run}: {name}" for run in runs for name in differences(whole / run, folder / run)]
    tables = [(sweep / "sweep.csv").read_text() for sweep in (whole, folder)]
    return sorted(found) + ([] if tables[0] == tables[1] else ["sweep.csv"])


def main() -> int:
    """Kill until there were enough kills; print whether all runs ended with the same bits."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    wanted, seeds, draw = parser.parse_args().kills, 6, random.Random()
    kills, sweeps, wrong = 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name, "whole")
        seconds = finish(whole, seeds)
        while kills < wanted:
            folder, launcher = Path(name, f"killed_{sweeps}"), (BASIC, JOBLIB)[sweeps % 2]
            most = min(wanted - kills, draw.randint(1, MOST_KILLS_OF_A_SWEEP))
            moments = [draw.uniform(0, seconds) for _ in range(most)]
            hits = killed(folder, seeds, launcher, moments)
            found = different(whole, folder)
            kills, sweeps, wrong = kills + len(hits), sweeps + 1, wrong + bool(found)
            way = " ".join(launcher) or "one after another"
            print(f"{', '.join(found) or 'same'}: {way}, killed {'; '.join(hits)}", flush=True)
    print(f"\n{kills} kills in {sweeps} sweeps of {seeds}: {sweeps - wrong} of {sweeps} the same")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
