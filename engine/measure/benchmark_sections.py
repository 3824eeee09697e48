"""What is measured: sections of programs that are compared with each other."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import benchmark_programs as programs
import timing
from benchmark_programs import CNN_64, CNN_256, LSTM, Workload
from timing import Measured, Program, Round, Turns

from seedbed import record

_TURNS = Turns()
LENGTHS = (250, 500, 1000)  # steps of the runs that show how cost grows
ACCURACIES = (0.98, 0.99)
MOST_EPOCHS = 6
OURS = "python train.py"
WORKLOADS = (CNN_64, CNN_256, LSTM)
_ONE_OF_EACH_KIND = (
    programs.BARE, programs.BARE_CHANNELS_LAST, programs.PLAIN, programs.LIGHTNING
)  # fmt: skip
Log = Callable[[str], None]


@dataclass(frozen=True)
class Section:
    """Programs that train the same and are compared with one of them."""

    title: str
    base: str
    programs: tuple[Program, ...]
    turns: Turns = _TURNS


def workloads(data: Path) -> Iterator[Section]:
    """Yield a section for each workload: the bare loop, the presets, the baselines.

    The default has all of them; the larger batch has one of each kind, the LSTM no baselines.
    """
    for workload in WORKLOADS:
        found = [programs.bare(programs.BARE, workload, data)]
        chosen = dict(programs.PRESETS)
        if workload is not LSTM:
            name = programs.BARE_CHANNELS_LAST
            found.append(programs.bare(name, workload, data, channels_last=True))
        if workload is CNN_64:
            name = programs.BARE_BFLOAT16
            found.append(programs.bare(name, workload, data, channels_last=True, bfloat16=True))
        if workload is not LSTM:
            found += programs.baselines(workload, data)
        if workload is CNN_64:
            chosen |= programs.PLAIN_IMAGES | programs.BFLOAT16 | programs.WORKERS
        if workload is CNN_256:
            found = [program for program in found if program.name in _ONE_OF_EACH_KIND]
            chosen = {name: chosen[name] for name in chosen if not name.startswith("seeded")}
        presets = [programs.seedbed(name, workload, *words) for name, words in chosen.items()]
        yield Section(workload.name, programs.BARE, (*presets, *found))
    yield samples(data)


def samples(data: Path) -> Section:
    """Return the section in which all programs load the same samples with the same transforms."""
    workload = programs.samples(data)
    rows = programs.SAMPLE_ROWS.items()
    found = [programs.seedbed(name, workload, *words) for name, words in rows]
    with_bar = [each for each in programs.baselines(workload, data) if "bar" not in each.name]
    return Section(workload.name, programs.PLAIN, (*found, *with_bar))


def knobs() -> Iterator[Section]:
    """Yield sections of strict without one thing at a time."""
    for workload in (CNN_64, LSTM):
        found = [programs.seedbed("strict", workload, "determinism=strict")]
        for name, words in programs.KNOBS.items():
            has_no_effect = workload is LSTM and ("thread" in name or "channels" in name)
            if not has_no_effect:  # the LSTM has one thread and no images
                found.append(programs.seedbed(name, workload, "determinism=strict", *words))
        yield Section(workload.name, "strict", tuple(found))


def compiled(data: Path) -> Section:
    """Return the section of compiled models."""
    presets = {name: (f"determinism={name}",) for name in ("strict", "fast")}
    chosen = presets | programs.COMPILED
    found = [programs.bare(programs.BARE, CNN_64, data)]
    found += [programs.seedbed(name, CNN_64, *words) for name, words in chosen.items()]
    return Section(CNN_64.name, programs.BARE, tuple(found))


def quick(data: Path) -> Section:
    """Return a section that is measured within seconds, and says little."""
    found = (
        programs.bare(programs.BARE, CNN_64, data),
        programs.seedbed("strict", CNN_64, "determinism=strict"),
    )
    return Section(CNN_64.name, programs.BARE, found, Turns(2, 0.8, warm_up_steps=4))


def measure(section: Section, rounds: int, folder: Path, log: Log) -> list[Round]:
    """Run a section's programs; what they leave on disk is weighed and removed."""
    measured: list[Round] = []
    for each in timing.rounds(section.programs, rounds, section.turns, folder):
        measured.append(each)
        shutil.rmtree(folder)
        log(f"{section.title}: round {len(measured)} of {rounds}")
    return measured


