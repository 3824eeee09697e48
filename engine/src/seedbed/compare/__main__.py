"""Compare two run folders, without a checkout of the project: python -m seedbed.compare.

usage: python -m seedbed.compare RUN_A RUN_B [--out FILE.png]

exit status: 0 the same bits, 1 they differ, 2 they cannot be compared
"""

import argparse
import sys
from pathlib import Path

from seedbed import compare
from seedbed.compare import report
from seedbed.errors import exit_status


def main() -> int:
    """Compare the two run folders that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m seedbed.compare",
        description="Compare two runs: the first step and stage that differ, and what explains it.",
        epilog="exit status: 0 the same bits, 1 they differ, 2 they cannot be compared",
    )
    parser.add_argument("run_a", metavar="RUN_A", type=Path, help="a run folder")
    parser.add_argument("run_b", metavar="RUN_B", type=Path, help="another run folder")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="where to draw the picture (default: here)"
    )
    arguments = parser.parse_args()
    runs = (arguments.run_a, arguments.run_b)
    a, b = map(compare.read, runs)
    out = report.outside(arguments.out or report.picture(a, b), *runs)
    result = compare.compare(a, b)
    report.show(a, b, result, out)
    print(f"\npicture: {out}")
    return 0 if result.difference is None else 1


def run() -> int:
    """Compare as the command line says; for the command `seedbed-compare`."""
    return exit_status(main)


if __name__ == "__main__":
    sys.exit(run())
