"""Measure which changes around a run change no bit of it, for docs/measured.md.

usage: python engine/measure/guarantees.py [--only WORD]

The whole table takes about half an hour; `--only worker` prints the rows with that
word, and writes none. A row is a change and a way to train with it (`ways.py`); a
column is an experiment; a cell is the result of `compare` for that run and the
unmodified run of the experiment.

exit status: 0 every promised cell is `same`, 1 some are not, 2 it cannot be measured
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import ways

from seedbed import compare
from seedbed.compare.stages import stage_of
from seedbed.config import options
from seedbed.errors import InputError, exit_on_errors
from seedbed.names import SPLITS

SAME = "same"

# Trains with overrides in a folder that does not exist yet; returns the run folder.
Train = Callable[[Path, Sequence[str]], Path]


class Row(NamedTuple):
    """A change: in the configuration, or in the way of training."""

    change: str
    overrides: tuple[str, ...] = ()
    train: Train = ways.plainly


class Part(NamedTuple):
    """Rows to compare with the same unmodified runs."""

    title: str
    overrides: tuple[str, ...]
    rows: tuple[Row, ...]
    is_promised: bool = True  # whether all cells have to be `same`


# Three epochs of 20 steps include several validations, checkpoints and ends of epochs.
_SHORT = ("trainer.max_epochs=3", "trainer.checkpoint_every_steps=20")
_SEQUENCES = (*_SHORT, "data.train.samples=1280", "data.length=50", "model.dropout=0.1")
EXPERIMENTS = {
    "CNN": (*_SHORT, "data.batch_size=200", "model.dropout=0.1"),
    "RNN": ("experiment=adding_rnn", *_SEQUENCES),
    "LSTM": ("experiment=adding_lstm", *_SEQUENCES),
    # Validation and test values of a set that is cut at random and draws for each
    # sample.
    "noisy split": (
        *("data=points", "model=dense", *_SHORT),
        *(f"data.{split}._target_=noisy_split.NoisySplit" for split in SPLITS),
        *(f"data.{split}.samples=1000" for split in SPLITS),
        *(f"~data.{split}.seed" for split in SPLITS),
    ),
}

TWO_WORKERS = "data.num_workers=2"
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
MAY_CHANGE = (
    Row("nothing: the same command again"),
    Row("1 loader worker instead of none", ("data.num_workers=1",)),
    Row("2 loader workers", (TWO_WORKERS,)),
    Row("5 loader workers", ("data.num_workers=5",)),
    Row(
        "2 loader workers, new ones each epoch",
        (TWO_WORKERS, "data.persistent_workers=false"),
    ),
    Row("2 loader workers started by spawn", (TWO_WORKERS, "data.start_method=spawn")),
    Row(
        "2 loader workers started by forkserver",
        (TWO_WORKERS, "data.start_method=forkserver"),
    ),
    Row(
        "8 batches prefetched by each of 2 workers",
        (TWO_WORKERS, "data.prefetch_factor=8"),
    ),
    Row(
        "validation every 3 epochs instead of every one",
        ("trainer.validate_every_epochs=3",),
    ),
    Row("validation only at the end", ("trainer.validate_every_epochs=0",)),
    Row("logging every step", ("trainer.log_every_steps=1",)),
    Row("no logging", ("trainer.log_every_steps=0",)),
    Row("fingerprints every 7 steps", ("fingerprint.every_steps=7",)),
    Row("checkpoints every 7 steps", ("trainer.checkpoint_every_steps=7",)),
    Row("another hash seed outside", train=partial(ways.plainly, PYTHONHASHSEED="42")),
    Row("another hash seed in training", ("determinism.env.PYTHONHASHSEED=42",)),
    Row("another run folder, another current folder", train=ways.elsewhere),
    Row(
        "first in a sweep (Hydra's basic launcher)",
        train=partial(ways.in_a_sweep, seeds="0,1"),
    ),
    Row("second in a sweep", train=partial(ways.in_a_sweep, seeds="1,0")),
    Row(
        "two at a time in a sweep (joblib launcher)",
        train=partial(ways.in_a_sweep, words=JOBLIB),
    ),
    Row("interrupted by SIGTERM, resumed", train=ways.interrupted),
    Row("killed by SIGKILL, resumed", train=ways.killed),
    Row(
        "killed with 2 loader workers, resumed with 3",
        (TWO_WORKERS,),
        partial(ways.killed, changed=("data.num_workers=3",)),
    ),
    *(
        Row(
            f"killed in a {phase} phase, resumed, evaluated by evaluate.py",
            train=partial(ways.killed_in, phase=phase),
        )
        for phase in ("train", "validation", "test")
    ),
    Row("two busy processes per core beside it", train=ways.beside_a_load),
    Row("evaluated again by evaluate.py, with 2 loader workers", train=ways.evaluated),
)


# Compared with 1 process and as many shards. One thread each: 4 processes on 2 cores.
# SIGKILL of one of several is measured by tests/end_to_end/kills.py.
ON = {count: (f"trainer.processes={count}",) for count in (1, 2, 4)}
FOUR_SHARDS = (
    *(Row(f"{count} processes", ON[count]) for count in (2, 4)),
    *(
        Row(
            f"interrupted by SIGTERM on {first}, resumed on {then}",
            ON[first],
            partial(ways.interrupted, changed=ON[then]),
        )
        for first, then in ((4, 1), (4, 2), (1, 4))
    ),
)

# Compared with 1 process that shards nothing. Fused optimizers are refused on a CPU.
SHARDED_ON = {count: (*words, "trainer.sharding=full") for count, words in ON.items()}
NOT_SHARDED = "trainer.sharding=none"
SHARDED = (
    *(Row(f"{count} processes, sharded", SHARDED_ON[count]) for count in (2, 4)),
    Row(
        "killed by SIGKILL on 4, sharded, resumed on 1",
        SHARDED_ON[4],
        partial(ways.killed, changed=(*ON[1], NOT_SHARDED)),
    ),
    Row(
        "killed by SIGKILL on 4, sharded, resumed on 2, sharded",
        SHARDED_ON[4],
        partial(ways.killed, changed=ON[2]),
    ),
    Row(
        "killed by SIGKILL on 1, resumed on 2, sharded",
        ON[1],
        partial(ways.killed, changed=SHARDED_ON[2]),
    ),
)

CHANGES_BITS = (
    Row("another seed", ("seed=1",)),
    Row("another seed for the order alone", ("seeds.order=1",)),
    Row("another batch size", ("data.batch_size=80",)),
    Row("another batch size in evaluation", ("data.eval_batch_size=100",)),
    Row("1 thread", ("determinism.threads=1",)),
    Row("2 threads", ("determinism.threads=2",)),
    Row("4 threads", ("determinism.threads=4",)),
    Row("PyTorch's kernels of AVX2", ("determinism.env.ATEN_CPU_CAPABILITY=avx2",)),
    Row(
        "PyTorch's kernels without AVX",
        ("determinism.env.ATEN_CPU_CAPABILITY=default",),
    ),
    Row("oneDNN's kernels of AVX2", ("determinism.env.ONEDNN_MAX_CPU_ISA=AVX2",)),
    Row("determinism=seeded instead of strict", ("determinism=seeded",)),
    Row("determinism=fast instead of strict", ("determinism=fast",)),
    Row("bfloat16 instead of float32", ("trainer.precision=bfloat16",)),
)


_SHARDED = ("determinism.threads=1", "trainer.shards=4")
_NOT_FUSED = (*_SHARDED, "optimizer.fused=false")
PARTS = (
    Part("On one process", (), MAY_CHANGE),
    Part("On several processes, trainer.shards=4", _SHARDED, FOUR_SHARDS),
    Part("On several processes that share the weights", _NOT_FUSED, SHARDED),
    Part(
        "What belongs to the experiment, and may change bits", (), CHANGES_BITS, False
    ),
)


def main() -> int:
    """Measure and print; update docs/measured.md unless --only is given."""
    arguments = options.Parser(__doc__).add("--only", default="").parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # for noisy_split
    os.environ["PYTHONPATH"] = str(Path(__file__).parent / "baselines")
    word = arguments.only.lower()
    promised: list[list[str]] = []
    tables = []
    with tempfile.TemporaryDirectory(prefix="seedbed-guarantees-") as temporary:
        for number, part in enumerate(PARTS):
            rows = [row for row in part.rows if word in row.change.lower()]
            if not rows:
                continue
            measured = measure(part, rows, Path(temporary, str(number)))
            tables.append(f"### {part.title}\n\n{table(measured)}")
            promised += measured.values() if part.is_promised else []
        if not word:
            base = compare.read(Path(temporary, "0", "base_CNN"))
            ways.write_section("guarantees", tables, base.origin.environment)
    return int(any({*cells} != {SAME} for cells in promised))


def measure(part: Part, rows: Sequence[Row], folder: Path) -> dict[str, list[str]]:
    """Train the unmodified runs of a part, then its rows; print each as soon as it is
    measured."""
    overrides = {name: [*words, *part.overrides] for name, words in EXPERIMENTS.items()}
    bases = {
        name: ways.plainly(folder / f"base_{name}", overrides[name])
        for name in EXPERIMENTS
    }

    def cell(number: int, row: Row, name: str) -> str:
        try:
            run = row.train(
                folder / f"{number}_{name}", [*overrides[name], *row.overrides]
            )
            return verdict(compare.read(bases[name]), compare.read(run))
        except InputError as error:
            return f"failed: {error}"

    measured = {}
    # the cells of a row at the same time
    with ThreadPoolExecutor(len(EXPERIMENTS)) as pool:
        for number, row in enumerate(rows):
            measured[row.change] = list(
                pool.map(partial(cell, number, row), EXPERIMENTS)
            )
            print(f"{row.change}: {' | '.join(measured[row.change])}", flush=True)
    return measured


def verdict(base: compare.Record, other: compare.Record) -> str:
    """Return `same`, or the first step and stage in which two finished runs differ."""
    for run in (base, other):
        if run.summary.get("status") != "finished":
            raise InputError(
                f"{run.name}: expected a finished run, got {run.summary['status']}"
            )
    difference = compare.compare(base, other).difference
    if difference is not None:
        return f"step {difference.step}, {stage_of(difference.stage).name}"
    steps = [run.summary["steps"] for run in (base, other)]
    return SAME if steps[0] == steps[1] else f"{steps[1]} steps instead of {steps[0]}"


def table(rows: Mapping[str, Sequence[str]]) -> str:
    """Return Markdown: a list of the changes without effect, and a table of the
    others."""
    same = [change for change, cells in rows.items() if {*cells} == {SAME}]
    lines = [["", *EXPERIMENTS], ["---"] * (1 + len(EXPERIMENTS))]
    lines += [[change, *cells] for change, cells in rows.items() if change not in same]
    parts = [
        f"`{SAME}` for {', '.join(EXPERIMENTS)}:",
        "\n".join(f"- {x}" for x in same),
    ]
    others = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([*(parts if same else []), *([others] if lines[2:] else [])])


if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(main())
