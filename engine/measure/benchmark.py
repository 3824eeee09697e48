"""Measure Seedbed beside a bare loop and beside baselines, and write docs/benchmarks.md.

usage: python engine/measure/benchmark.py [--rounds N] [--mnist FOLDER] [--out FOLDER] [--quick]
       python engine/measure/benchmark.py --only WORD [--rounds N]

example:
    python engine/measure/benchmark.py                       all but the time to an accuracy
    python engine/measure/benchmark.py --mnist data          that too: FOLDER/MNIST/raw holds MNIST
    python engine/measure/benchmark.py --only samples        print one workload's table
    python engine/measure/benchmark.py --quick --out trial   does it work? takes seconds, and says
    little

Programs take turns; up to 20 of them are in memory at a time, about 0.6 GB each. Leave the machine
alone meanwhile. Lightning is measured where it is installed: pip install -r requirements-bench.txt

exit status: 0 measured, 2 it cannot be measured
"""

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import benchmark_plot
import benchmark_programs as programs
import benchmark_report as report
import benchmark_sections as sections
import benchmark_targets
import invariance_runs
import timing
from benchmark_report import Results

from seedbed import compare, project
from seedbed.config import options
from seedbed.errors import InputError, exit_status

PAGE = """# How fast

Measured by `{command}` on {date}, on {environment}.

Every program is a process of its own. In a round (of {rounds}) all programs of a table are started,
do {warm_up} steps each, and then take {turns} turns of {seconds} seconds, in random order; while
one trains, the others are stopped. So a ratio is that of two programs in the same minutes; given
are the median and the range over the rounds. What counts is steps that lie within a turn. There is
no validation in them; logging and everything else is in the time of a step, of Seedbed's and
Lightning's also checkpoints (every 200 steps, every epoch). Memory is the most that a process held,
over that of the bare loop. Raw numbers: `benchmarks.json`.

The programs:

- **bare loop** (`engine/measure/baselines/bare.py`): tensors in memory, same model, loss,
clipping, optimizer,
  batch size and threads, eager, in PyTorch's own memory order (NCHW), as most people write it. It
  loads nothing, **augments nothing**, logs nothing and keeps no record. "channels-last" is the same
  with model and images in the order (N, H, W, C); "bfloat16", here and below, is autocast: the only
  rows that are not of float32.
- **Seedbed** under its presets. It shifts and rotates every image, logs, and writes the record.
  `strict` and `seeded` hash every step (fingerprints) unless the name says otherwise; "no
  augmentation" is the same work on images as the bare loop does.
- **plain PyTorch loop** (`engine/measure/baselines/plain.py`): torchvision's MNIST with its
transforms, among
  them the same shift and rotation, and a `DataLoader`.
- **Lightning** (`engine/measure/baselines/lightning_loop.py`): the same data, with
  ModelCheckpoint, LearningRateMonitor, CSVLogger and the progress bar.

Seedbed's own digits are loaded, shifted and rotated a batch at a time. In the section
"{samples}" it loads what the plain loop does instead, with the same transforms, a sample at a time,
as most data sets do. Before each sample it seeds the generators of `random`, NumPy and torch: the
row "generators not seeded", whose augmentation is not reproducible, shows what that costs.

## What is asked for

{targets}

![Speed beside the bare loop, which augments nothing](benchmarks.png)

{workloads}

## What each setting of strict costs

Strict, without one thing at a time. A 1.05 says that a step is 5 % faster without it.

{settings}

## torch.compile

Pays for itself once the time saved in the steps exceeds the later first step (Seedbed's is that of
the training process, which `train.py` starts when it has composed the configuration).

{compiled}

## What the machine could do at best

The model's floating-point operations (`torch.utils.flop_counter`, forward and backward) over the
fastest rate of a 2048 x 2048 float32 matrix product with as many threads.

{ceilings}

## From the shell to the first step

Until the first step's fingerprints are on disk (Seedbed, from `python train.py`), or until its end.

{first_steps}

## Cost against the number of steps

`strict` with all that it does by default; a cost that accumulates would show in the last rows.

{growth}

## Time to an accuracy on all of MNIST

From the shell to the end of the program, which evaluates on the official test set: the fewest
epochs, each with a schedule of its own, whose median over the seeds (one a round, at most three)
reaches the accuracy. Seedbed keeps 5,000 of the 60,000 digits for validation after each epoch; the
others train on all of them and do not validate.

{accuracies}

{kept}"""
NOT_MEASURED = "Not measured: {reason}."


