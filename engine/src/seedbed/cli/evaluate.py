"""Evaluate the weights of a run: loss, metric and predictions on a split, or on other data.

usage: python scripts/evaluate.py RUN [--checkpoint best|last] [--split test|validation|train]
                                  [--predictions FILE] [--trust NAME] [--online] [key=value ...]

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
from pathlib import Path

from seedbed.config import options
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
    parser = options.parser(__doc__)
    options.add_run(parser)
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="what shall be different")
    options.add_weights(parser)
    parser.add_argument(
        "--split",
        choices=("test", "validation", "train"),
        default="test",
        help="the samples to evaluate on (default: test)",
    )
    parser.add_argument(
        "--predictions", metavar="FILE", type=Path, help="write each sample's prediction there"
    )
    options.add_trust(parser)
    return parser.parse_intermixed_args()
