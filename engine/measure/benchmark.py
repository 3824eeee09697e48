"""Measure Seedbed's speed and memory against a raw loop and Lightning, for docs/measured.md.

usage: python engine/measure/benchmark.py [--rounds N] [--only WORD] [--gpu cuda|cpu]

  --rounds N    number of rounds, each with new processes (default: 3)
  --only WORD   print the tables whose titles contain it, and write none
  --gpu DEVICE  the gates of engine/tests/gpu and speed on a GPU instead; `cpu` is for a trial

It takes about fifteen minutes. Programs take turns; up to ten of them are in memory at a time,
about 0.6 GB each. Keep the machine free of other work. Lightning is measured if it is installed.

exit status: 0 measured, 1 a gate failed, 2 it cannot be measured
"""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import timing
import ways
from omegaconf import OmegaConf
from project.data import mnist5k
from timing import Measured, Program

from seedbed import compare, launch
from seedbed.config import compose, options
from seedbed.errors import InputError, exit_status

BASELINES = Path(__file__).parent / "baselines"
MANY = 10**7  # more steps than a measurement takes
RAW, PLAIN = "raw loop", "plain loop"
NO_AUGMENTATION = "data.augment=null"  # as in the raw loop
# torchvision's MNIST, loaded sample by sample with its own transforms, as in usual user code.
SAMPLES = (
    "data.loading_threads=1",
    *(f"~data.train.{key}" for key in ("split", "seed", "augment")),
    "data.train._target_=torchvision.datasets.MNIST",
    "+data.train.train=true",
    "+data.train.transform._target_=torchvision.transforms.Compose",
    "+data.train.transform.transforms=[{_target_: torchvision.transforms.RandomAffine, degrees: 10,"
    " translate: [0.0714, 0.0714], interpolation: 2}, {_target_: torchvision.transforms.ToTensor},"
    " {_target_: torchvision.transforms.Normalize, mean: [0.1307], std: [0.3081]}]",
)
# Classes of engine/tests/gpu; tests that need CUDA are skipped on other devices.
GATES = ("FixedEnvironment", "Equivalence", "RestartReplay", "Cuda")


def main() -> int:
    """Measure and print; update docs/measured.md unless --only is given."""
    parser = options.Parser(__doc__).add("--rounds", type=int, default=3).add("--only", default="")
    arguments = parser.add("--gpu", choices=("cuda", "cpu")).parse_args()
    parts = []
    with tempfile.TemporaryDirectory(prefix="seedbed-benchmark-") as temporary:
        folder = Path(temporary)
        device = f"trainer.device={arguments.gpu or 'cpu'}"
        first = compare.read(ways.plainly(folder / "first", ["trainer.max_steps=2", device]))
        for title, make in tables(arguments.gpu, arguments.rounds, folder).items():
            if arguments.only.lower() in title.lower():
                parts.append(f"### {title}\n\n{make()}")
                print(parts[-1], flush=True)
    if not arguments.only:
        ways.write_section("gpu" if arguments.gpu else "benchmark", parts, first)
    return int(any("FAILED" in part for part in parts))


def tables(gpu: str | None, rounds: int, folder: Path) -> dict[str, Callable[[], str]]:
    """Return the functions that make the tables, by title."""
    digits = write_digits(folder / "digits")

    def measured(title: str, programs: Sequence[Program], *how: Any) -> str:
        return table(programs, timing.measure(programs, folder / title, *how))

    if gpu is None:
        found = {x: partial(measured, x, y, rounds) for x, y in sections(digits).items()}
        starts = [folder / f"start_{number}" for number in range(rounds + 2)]
        return {**found, "From the shell to the first step": partial(time_to_start, starts)}
    # Few, long turns: a GPU goes on with queued work after its process is stopped.
    found = {x: partial(measured, x, y, 1, 3, 3.0) for x, y in sections_of_gpu(gpu, digits).items()}
    return {"Gates": partial(gates, gpu), **found}


def gates(device: str) -> str:
    """Run the tests of the gates; return a Markdown table of pytest's results."""
    lines = ["| gate | result |", "| --- | --- |"]
    environment = {**os.environ, "SEEDBED_GPU_TESTS_DEVICE": device}
    engine, file = Path(__file__).resolve().parents[1], "tests/gpu/test_gpu.py"
    for name in GATES:
        words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"{file}::Test{name}"]
        done = subprocess.run(words, cwd=engine, env=environment, capture_output=True, text=True)
        *_, last = ["no output", *done.stdout.strip().splitlines()]
        passed = done.returncode == 0 and (" passed" in last or name == "Cuda")
        lines.append(f"| {name} | {'' if passed else 'FAILED: '}{last} |")
    return "\n".join(lines)


