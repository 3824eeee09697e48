"""Measure Seedbed's speed and memory against a raw loop and Lightning, for
docs/measured.md.

usage: python engine/measure/benchmark.py [--rounds N] [--only WORD]
       python engine/measure/benchmark.py --gpu cuda|cpu [--part gates|speed] [--only
       WORD]

  --rounds N    number of rounds, each with new processes (default: 3)
  --only WORD   print the tables whose titles contain it, and write none
  --gpu DEVICE  a GPU's report instead, one part in at most 270 s; `cpu` is a trial with
  tiny models --part PART   gates (the default): what must not change a bit; speed: what
  the settings cost

It takes about fifteen minutes. Programs take turns; up to ten of them are in memory at
a time, about 0.6 GB each. Keep the machine free of other work. Lightning is measured if
it is installed.

exit status: 0 measured, 1 a gate failed or a table of a GPU, 2 it cannot be measured
"""

import importlib.util
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gpu
import timing
import ways
from programs import baseline, seedbed, table
from timing import Program

from seedbed import compare
from seedbed.config import options
from seedbed.errors import InputError, exit_on_errors

RAW, PLAIN = "raw loop", "plain loop"
NO_AUGMENTATION = "data.augment=null"  # as in the raw loop
# torchvision's MNIST, loaded sample by sample with its own transforms, as in usual user
# code.
SAMPLES = (
    "data.loading_threads=1",
    "~data.dataset",
    "~data.train.augment",
    "+data.train._target_=torchvision.datasets.MNIST",
    "+data.train.train=true",
    "+data.train.transform._target_=torchvision.transforms.Compose",
    (
        "+data.train.transform.transforms=[{_target_:"
        " torchvision.transforms.RandomAffine, degrees: 10, translate: [0.0714,"
        " 0.0714], interpolation: 2}, {_target_: torchvision.transforms.ToTensor},"
        " {_target_: torchvision.transforms.Normalize, mean: [0.1307], std: [0.3081]}]"
    ),
    *(
        f"+data.{split}={{_target_: project.data.mnist5k.MNIST5k, split: {split},"
        " seed: 0}"
        for split in ("validation", "test")
    ),
)


def main() -> int:
    """Measure and print; update docs/measured.md unless --only is given."""
    parser = (
        options.Parser(__doc__)
        .add("--rounds", type=int, default=3)
        .add("--only", default="")
    )
    parser.add("--gpu", choices=("cuda", "cpu")).add(
        "--part", choices=("gates", "speed")
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seedbed-benchmark-") as temporary:
        folder = Path(temporary)
        if arguments.gpu:
            return gpu.report(
                arguments.gpu, arguments.part or "gates", folder, arguments.only
            )
        parts = []
        first = ways.plainly(
            folder / "first", ["trainer.max_steps=2", "trainer.device=cpu"]
        )
        for title, make in tables(arguments.rounds, folder).items():
            if arguments.only.lower() in title.lower():
                parts.append(f"### {title}\n\n{make()}")
                print(parts[-1], flush=True)
        if not arguments.only:
            environment = compare.read(first).origin.environment
            ways.write_section("benchmark", parts, environment)
    return 0


def tables(rounds: int, folder: Path) -> dict[str, Callable[[], str]]:
    """Return the functions that make the tables, by title."""

    def measured(title: str, programs: Sequence[Program]) -> str:
        return table(programs, timing.measure(programs, folder / title, rounds))

    digits = write_digits(folder / "digits")
    found = {
        title: partial(measured, title, each)
        for title, each in sections(digits).items()
    }
    starts = [folder / f"start_{number}" for number in range(rounds + 2)]
    return {**found, "From the shell to the first step": partial(time_to_start, starts)}


def sections(data: Path) -> dict[str, list[Program]]:
    """Return the programs of each table; the first one is the baseline of the
    others."""
    lstm = ("experiment=adding_lstm",)
    samples = (*SAMPLES, f"+data.train.root={data}")
    workers = ("determinism=strict", "data.num_workers=2", *samples)
    dense = ("data=points", "model=dense")
    own = [f"data.train._target_=stored.{kind}" for kind in ("points", "Points")]
    no_seed = ("~data.train.split", "~data.train.seed")
    in_memory, one_by_one = ((*dense, *no_seed, target) for target in own)
    script, there = "lightning_samples.py", importlib.util.find_spec("lightning")
    lightning = (
        [baseline("Lightning", script, data, workers=n) for n in (0, 2)]
        if there
        else []
    )
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
        "Two linear layers, batch 32, a TensorDataset": [
            baseline(RAW, "loop.py", data, *dense),
            seedbed("strict", "determinism=strict", *in_memory),
            seedbed("fast", "determinism=fast", *in_memory),
            seedbed(
                "strict, a data set of your own", "determinism=strict", *one_by_one
            ),
            seedbed("fast, a data set of your own", "determinism=fast", *one_by_one),
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


def write_digits(folder: Path) -> Path:
    """Write mnist5k as the raw files that torchvision's MNIST reads; return their
    root."""
    from project.data import mnist5k

    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images, labels = mnist5k.read()
    for name in ("train", "t10k"):
        for kind, array in (
            ("images-idx3", images[:4000]),
            ("labels-idx1", labels[:4000]),
        ):
            header = struct.pack(
                f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape
            )
            (raw / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder


def time_to_start(folders: Sequence[Path]) -> str:
    """Return, as text, the seconds from the shell to the first step's fingerprints on
    disk."""
    found = []
    for run in folders:
        started, table = time.monotonic(), run / "fingerprints.csv"
        with ways.started(ways.command(run, ["trainer.log_every_steps=1"])) as process:
            while not table.exists() or table.read_text().count("\n") < 2:
                if process.poll() not in (None, 0):
                    raise InputError(
                        f"train.py: expected it to train, got {process.returncode}"
                    )
                time.sleep(0.005)
            found.append(time.monotonic() - started)
    return f"`python train.py`: {timing.ratio(found)} s"


if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(main())