def measure_growth(rounds: int, folder: Path) -> dict[int, list[Measured]]:
    """Run strict for each of LENGTHS, alone and to its end."""
    found = {}
    for steps in LENGTHS:
        workload = Workload(CNN_64.name, CNN_64.overrides, steps)
        program = programs.seedbed("strict", workload, "determinism=strict")
        found[steps] = [
            timing.run(program, folder / f"{steps}_{number}", Turns.warm_up_steps)
            for number in range(rounds)
        ]
    return found


def first_steps(data: Path, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Return each program's seconds from the shell to the end of the first step, each alone."""
    one_step = Workload(CNN_64.name, CNN_64.overrides, 1)
    others = [programs.bare(programs.BARE, one_step, data), *programs.baselines(one_step, data)]
    others = [other for other in others if other.name in _ONE_OF_EACH_KIND]
    found: dict[str, list[float]] = {OURS: [], **{other.name: [] for other in others}}
    for number in range(rounds):
        found[OURS].append(_seconds_to_first_step(folder / f"{number}"))
        for other in others:
            measured = timing.run(other, folder / f"{number} {other.name}")
            found[other.name].append(measured.first_step_seconds)
    return found


def _seconds_to_first_step(folder: Path) -> float:
    """Run `train.py` for a step; return the time from the shell until its stages are on disk."""
    program = programs.train_py("train.py", "trainer.max_steps=1", "trainer.log_every_steps=1")
    started = time.time()
    timing.run(program, folder)
    return (folder / "run" / "fingerprints.csv").stat().st_mtime - started


def measure_ceiling(workload: Workload, folder: Path) -> dict[str, float]:
    """Return a step's operations and the machine's rate."""
    return dict(timing.run(programs.ceiling(workload), folder).found)


def time_to_accuracy(
    makers: Mapping[str, Callable[[int, int], Program]], rounds: int, folder: Path, log: Log
) -> dict[str, list[dict[str, Any]]]:
    """Train for 1, 2, ... epochs until the median test accuracy has reached all of ACCURACIES.

    The programs take turns, seed by seed, until each has.

    Args:
        makers: of each program, from epochs and a seed.

    Returns:
        for each program a row for each number of epochs: its test accuracies and seconds, a number
        for each seed.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in makers}
    missing = dict(makers)
    for epochs in range(1, MOST_EPOCHS + 1):
        rows: dict[str, dict[str, Any]] = {
            name: {"epochs": epochs, "accuracy": [], "seconds": []} for name in missing
        }
        for seed in range(rounds):
            for name, make in missing.items():
                accuracy, seconds = _trained(make(epochs, seed), folder)
                rows[name]["accuracy"].append(accuracy)
                rows[name]["seconds"].append(seconds)
        for name, row in rows.items():
            found[name].append(row)
            log(f"{name}, {epochs} epochs: {row['accuracy']}, {row['seconds']} s")
            if median(row["accuracy"]) >= max(ACCURACIES):
                del missing[name]
    return found


def _trained(program: Program, folder: Path) -> tuple[float, float]:
    """Run a program to its end; return its test accuracy and the seconds it took."""
    measured = timing.run(program, folder)
    accuracy = measured.found.get("test_accuracy") or _accuracy(folder / "run")
    shutil.rmtree(folder)
    return accuracy, measured.seconds


def accuracy_programs(mnist: Path) -> dict[str, Callable[[int, int], Program]]:
    """Return the programs that train on all of MNIST, each for epochs and a seed."""

    def ours(epochs: int, seed: int) -> Program:
        words = ("data=mnist", f"data.root={mnist}", f"trainer.max_epochs={epochs}", f"seed={seed}")
        return programs.train_py("strict", "determinism=strict", *words)

    def theirs(name: str, script: str) -> Callable[[int, int], Program]:
        return lambda epochs, seed: programs.baseline(
            name, script, CNN_64, mnist, workers=0, progress_bar=True, steps=None, epochs=epochs,
            seed=seed,
        )  # fmt: skip

    found = {"strict": ours, programs.PLAIN: theirs(programs.PLAIN, programs.PLAIN_SCRIPT)}
    if programs.has_lightning():
        found[programs.LIGHTNING] = theirs(programs.LIGHTNING, programs.LIGHTNING_SCRIPT)
    return found


def _accuracy(run: Path) -> float:
    return float(record.read_summary(run)["metrics"]["test_accuracy"])
