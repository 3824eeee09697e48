"""Programs to time: Seedbed's training process and raw loops; and the tables of what
they took."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timing
from timing import Measured, Program

from seedbed import launch
from seedbed.config import compose
from seedbed.errors import InputError

BASELINES = Path(__file__).parent / "baselines"
MANY = 10**7  # more steps than a measurement takes


# by the name of the data set
_WORKLOADS = {"mnist5k": "cnn", "mnist": "cnn", "sums": "gpt", "points": "dense"}


def seedbed(name: str, *overrides: str) -> Program:
    """Return Seedbed as a program: the training process that `train.py` starts."""
    words = (
        f"trainer.max_steps={MANY}",
        f"trainer.max_epochs={MANY}",
        "trainer.device=cpu",
        "trainer.validate_every_epochs=0",
    )
    settings = compose.configuration(*words, *overrides)

    def prepare(folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        launch.create_run_folder(folder / "run", settings)
        script = str(BASELINES / "seedbed_steps.py")
        command = (
            sys.executable,
            script,
            str(folder / timing.STEPS),
            str(folder / "run"),
        )
        environment = launch.training_environment(settings)
        # for its clock
        places = [*filter(None, [environment.get("PYTHONPATH")]), str(BASELINES)]
        return command, {**environment, "PYTHONPATH": os.pathsep.join(places)}

    return Program(name, prepare)


def baseline(
    name: str, script: str, data: Path, *overrides: str, **more: Any
) -> Program:
    """Return a program of baselines/ with the overrides' model, optimizer, batches and
    threads."""
    plain = compose.configuration(*overrides).plain
    for section in ("model", "optimizer"):
        for key in ("_target_", "name"):
            plain[section].pop(key, None)
    arguments = {
        "workload": _WORKLOADS.get(plain["data"]["name"], "lstm"),
        **{"model": plain["model"], "optimizer": plain["optimizer"], "data": str(data)},
        "batch_size": plain["data"]["batch_size"],
        "threads": plain["determinism"]["threads"],
        **more,
    }

    def prepare(folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        text = json.dumps({**arguments, "out": str(folder)})
        environment = {**os.environ, "OMP_NUM_THREADS": str(arguments["threads"])}
        return (sys.executable, str(BASELINES / script), text), environment

    return Program(name, prepare)


def table(
    programs: Sequence[Program],
    rounds: Sequence[Mapping[str, Measured]],
    memory: bool = True,
) -> str:
    """Return a Markdown table; speed and memory are relative to the first program."""
    base = programs[0].name
    if any(base not in each for each in rounds):
        raise InputError(f"{base}: expected it to train, got no steps")
    heads = ["", "ms a step", "speed", "memory"][: 4 if memory else 3]
    lines = [
        f"| {' | '.join(heads)} |".replace("|  |", "| |"),
        "| --- " * len(heads) + "|",
    ]
    for name in (program.name for program in programs):
        if any(name not in each for each in rounds):
            lines.append(f"| {name} | failed " + "| " * (len(heads) - 1) + "|")
            continue
        milliseconds = [1000 * r[name].step_seconds for r in rounds]
        speed = [r[base].step_seconds / r[name].step_seconds for r in rounds]
        peaks = [r[name].peak_bytes / r[base].peak_bytes for r in rounds]
        cells = (timing.ratio(milliseconds), timing.ratio(speed), timing.ratio(peaks))
        lines.append(f"| {name} | {' | '.join(cells[: len(heads) - 1])} |")
    return "\n".join(lines)
