"""Compare two runs: the first step and stage that differ, and what explains it.

usage: python scripts/compare.py RUN_A RUN_B [--explain] [--out FILE.png] [--trust PACKAGE]
                                 [--online]

example:
    python train.py seed=0 hydra.run.dir=runs/a
    python train.py seed=0 data.num_workers=2 hydra.run.dir=runs/b
    python scripts/compare.py runs/a runs/b
    python scripts/compare.py runs/a runs/b --explain

exit status: 0 the same bits, 1 they differ, 2 they cannot be compared
"""

import argparse
import sys
from pathlib import Path

from seedbed import compare
from seedbed.compare import report
from seedbed.errors import exit_status, printable


def main() -> int:
    """Compare two run folders and print what was found."""
    arguments = parse()
    a, b = compare.read(arguments.run_a), compare.read(arguments.run_b)
    out = report.outside(arguments.out or report.picture(a, b), arguments.run_a, arguments.run_b)
    result = compare.compare(a, b)
    report.show(a, b, result, out)
    if arguments.explain and result.difference is not None:
        from seedbed.explain import of_runs  # needs torch, and can be deleted

        runs = (arguments.run_a, arguments.run_b)
        how = (result.difference, arguments.trust, arguments.online)
        print(*map(printable, of_runs(runs, (a, b), *how)), sep="\n")
    print(f"\npicture: {out}")
    return 0 if result.difference is None else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("run_a", metavar="RUN_A", type=Path, help="a run folder")
    parser.add_argument("run_b", metavar="RUN_B", type=Path, help="another run folder")
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
        "--trust",
        metavar="PACKAGE",
        action="append",
        default=[],
        help="for --explain: a package that classes may come from, beside trusted_packages of "
        "configs/config.yaml",
    )
    parser.add_argument(
        "--online",
        action="store_true",
        help="for --explain: open addresses that the records name: mirrors and downloads of data",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_status(main))
