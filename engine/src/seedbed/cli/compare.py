"""Compare two runs: the first step and stage that differ, and what differs between them.

usage: python scripts/compare.py RUN_A RUN_B [options]

RUN_A and RUN_B are run folders, or zips of such.

  --plot FILE.png   draw losses, metrics and the first difference
  --json            print one JSON object instead
  --explain         replay the first step that differs and name the first operation that differs
  --restore-code    for --explain: replay each run with the code.zip of its record; this runs code
                    of both records
  --trust NAME      for --explain: a class, or a package of such, that a record may name besides
                    those that files of configs/ name
  --online          for --explain: open addresses that the records name: mirrors, downloads

example:
    python train.py seed=0 hydra.run.dir=runs/a
    python train.py seed=0 data.num_workers=2 hydra.run.dir=runs/b
    python scripts/compare.py runs/a runs/b
    python scripts/compare.py runs/a runs/b --explain
    python scripts/compare.py runs/a runs/b --explain --restore-code     # their code differs

exit status: 0 the same bits, 1 they differ, 2 they cannot be compared
"""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from seedbed import compare
from seedbed.compare import Difference, Record, checkout, report
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.record import archive, change, text


def main() -> int:
    """Compare two runs and print what was found."""
    arguments = parse()
    with ExitStack() as stack:
        a, b = (opened(path, stack) for path in (arguments.run_a, arguments.run_b))
        result = compare.compare(a.record, b.record)
        if arguments.plot is not None:
            from seedbed.compare import plot  # needs matplotlib

            plot.draw(a.record, b.record, result, arguments.plot)
        if arguments.json:
            print(text.as_json(report.as_dict(a.record, b.record, result)))
        else:
            print_all(report.report(a.record, b.record, result))
        if arguments.explain and result.difference is not None:
            print_all(explanation(arguments, a, b, result.difference, stack))
    return 0 if result.difference is None else 1


def print_all(lines: Iterable[str]) -> None:
    """Print lines as they come; what a record holds may come from a stranger."""
    for line in lines:
        print(printable(line), flush=True)


class Run(NamedTuple):
    """A run to compare: its folder, which can be that of a zip for a while, and what it holds."""

    folder: Path
    record: Record


def opened(path: Path, stack: ExitStack) -> Run:
    """Return the run of a folder, or of a zip of one, extracted for as long as the stack lasts."""
    folder = stack.enter_context(archive.run_folder(path))
    return Run(folder, replace(compare.read(folder), name=str(path)))


def explanation(
    arguments: argparse.Namespace, a: Run, b: Run, difference: Difference, stack: ExitStack
) -> Iterator[str]:
    """Yield the lines of --explain; code of the records is executed only with --restore-code."""
    if not arguments.restore_code and not change.same_code(a.record.code, b.record.code):
        yield (
            "\nThe runs had different code. To replay each with its own, which executes the code "
            "of both records: add --restore-code"
        )
        return
    from seedbed.explain import of_runs  # needs torch, and can be deleted

    trees = [checkout.here()] * 2
    if arguments.restore_code:
        trees = [
            stack.enter_context(checkout.code_of(run.folder, run.record.code, True))
            for run in (a, b)
        ]
    runs, records = (a.folder, b.folder), (a.record, b.record)
    yield from of_runs(runs, records, difference, trees, arguments.trust, arguments.online)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.Parser(__doc__).add("run_a", type=Path).add("run_b", type=Path).add_trust()
    parser.add("--plot", type=Path).add_flags("--json", "--explain", "--restore-code")
    arguments = parser.parse_args()
    if arguments.json and arguments.explain:
        raise InputError("--json: expected it without --explain, got both")
    if arguments.restore_code and not arguments.explain:
        raise InputError("--restore-code: expected --explain with it, got it alone")
    return arguments
