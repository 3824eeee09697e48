"""Evaluate the weights of a run: loss, metric and predictions on a split, or on other data.

usage: python scripts/evaluate.py RUN [--checkpoint best|last] [--split test|validation|train]
                                  [--predictions FILE] [--trust PACKAGE] [--online] [key=value ...]

example:
    python scripts/evaluate.py runs/a
    python scripts/evaluate.py runs/a --checkpoint last --split validation --predictions a.csv
    python scripts/evaluate.py runs/a data=mnist data.root=/shared/mnist

Overrides name another data set of configs/data (data=mnist) or change keys of the run's
config.yaml (data.eval_batch_size=100, trainer.device=cpu). Nothing is written into the run folder.
Training samples are evaluated without the augmentation that data sets with `fetch` do.

exit status: 0 evaluated, 2 it cannot be
"""

import argparse
import sys
from pathlib import Path

from seedbed.errors import exit_status
from seedbed.tools import places, request


def main() -> int:
    """Evaluate the run that the command line names, in a process of its own."""
    arguments = parse()
    out = arguments.predictions and places.require_output("--predictions", arguments.predictions)
    settings = request.settings_of(arguments.run, arguments.overrides, arguments.trust)
    asked = {
        "run": str(arguments.run),
        "checkpoint": arguments.checkpoint,
        "split": arguments.split,
        "predictions": str(out) if out else None,
        "overrides": arguments.overrides,
    }
    return request.start("seedbed.tools.evaluation", settings, asked, arguments.online)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder; it is only read")
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="what shall be different")
    parser.add_argument(
        "--checkpoint",
        choices=request.CHECKPOINTS,
        default="best",
        help="the weights with the best validation (default), or those of the last step",
    )
    parser.add_argument(
        "--split",
        choices=("test", "validation", "train"),
        default="test",
        help="the samples to evaluate on (default: test)",
    )
    parser.add_argument(
        "--predictions", metavar="FILE", type=Path, help="write each sample's prediction there"
    )
    parser.add_argument(
        "--trust",
        metavar="PACKAGE",
        action="append",
        default=[],
        help="a package that classes may come from, beside trusted_packages of configs/config.yaml",
    )
    parser.add_argument(
        "--online",
        action="store_true",
        help="open addresses that the record names: mirrors and downloads of data",
    )
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    sys.exit(exit_status(main))
