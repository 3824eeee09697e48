"""Measure Seedbed's speed and memory over a raw loop and Lightning; for docs/measured.md.

usage: python engine/measure/benchmark.py [--rounds N] [--only WORD]

  --rounds N    of processes (default: 3)
  --only WORD   print the tables whose titles have it, and write none

example:
    python engine/measure/benchmark.py                     everything, about fifteen minutes
    python engine/measure/benchmark.py --only samples      print one table

Programs take turns; up to ten of them are in memory at a time, about 0.6 GB each. Leave the machine
alone meanwhile. Lightning is measured where it is installed.

exit status: 0 measured, 2 it cannot be measured
"""

import argparse
import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import page
import timing
from omegaconf import OmegaConf
from project.data import mnist5k
from timing import Measured, Program

from seedbed import compare, launch, project
from seedbed.config import compose, options
from seedbed.errors import exit_status

BASELINES = Path(__file__).parent / "baselines"
MANY = 10**7  # more steps than anybody waits for
RAW, RAW_ORDER = "raw loop", "raw loop, channels-last"
PLAIN, LIGHTNING = "plain loop", "Lightning"
NO_AUGMENTATION = "data.augment=null"  # as the raw loop
_AFFINE = (
    "{_target_: torchvision.transforms.RandomAffine, degrees: 10, "
    "translate: [0.0714, 0.0714], interpolation: 2}"
)
# torchvision's MNIST, loaded a sample at a time with its own transforms: what people write.
SAMPLES = (
    "data.loading_threads=1",
    *(f"~data.train.{key}" for key in ("split", "seed", "augment")),
    "data.train._target_=torchvision.datasets.MNIST",
    "+data.train.train=true",
    "+data.train.transform._target_=torchvision.transforms.Compose",
    f"+data.train.transform.transforms=[{_AFFINE}, {{_target_: torchvision.transforms.ToTensor}}, "
    "{_target_: torchvision.transforms.Normalize, mean: [0.1307], std: [0.3081]}]",
)


def main() -> int:
    """Measure, print and write."""
    arguments = parse()
    tables: list[str] = []
    with tempfile.TemporaryDirectory(prefix="seedbed-benchmark-") as temporary:
        folder = Path(temporary)
        subprocess.run(shell("trainer.max_steps=2", folder=folder / "first"), check=True)
        first = compare.read(folder / "first")
        for title, programs in sections(write_digits(folder / "digits")).items():
            if arguments.only in title:
                rounds = timing.measure(programs, arguments.rounds, folder / title)
                tables.append(f"### {title}\n\n{table(programs, rounds)}")
                print(tables[-1], flush=True)
        if not arguments.only:
            tables.append(first_step(arguments.rounds, folder))
            print(tables[-1], flush=True)
    if not arguments.only:
        page.write_section("benchmark", tables, first)
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.Parser(__doc__).add("--rounds", type=int, default=3).add("--only", default="")
    return parser.parse_args()


def sections(data: Path) -> dict[str, list[Program]]:
    """Return the programs of each table; the first of each is what the others are compared with."""
    lstm = ("experiment=adding_lstm",)
    samples = (*SAMPLES, f"+data.train.root={data}")
    workers = ("determinism=strict", "data.num_workers=2", *samples)
    return {
        "CNN, batch 64": [
            baseline(RAW_ORDER, "raw.py", data, channels_last=True),
            baseline(RAW, "raw.py", data),
            seedbed("strict", "determinism=strict", NO_AUGMENTATION),
            seedbed("fast", "determinism=fast", NO_AUGMENTATION),
            seedbed("strict, augmented", "determinism=strict"),
            seedbed("fast, augmented", "determinism=fast"),
        ],
        "LSTM, batch 64": [
            baseline(RAW, "raw.py", data, *lstm),
            seedbed("strict", "determinism=strict", *lstm),
            seedbed("fast", "determinism=fast", *lstm),
        ],
        "CNN, torchvision's samples": [
            baseline(PLAIN, "samples.py", data, workers=0),
            seedbed("strict", "determinism=strict", *samples),
            seedbed("fast", "determinism=fast", *samples),
            *lightning(data, 0),
        ],
        "CNN, torchvision's samples, 2 loader workers": [
            baseline(PLAIN, "samples.py", data, workers=2),
            seedbed("strict", *workers),
            *lightning(data, 2),
        ],
    }


