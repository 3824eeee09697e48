"""Kill a random rank of runs in several processes, and go on in another number of processes.

usage: python tests/end_to_end/kill_ranks.py [--kills 30] [--seed 0]

A CNN and an LSTM train in 4 shards, on 2 or 4 processes. One process gets SIGKILL, at a random
moment; the others must end by themselves. The run goes on on 1, 2 or 4 processes, and ends with
the bits of the run on 1 process that nobody killed: weights, optimizer, tables, summary.

exit status: 0 all the same, 1 at least one differs
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from os import kill
from pathlib import Path

from kill_anywhere import ROOT, differences

COMMON = (
    "determinism.threads=1",
    "trainer.shards=4",
    "trainer.max_steps=40",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=4",
    "trainer.distributed_timeout_seconds=60",
)
CASES: Mapping[str, tuple[str, ...]] = {
    "CNN": ("data.batch_size=200",),
    "LSTM": ("experiment=adding_lstm", "data.length=20", "data.train.samples=1024"),
}
# What the others may end with, after a death by SIGKILL: the death, or why they ended.
ENDED_BY_THE_KILL = {2, 128 + signal.SIGKILL}


def command(case: str, folder: Path, processes: int) -> list[str]:
    """Return the command that trains, or goes on if the record has begun."""
    count = f"trainer.processes={processes}"
    if (folder / "config.yaml").exists():
        return [sys.executable, "-m", "seedbed", "resume", str(folder), count]
    return [
        sys.executable, "train.py", f"hydra.run.dir={folder}", *COMMON, *CASES[case], count,
    ]  # fmt: skip


def finish(case: str, folder: Path, processes: int) -> None:
    """Run to the end."""
    words = command(case, folder, processes)
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{folder}: exit status {done.returncode}\n{done.stderr}")


def run_and_kill_a_rank(case: str, folder: Path, draw: random.Random) -> str | None:
    """Start or resume on several processes and kill one; say which and when, None if too late."""
    processes, steps, more = draw.choice((2, 4)), draw.randrange(0, 38), draw.uniform(0, 0.05)
    rank = draw.randrange(processes)
    noted = rows(folder)
    launcher = subprocess.Popen(
        command(case, folder, processes),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while launcher.poll() is None and not (victim := process_of_rank(folder, rank)):
        time.sleep(0.01)
    if draw.random() < 0.75:  # the other moments are before the first step
        while launcher.poll() is None and rows(folder) < max(steps, noted % 4 + 1):
            time.sleep(0.01)
        time.sleep(more)
    else:
        time.sleep(draw.uniform(0, 4))
    if launcher.poll() is None and victim:
        try:
            kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            victim = None
    since = time.monotonic()
    _, errors = launcher.communicate()
    if launcher.returncode == 0:
        return None
    if launcher.returncode not in ENDED_BY_THE_KILL or "Traceback" in errors:
        raise RuntimeError(f"{folder}: exit status {launcher.returncode}\n{errors}")
    if left := [r for r in range(processes) if process_of_rank(folder, r)]:
        raise RuntimeError(f"{folder}: ranks {left} outlived the run")
    return (
        f"rank {rank} of {processes} after {rows(folder)} steps "
        f"(all ended in {time.monotonic() - since:.1f} s)"
    )


def process_of_rank(folder: Path, rank: int) -> int | None:
    """Return the id of the training process of a rank, if it is there."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            if b"seedbed.distributed.worker" not in words or str(folder).encode() not in words:
                continue
            if f"RANK={rank}".encode() in (place / "environ").read_bytes().split(b"\0"):
                return int(place.name)
        except OSError:  # it ended while we looked
            continue
    return None


def rows(folder: Path) -> int:
    """Count the steps that a run's fingerprints has."""
    table = folder / "fingerprints.csv"
    return max(0, table.read_text().count("\n") - 1) if table.exists() else 0


def main() -> int:
    """Kill until there were enough kills, and say whether all runs came back."""
    arguments = parse()
    draw = random.Random(arguments.seed)
    kills, runs, wrong, finished_on = 0, 0, 0, Counter[int]()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for case in CASES:
            finish(case, place / case, 1)
        while kills < arguments.kills:
            case, folder = list(CASES)[runs % len(CASES)], place / f"killed_{runs}"
            moments: list[str] = []
            for _ in range(min(draw.randint(1, 3), arguments.kills - kills)):
                if (moment := run_and_kill_a_rank(case, folder, draw)) is None:
                    break
                moments.append(moment)
            if moments or not (folder / "config.yaml").exists():
                processes = draw.choice((1, 2, 4))
                finish(case, folder, processes)
                finished_on[processes] += 1
            found = differences(place / case, folder)
            kills, runs, wrong = kills + len(moments), runs + 1, wrong + bool(found)
            text = "; ".join(moments) or "never, it was too fast"
            print(f"{', '.join(found) or 'same'}: {case}, killed {text}", flush=True)
    on = ", ".join(f"{finished_on[count]} on {count}" for count in sorted(finished_on))
    print(
        f"\n{kills} kills in {runs} runs (finished: {on}): {runs - wrong} of {runs} ended with the "
        "bits of one process that nobody killed"
    )
    return 1 if wrong else 0


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("--kills", metavar="N", type=int, default=30, help="how many (30)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the moments (0)")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
