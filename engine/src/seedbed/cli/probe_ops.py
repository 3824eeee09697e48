"""Say which operations are deterministic on this machine, and what determinism costs.

usage: python scripts/probe_ops.py [--only NAME] [--repeats K] [--csv FILE] [--markdown FILE]
       python scripts/probe_ops.py OVERRIDE...

Each operation runs forward and backward on the same inputs, again and again, under the presets
`fast` and `strict` in turn, on every kind of device that is there. Bits are compared, not values.

With overrides, as train.py takes them, the first steps of that configuration run again and again
instead. Listed by module are operations that strict refuses or that differ from one time to the
next, and randomness that was drawn outside the streams.

example:
    python scripts/probe_ops.py
    python scripts/probe_ops.py --only 'interpolate*' --repeats 100 --csv interpolate.csv
    python scripts/probe_ops.py experiment=adding_lstm

exit status: 0 the table was made, or nothing was found in the configuration; 1 something was
found in it; 2 invalid request
"""

import argparse
import fnmatch
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from seedbed import launch
from seedbed.config import options
from seedbed.config.compose import configuration
from seedbed.determinism import running
from seedbed.errors import InputError

if TYPE_CHECKING:
    from seedbed.probe.probe import Finding

PRESETS = Path(running.__file__).parent / "presets"
WIDTHS = (33, 6, 29, 29, 19)


def main() -> int:
    """Probe, print the table row by row, and write it where asked."""
    arguments = parse()
    # A thread that waits awake keeps a busy machine's processor from the one it waits for.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if arguments.overrides:
        return examine(arguments.overrides)
    # Older versions of PyTorch refuse matrix products on a GPU under strict without this.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    from seedbed.probe import report  # brings torch, which reads the variable

    files = {name: create(getattr(arguments, name)) for name in ("csv", "markdown")}
    print(aligned(report.COLUMNS[:-1]))
    findings = []
    for finding in probe_all(arguments.only, arguments.repeats):
        findings.append(finding)
        *cells, instead = report.cells(finding)
        print(aligned(cells) + (f"\n    instead: {instead}" if instead else ""), flush=True)
    print("", *report.summary(findings), report.measured_on(), sep="\n")
    if files["csv"]:
        with files["csv"] as file:
            report.write_csv(file, findings)
    if files["markdown"]:
        with files["markdown"] as file:
            command = shlex.join(["python", "scripts/probe_ops.py", *sys.argv[1:]])
            report.write_markdown(file, findings, command)
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("overrides", metavar="OVERRIDE", nargs="*", help="such as model=lstm")
    parser.add_argument("--only", metavar="NAME", help="an operation, or several: 'max_pool*'")
    parser.add_argument(
        "--repeats", metavar="K", default="20", help="runs per preset (default: 20)"
    )
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write every figure there")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write a page there")
    arguments = parser.parse_args()
    if not arguments.repeats.isdecimal() or int(arguments.repeats) < 1:
        raise InputError(
            f"--repeats: expected an integer >= 1, got {arguments.repeats}; try --repeats 20"
        )
    arguments.repeats = int(arguments.repeats)
    if arguments.overrides and (arguments.only or arguments.csv or arguments.markdown):
        raise InputError(
            f"{arguments.overrides[0]}: expected overrides or options, got both; leave out one"
        )
    return arguments


def examine(overrides: list[str]) -> int:
    """Examine the configuration that train.py would make of the overrides.

    A process of its own does it, under the environment variables of the preset, as in training.
    """
    settings = configuration(*overrides)
    with tempfile.TemporaryDirectory() as folder:
        OmegaConf.save(settings, Path(folder) / "config.yaml")
        command = [sys.executable, "-m", "seedbed.probe.examine", folder]
        return launch.run_passing_signals(command, launch.training_environment(settings))


def create(path: Path | None) -> IO[str] | None:
    """Open a file for writing before the work starts, so that it does not end in an error."""
    try:
        return path.open("w", newline="") if path else None
    except OSError as error:
        raise InputError(
            f"{path}: expected a file that can be written, got {error.strerror}; name another"
        ) from None


def probe_all(only: str | None, repeats: int) -> Iterator["Finding"]:
    """Probe the chosen operations on every device, one after the other."""
    from seedbed.probe.catalog import catalogue
    from seedbed.probe.probe import devices, probe

    chosen = [op for op in catalogue() if only is None or fnmatch.fnmatchcase(op.name, only)]
    if not chosen:
        names = ", ".join(op.name for op in catalogue())
        raise InputError(f"--only: expected an operation's name, got {only}; there are {names}")
    fast, strict = (preset(name) for name in ("fast", "strict"))
    for device in devices():
        for operation in chosen:
            yield probe(operation, device, fast, strict, repeats)


def preset(name: str) -> DictConfig:
    """Read a preset of configs/determinism/."""
    settings = OmegaConf.load(PRESETS / f"{name}.yaml")
    assert isinstance(settings, DictConfig)
    return settings


def aligned(cells: Iterable[str]) -> str:
    """Return a row with its cells below those of the other rows."""
    *columns, note = cells
    padded = (f"{cell:{width}}" for cell, width in zip(columns, WIDTHS, strict=True))
    return " ".join((*padded, note)).rstrip()