def seedbed(name: str, *overrides: str) -> Program:
    """Return Seedbed as a program: the training process that `train.py` starts."""
    words = (
        f"trainer.max_steps={MANY}", f"trainer.max_epochs={MANY}", "trainer.device=cpu",
        "trainer.validate_every_epochs=0",
    )  # fmt: skip
    settings = compose.configuration(*words, *overrides)

    def prepare(folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        launch.create_run_folder(folder / "run", settings)
        script = str(BASELINES / "seedbed_steps.py")
        command = (sys.executable, script, str(folder / timing.STEPS), str(folder / "run"))
        return command, launch.training_environment(settings)

    return Program(name, prepare)


def baseline(name: str, script: str, data: Path, *overrides: str, **more: Any) -> Program:
    """Return a program of baselines/ with model, optimizer, batches and threads of overrides."""
    plain: Any = OmegaConf.to_container(compose.configuration(*overrides))
    keys = ("_target_", "name", "accepts")
    arguments = {
        "workload": "cnn" if plain["data"]["kind"] == "image" else "lstm",
        "model": {key: value for key, value in plain["model"].items() if key not in keys},
        "optimizer": {key: value for key, value in plain["optimizer"].items() if key not in keys},
        "batch_size": plain["data"]["batch_size"],
        "threads": plain["determinism"]["threads"],
        "data": str(data),
        **more,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments["threads"])}

    def prepare(folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        text = json.dumps({**arguments, "out": str(folder)})
        return (sys.executable, str(BASELINES / script), text), environment

    return Program(name, prepare)


def lightning(data: Path, workers: int) -> list[Program]:
    """Return Lightning's program, where it is installed."""
    if importlib.util.find_spec("lightning") is None:
        return []
    return [baseline(LIGHTNING, "lightning_samples.py", data, workers=workers)]


def write_digits(folder: Path) -> Path:
    """Write mnist5k as the raw files that torchvision's MNIST reads; return their root."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images, labels = mnist5k.read()
    for name in ("train", "t10k"):
        for kind, array in (("images-idx3", images[:4000]), ("labels-idx1", labels[:4000])):
            header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
            (raw / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder


def table(programs: Sequence[Program], rounds: Sequence[Mapping[str, Measured]]) -> str:
    """Return the Markdown table of a section."""
    base = programs[0].name
    lines = ["| | ms a step | speed | memory |", "| --- | --- | --- | --- |"]
    for name in (program.name for program in programs):
        milliseconds = [1000 * r[name].step_seconds for r in rounds]
        speed = [r[base].step_seconds / r[name].step_seconds for r in rounds]
        memory = [r[name].peak_bytes / r[base].peak_bytes for r in rounds]
        cells = (timing.ratio(milliseconds), timing.ratio(speed), timing.ratio(memory))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shell(*overrides: str, folder: Path) -> list[str]:
    """Return the command that a person types."""
    script = str(project.root() / "train.py")
    return [sys.executable, script, f"hydra.run.dir={folder}", *overrides]


def first_step(rounds: int, folder: Path) -> str:
    """Measure the seconds from the shell to the first step's fingerprints on disk."""
    seconds = []
    for number in range(rounds + 2):
        run = folder / f"start_{number}"
        command = shell("trainer.log_every_steps=1", folder=run)
        seconds.append(timing.seconds_until(command, partial(has_row, run / "fingerprints.csv")))
    return f"### From the shell to the first step\n\n`python train.py`: {timing.ratio(seconds)} s"


def has_row(path: Path) -> bool:
    """Return whether a table has a row below its header."""
    return path.exists() and path.read_text().count("\n") > 1


if __name__ == "__main__":
    sys.exit(exit_status(main))
