"""Measure what the checks before the first step cost, for docs/measured.md.

usage: python engine/measure/start.py [key=value ...]

Prints, for a configuration: seconds to compare the samples of its splits; then whole
runs of four steps without the rehearsal, with it, and with one that has passed before:
medians of three, taken in turns (CPU seconds, seconds, peak memory of the largest
process).

exit status: 0 measured, 2 invalid overrides
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from seedbed import assemble, project
from seedbed.assemble import overlap, sources
from seedbed.config.compose import configuration
from seedbed.errors import exit_on_errors

RUNS = 3


def main() -> int:
    words = sys.argv[1:]
    settings = configuration(*words)
    assemble.choose_device("cpu")
    built = sources.build_sources(settings)
    began = time.perf_counter()
    overlap.check(settings, built, print)
    print(
        f"comparing {sum(map(len, built.values())):,} samples:"
        f" {time.perf_counter() - began:.2f} s"
    )
    ways = {"without": "false", "with": "true", "passed before": "true"}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(RUNS):
        for way, value in ways.items():
            if way == "with":
                shutil.rmtree(
                    project.root() / ".seedbed" / "rehearsed", ignore_errors=True
                )
            found[way].append(trained(*words, f"trainer.rehearse_resume={value}"))
    for way, each in found.items():
        cpu, wall = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"{way}: {cpu:.2f} CPU seconds, {wall:.2f} s")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    print(f"largest process: {peak:.2f} GB")
    return 0


def trained(*words: str) -> tuple[float, float]:
    """Train four steps; return CPU seconds of all processes, and seconds."""
    with tempfile.TemporaryDirectory() as place:
        command = [
            sys.executable,
            str(project.root() / "train.py"),
            *words,
            "trainer.max_steps=4",
        ]
        before, began = os.times(), time.perf_counter()
        run = Path(place, "run")
        subprocess.run(
            [*command, f"hydra.run.dir={run}"], check=True, capture_output=True
        )
        after = os.times()
    user, system = (
        after.children_user - before.children_user,
        after.children_system - before.children_system,
    )
    return user + system, time.perf_counter() - began


if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(main())
