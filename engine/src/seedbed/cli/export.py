"""Export the model of a run for inference, and print the lines that load it.

usage: python scripts/export.py RUN [--to FILE] [--checkpoint best|last] [--state-dict]
                                [--overwrite] [--trust NAME] [--online] [key=value ...]

By default a program of torch.export, for CPUs, that needs nothing of this project: RUN.pt2 in the
folder exports. With --state-dict the weights, RUN.pt, and the YAML from which Hydra builds the
model, RUN.yaml; to load these takes the model's code. What was written is read back, and its
outputs are compared with the model's on validation samples. The program takes inputs as the data
set makes them.

example:
    python scripts/export.py runs/a
    python scripts/export.py runs/a --state-dict
    python scripts/export.py runs/a --to digits.pt2

exit status: 0 exported, 1 exported, with outputs of other bits, 2 it cannot be
"""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError
from seedbed.tools import places, request

FOLDER = Path("exports")


def main() -> int:
    """Export the model of the run that the command line names, in a process of its own."""
    arguments = parse()
    suffix = ".pt" if arguments.state_dict else ".pt2"
    if arguments.to:
        return export(arguments, arguments.to, suffix)
    with folder_for_exports():
        record.require_run(arguments.run)
        return export(arguments, FOLDER / f"{arguments.run.resolve().name}{suffix}", suffix)


def export(arguments: argparse.Namespace, out: Path, suffix: str) -> int:
    """Export to a file that may be written; return the exit status."""
    if out.suffix != suffix:
        raise InputError(f"--to: expected a name that ends in {suffix}, got {out}; name another")
    places.require_output("--to", out)
    if not arguments.overwrite:
        files = [out, places.yaml_of(out)] if arguments.state_dict else [out]
        places.require_new("--to", *files)
    overrides = ["trainer.device=cpu", "trainer.compile=false", *arguments.overrides]
    settings = request.settings_of(arguments.run, overrides, arguments.trust)
    asked = {
        "run": str(arguments.run),
        "checkpoint": arguments.checkpoint,
        "to": str(out),
        "state_dict": arguments.state_dict,
    }
    return request.start("seedbed.tools.exporting", settings, asked, arguments.online)


@contextlib.contextmanager
def folder_for_exports() -> Iterator[None]:
    """Make the folder that git ignores, for files without a name; remove it if it stays empty."""
    is_new = not FOLDER.exists()
    with contextlib.suppress(OSError):  # which is said of the file
        FOLDER.mkdir(exist_ok=True)
    try:
        yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                FOLDER.rmdir()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    options.add_run(parser)
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="such as data.root=here")
    parser.add_argument(
        "--to",
        metavar="FILE",
        type=Path,
        help="the file to write (default: exports/RUN.pt2, exports/RUN.pt)",
    )
    options.add_weights(parser)
    parser.add_argument(
        "--state-dict", action="store_true", help="write weights and YAML instead of a program"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there already")
    options.add_trust(parser)
    return parser.parse_intermixed_args()
