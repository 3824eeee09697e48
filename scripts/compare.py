"""Compare two runs: the first step and stage that differ, and what explains it.

usage: python scripts/compare.py RUN_A RUN_B [--explain] [--restore-code] [--out FILE.png]
                                 [--trust PACKAGE] [--online]

example:
    python train.py seed=0 hydra.run.dir=runs/a
    python train.py seed=0 data.num_workers=2 hydra.run.dir=runs/b
    python scripts/compare.py runs/a runs/b
    python scripts/compare.py runs/a runs/b --explain
    python scripts/compare.py runs/a runs/b --explain --restore-code     # their code differs

exit status: 0 the same bits, 1 they differ, 2 they cannot be compared
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from seedbed import compare
from seedbed.compare import Comparison, Difference, Record, causes, checkout, plot, versions
from seedbed.compare.checkout import Tree
from seedbed.compare.stages import stage_of
from seedbed.config import options
from seedbed.errors import InputError, exit_status, printable
from seedbed.record import code

SHOWN_STEPS = 6


def main() -> int:
    """Compare two runs and print what was found."""
    arguments = parse()
    with ExitStack() as stack:
        a, b = (opened(path, stack) for path in (arguments.run_a, arguments.run_b))
        out = arguments.out or Path(plot.file_name(a.record, b.record))
        out = outside(out, arguments.run_a, arguments.run_b)
        result = compare.compare(a.record, b.record)
        plot.draw(a.record, b.record, result, out)
        for line in report(a.record, b.record, result):
            print(printable(line))
        if arguments.explain and result.difference is not None:
            for line in explanation(arguments, a, b, result.difference, stack):
                print(printable(line))
    print(f"\npicture: {out}")
    return 0 if result.difference is None else 1


@dataclass(frozen=True)
class Run:
    """A run to compare: its folder, what it holds, and how to come to its code."""

    folder: Path
    record: Record
    code_of: Callable[[], AbstractContextManager[Tree]]


def opened(path: Path, stack: ExitStack) -> Run:
    """Return the run of a folder, or of a package, which is taken out for as long as the stack."""
    if path.suffix != ".zip":
        held = compare.read(path)
        return Run(path, held, partial(checkout.code_of, path, held.code, True))
    from seedbed.tools import package  # a part that can be deleted

    place = stack.enter_context(tempfile.TemporaryDirectory(prefix="seedbed-compare-"))
    folder, *others = package.unpack(path, Path(place))
    if others:
        raise InputError(
            f"{path}: expected a package of one run, got {len(others) + 1}; pack the run alone"
        )
    held = replace(compare.read(folder), name=str(path))
    return Run(folder, held, partial(package.code_of, folder, held))


def explanation(
    arguments: argparse.Namespace, a: Run, b: Run, difference: Difference, stack: ExitStack
) -> Iterator[str]:
    """Yield the lines of --explain; code of the records is executed only with --restore-code."""
    if not arguments.restore_code and not code.is_same(a.record.code, b.record.code):
        yield from versions.describe(versions.recorded(a.record, b.record))
        yield (
            "\nThe runs had different code. To replay each with its own, which executes the code "
            "of both records: add --restore-code"
        )
        return
    from seedbed.explain import of_runs  # needs torch, and can be deleted

    trees = [checkout.here()] * 2
    if arguments.restore_code:
        trees = [stack.enter_context(run.code_of()) for run in (a, b)]
    runs, records = (a.folder, b.folder), (a.record, b.record)
    yield from of_runs(runs, records, difference, trees, arguments.trust, arguments.online)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("run_a", metavar="RUN_A", type=Path, help="a run folder, or a package")
    parser.add_argument("run_b", metavar="RUN_B", type=Path, help="another one")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="where to draw the picture (default: comparison_A_B.png here, of the runs' names)",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="replay the first step that differs and name the first operation that differs",
    )
    parser.add_argument(
        "--restore-code",
        action="store_true",
        help="for --explain: replay each run with the commit and source.patch of its record, in a "
        "git worktree of its own; this runs code of both records",
    )
    options.add_trust(parser, when="for --explain: ")
    arguments = parser.parse_args()
    if arguments.restore_code and not arguments.explain:
        raise InputError(
            "--restore-code: expected --explain beside it, got it alone; records are compared "
            "without running code"
        )
    return arguments


def outside(out: Path, *runs: Path) -> Path:
    """Return `out` if it is a PNG file's name outside the run folders, else raise InputError."""
    for run in runs:
        if out.resolve().is_relative_to(run.resolve()):
            raise InputError(
                f"--out: expected a file outside the run folders, got {out} in {run}; name another"
            )
    if out.suffix != ".png":
        raise InputError(f"--out: expected a name that ends in .png, got {out}; name another")
    return out


def report(a: Record, b: Record, result: Comparison) -> Iterator[str]:
    """Yield the lines to print."""
    yield from (f"{side} {name(run)}" for side, run in (("A", a), ("B", b)))
    yield from (f"note: {note}" for note in result.notes)
    found = causes.changes(a, b)
    yield ""
    if result.difference is None:
        stages = ", ".join(stage_of(stage).name for stage in result.stages)
        yield f"The same bits at every step compared ({result.steps:,}): {stages}"
        if found:
            yield "\nDifferences that changed no bit"
        found = causes.others(found)
    else:
        first, *more = causes.explain(result.difference, found)
        yield f"The runs diverge at {first}"
        yield from more
        found = causes.others(found, causes.rank(result.difference, found))
        if found:
            yield "\nDifferences that are not known to act there"
    if found:
        yield from causes.table(found)
    yield from loss_table(
        compare.losses(a), compare.losses(b), result.difference.step if result.difference else 0
    )


def name(run: Record) -> str:
    """Return a run's folder, what it trained and how far it got."""
    what = " ".join(
        str(run.config[key])
        for key in ("model.name", "data.name", "optimizer.name", "determinism.name")
        if key in run.config
    )
    return f"{run.name}: {what}, {run.summary.get('status')} at step {run.summary.get('steps')}"


def loss_table(a: dict[int, float], b: dict[int, float], around: int) -> Iterator[str]:
    """Yield the training losses of the first logged steps, and of those around a step."""
    steps = sorted(a.keys() & b.keys())
    near = next((place for place, step in enumerate(steps) if step >= around), len(steps))
    places = sorted({*range(SHOWN_STEPS), *range(near - 2, near + SHOWN_STEPS - 2)})
    places = [place for place in places if 0 <= place < len(steps)]
    if not places:
        yield "\nNo step's training loss is in both records"
        return
    yield "\nTraining loss\n" + f"{'step':>8}  {'run A':<12}  {'run B':<12}  difference"
    for before, place in zip([-1, *places], places, strict=False):
        if place > before + 1:
            yield f"{'...':>8}"
        step = steps[place]
        apart = "0" if str(a[step]) == str(b[step]) else f"{b[step] - a[step]:+.3g}"
        yield f"{step:>8}  {a[step]:<12.9g}  {b[step]:<12.9g}  {apart}"
    if places[-1] + 1 < len(steps):
        yield f"{'...':>8}"


if __name__ == "__main__":
    sys.exit(exit_status(main))