def main() -> int:
    """Measure, print and write."""
    arguments = parse()
    if arguments.rounds < 1:
        raise InputError(f"--rounds: expected an integer >= 1, got {arguments.rounds}; try 3")
    mnist = arguments.mnist
    if mnist is not None and not (mnist / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").exists():
        raise InputError(
            f"--mnist: expected a folder that holds MNIST/raw, got {mnist}; make one by "
            f"python train.py data=mnist data.root={mnist} trainer.max_steps=1"
        )
    with tempfile.TemporaryDirectory(prefix="seedbed-benchmark-") as temporary:
        folder = Path(temporary)
        circumstances = describe_machine(folder / "machine")
        if arguments.only is not None:
            print_some(arguments, folder, circumstances)
            return 0
        results = measure(arguments, folder)
    write(arguments, results, circumstances)
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="(default: 3)")
    parser.add_argument("--mnist", metavar="FOLDER", type=Path, help="holds MNIST/raw")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        default=project.root() / "docs",
        help="where benchmarks.md, .png and .json go (default: docs)",
    )
    parser.add_argument(
        "--only", metavar="WORD", help="print the workloads whose names hold it, write nothing"
    )
    parser.add_argument("--quick", action="store_true", help="one round of two programs")
    return parser.parse_args()


def describe_machine(folder: Path) -> str:
    """Say what runs run on; the first run also brings what is read into the disk's cache."""
    workload = programs.Workload("a trial", (), 2)
    timing.run(programs.seedbed("strict", workload, "determinism=strict"), folder)
    return invariance_runs.circumstances(compare.read(folder / "run"))


def measure(arguments: argparse.Namespace, folder: Path) -> Results:
    """Measure everything that was asked for."""
    data = programs.write_digits(folder / "digits")
    count, results = arguments.rounds, Results()
    if arguments.quick:
        section = sections.quick(data)
        results.workloads = [(section, sections.measure(section, 1, folder / "runs", log))]
        return results
    for found, chosen in (
        (results.workloads, sections.workloads(data)),
        (results.knobs, sections.knobs()),
        (results.compiled, [sections.compiled(data)]),
    ):
        for section in chosen:
            found.append((section, sections.measure(section, count, folder / "runs", log)))
    for workload in sections.WORKLOADS:
        results.ceilings[workload.name] = sections.measure_ceiling(workload, folder / workload.name)
    results.first_step_seconds = sections.first_steps(data, count, folder / "first")
    results.growth = sections.measure_growth(min(count, 3), folder / "growth")
    if arguments.mnist is not None:
        makers = sections.accuracy_programs(arguments.mnist.resolve())
        results.accuracies = sections.time_to_accuracy(
            makers, min(count, 3), folder / "accuracy", log
        )
    return results


def print_some(arguments: argparse.Namespace, folder: Path, circumstances: str) -> None:
    """Measure and print the tables of some workloads.

    Raises:
        InputError: no name of a workload holds the word.
    """
    found = list(sections.workloads(programs.write_digits(folder / "digits")))
    chosen = [section for section in found if arguments.only in section.title]
    if not chosen:
        titles = "; ".join(section.title for section in found)
        raise InputError(f"--only: expected a part of {titles}, got {arguments.only}; name one")
    print(circumstances)
    for section in chosen:
        measured = sections.measure(section, arguments.rounds, folder / "runs", log)
        print(f"\n### {section.title}\n\n{report.speeds(section, measured)}", flush=True)


def log(text: str) -> None:
    """Print progress, apart from what was measured."""
    print(text, file=sys.stderr, flush=True)


def write(arguments: argparse.Namespace, results: Results, circumstances: str) -> None:
    """Write the page, its picture and the raw numbers, and print the page's tables."""
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    facts = {
        "command": " ".join(["python engine/measure/benchmark.py", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "environment": circumstances,
    }
    turns = results.workloads[0][0].turns
    page = PAGE.format(
        **facts,
        samples=programs.SAMPLES,
        rounds=1 if arguments.quick else arguments.rounds,
        warm_up=turns.warm_up_steps,
        turns=turns.count,
        seconds=turns.seconds,
        targets=benchmark_targets.targets(results),
        workloads=in_parts(results.workloads, report.speeds),
        settings=in_parts(results.knobs, report.knobs),
        compiled=in_parts(results.compiled, report.starts),
        ceilings=report.ceilings(results) if results.ceilings else not_quick(),
        first_steps=report.first_steps(results) if results.first_step_seconds else not_quick(),
        growth=report.growth(results) if results.growth else not_quick(),
        accuracies=report.accuracies(results)
        if results.accuracies
        else NOT_MEASURED.format(reason="`--mnist` was not given"),
        kept=invariance_runs.kept_part(out / "benchmarks.md"),
    )
    (out / "benchmarks.md").write_text(page)
    numbers = report.numbers(results)
    (out / "benchmarks.json").write_text(json.dumps(facts | numbers, indent=1) + "\n")
    benchmark_plot.draw(numbers["workloads"], out / "benchmarks.png")
    print(page)


def in_parts(
    measured: Sequence[tuple[sections.Section, list[timing.Round]]],
    describe: Callable[[sections.Section, Sequence[timing.Round]], str],
) -> str:
    """Return a table for each section, below its name."""
    parts = [f"### {section.title}\n\n{describe(section, each)}" for section, each in measured]
    return "\n\n".join(parts) or not_quick()


def not_quick() -> str:
    """Say why a quick run leaves something out."""
    return NOT_MEASURED.format(reason="this was a quick run")


if __name__ == "__main__":
    sys.exit(exit_status(main))