def sections_of_gpu(device: str, data: Path) -> dict[str, list[Program]]:
    """Return the programs of each table: a raw loop on the same device, strict and fast."""
    tables = {}
    kinds = ((64, "float32"), (1024, "float32"), (1024, "bfloat16"), (1024, "float32, compiled"))
    for size, kind in kinds:
        precision, compiled = kind.partition(",")[0], "compiled" in kind
        words = (
            f"trainer.device={device}", f"data.batch_size={size}", f"trainer.precision={precision}",
            f"trainer.compile={str(compiled).lower()}", NO_AUGMENTATION,
        )  # fmt: skip
        more = {"device": device, "precision": precision, "compile": compiled}
        tables[f"CNN, batch {size}, {kind}"] = [
            baseline(RAW, "loop.py", data, f"data.batch_size={size}", **more),
            seedbed("strict", *words),
            seedbed("strict, fingerprints every 100 steps", *words, "fingerprint.every_steps=100"),
            seedbed("fast", "determinism=fast", *words),
        ]
    return tables


def sections(data: Path) -> dict[str, list[Program]]:
    """Return the programs of each table; the first one is the baseline of the others."""
    lstm = ("experiment=adding_lstm",)
    samples = (*SAMPLES, f"+data.train.root={data}")
    workers = ("determinism=strict", "data.num_workers=2", *samples)
    script, there = "lightning_samples.py", importlib.util.find_spec("lightning")
    lightning = [baseline("Lightning", script, data, workers=n) for n in (0, 2)] if there else []
    return {
        "CNN, batch 64": [
            baseline("raw loop, channels-last", "loop.py", data, channels_last=True),
            baseline(RAW, "loop.py", data),
            seedbed("strict", "determinism=strict", NO_AUGMENTATION),
            seedbed("fast", "determinism=fast", NO_AUGMENTATION),
            seedbed("strict, augmented", "determinism=strict"),
            seedbed("fast, augmented", "determinism=fast"),
        ],
        "LSTM, batch 64": [
            baseline(RAW, "loop.py", data, *lstm),
            seedbed("strict", "determinism=strict", *lstm),
            seedbed("fast", "determinism=fast", *lstm),
        ],
        "CNN, torchvision's samples": [
            baseline(PLAIN, "loop.py", data, workers=0),
            seedbed("strict", "determinism=strict", *samples),
            seedbed("fast", "determinism=fast", *samples),
            *lightning[:1],
        ],
        "CNN, torchvision's samples, 2 loader workers": [
            baseline(PLAIN, "loop.py", data, workers=2),
            seedbed("strict", *workers),
            *lightning[1:],
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
    """Return a program of baselines/ with the overrides' model, optimizer, batches and threads."""
    plain: Any = OmegaConf.to_container(compose.configuration(*overrides))
    for section in ("model", "optimizer"):
        for key in ("_target_", "name", "accepts"):
            plain[section].pop(key, None)
    arguments = {
        "workload": "cnn" if plain["data"]["kind"] == "image" else "lstm",
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
    base = programs[0].name
    lines = ["| | ms a step | speed | memory |", "| --- | --- | --- | --- |"]
    for name in (program.name for program in programs):
        milliseconds = [1000 * r[name].step_seconds for r in rounds]
        speed = [r[base].step_seconds / r[name].step_seconds for r in rounds]
        memory = [r[name].peak_bytes / r[base].peak_bytes for r in rounds]
        cells = (timing.ratio(milliseconds), timing.ratio(speed), timing.ratio(memory))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def time_to_start(folders: Sequence[Path]) -> str:
    """Return, as text, the seconds from the shell to the first step's fingerprints on disk."""
    found = []
    for run in folders:
        started, table = time.monotonic(), run / "fingerprints.csv"
        with ways.started(ways.command(run, ["trainer.log_every_steps=1"])) as process:
            while not table.exists() or table.read_text().count("\n") < 2:
                if process.poll() not in (None, 0):
                    raise InputError(f"train.py: expected it to train, got {process.returncode}")
                time.sleep(0.005)
            found.append(time.monotonic() - started)
    return f"`python train.py`: {timing.ratio(found)} s"


if __name__ == "__main__":
    sys.exit(exit_status(main))
