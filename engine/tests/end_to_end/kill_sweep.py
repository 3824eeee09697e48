"""Kill sweeps at random moments, resume with them, and compare with the sweep that nobody killed.

usage: python -m tests.end_to_end.kill_sweep [--kills 10]

Sweeps over 6 seeds, one job after another and two at a time in turn, are killed by SIGKILL, all
processes at once, also while they go on. All 6 runs must end with the bits of the undisturbed
sweep, and the reports must say the same.

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

from seedbed import record
from tests.end_to_end.kill_anywhere import COMMON, ROOT, differences

BASIC: tuple[str, ...] = ()
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
SETTINGS = (*COMMON, "data.batch_size=200", "model.channels=[8,8,8]")
MOST_KILLS_OF_A_SWEEP = 4


def command(folder: Path, seeds: int, launcher: Sequence[str]) -> list[str]:
    """Return the command that starts a sweep, or goes on with it once its folder says how."""
    if record.is_sweep(folder):
        return [sys.executable, "scripts/resume.py", str(folder)]
    words = [f"hydra.sweep.dir={folder}", f"seed=range({seeds})", *SETTINGS, *launcher]
    return [sys.executable, "train.py", "--multirun", *words]


def finish(folder: Path, seeds: int, launcher: Sequence[str] = BASIC) -> float:
    """Start or go on, to the end; return how many seconds it took."""
    since = time.monotonic()
    words = command(folder, seeds, launcher)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{folder}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return time.monotonic() - since


def kill(folder: Path, seeds: int, launcher: Sequence[str], moment: float) -> str | None:
    """Start or go on, and kill all processes after some seconds; return what there was by then.

    None if it ended before.
    """
    process = subprocess.Popen(
        command(folder, seeds, launcher),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a process group of its own, which is killed as one
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
    """Name everything in which a sweep does not have the bits of the undisturbed one."""
    runs, others = ({p.parent.name for p in f.glob("*/config.yaml")} for f in (whole, folder))
    if runs != others:
        return [f"runs {sorted(runs ^ others)}"]
    found = [f"{run}: {name}" for run in runs for name in differences(whole / run, folder / run)]
    return sorted(found) + ([] if _report(whole) == _report(folder) else ["report.md"])


def _report(folder: Path) -> str:
    """Return a sweep's report without its title, which is the folder's name."""
    return (folder / "report.md").read_text().partition("\n")[2]


def main() -> int:
    """Kill until there were enough kills, and say whether all runs came back."""
    wanted, seeds, draw = parse().kills, 6, random.Random()
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
    print(
        f"\n{kills} kills in {sweeps} sweeps of {seeds}: {sweeps - wrong} of {sweeps} ended with "
        "the bits of the undisturbed sweep in every run"
    )
    return 1 if wrong else 0


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--kills", metavar="N", type=int, default=10, help="how many (10)")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
