"""What the command lines of scripts/ have in common."""

import argparse
from pathlib import Path

CHECKPOINTS = ("best", "last")
_ONLINE = "open addresses that the record names: mirrors and downloads of data"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the script's docstring, with its own lines of usage."""
    return argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add RUN, a run folder that is only read."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder; it is only read")


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add --checkpoint, which of a run's weights to use."""
    parser.add_argument(
        "--checkpoint",
        choices=CHECKPOINTS,
        default="best",
        help="the weights with the best validation (default), or those of the last step",
    )


def add_trust(parser: argparse.ArgumentParser, when: str = "", online: str = _ONLINE) -> None:
    """Add --trust and --online: what a record may name beyond what this checkout does.

    Args:
        when: begins the help of both, such as `for --explain: `.
        online: what --online does.
    """
    parser.add_argument(
        "--trust",
        metavar="NAME",
        action="append",
        default=[],
        help=f"{when}a class that the record may name, or a package of such, beside those that "
        "files of configs/ name",
    )
    parser.add_argument("--online", action="store_true", help=f"{when}{online}")
