"""Try Seedbed beside Lightning, lightning-hydra-template, transformers and accelerate.

Writes the table of docs/comparison.md and prints it. Each cell is the outcome of processes that
were started: a small CNN on 1,024 digits (Seedbed: on 4,000) with augmentation and dropout, on the
CPU. A tool that is not installed has no column.

Example: make comparison TEMPLATE=../lightning-hydra-template
"""

import argparse
import importlib.metadata
import platform
import signal
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import invariance_runs
import templates_tools
from templates_tools import LEARNING_RATE, Tool

SAME, DIFFERENT = "same", "**other weights**"
COMMAND = "make comparison TEMPLATE=FOLDER"
PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
PACKAGES = ("torch", "lightning", "torchdata", "transformers", "accelerate", "hydra-core")


class Trials:
    """The runs of a tool, each trained once."""

    def __init__(self, tool: Tool, folder: Path) -> None:
        self.tool, self._folder = tool, folder
        self._done: dict[str, Path] = {}

    def run(self, change: Mapping[str, Any], copy: str = "") -> Path:
        """Return the folder of a finished run with some changes.

        Args:
            copy: tells a further run with the same changes from the first.

        Raises:
            Failed: where the tool did not finish.
        """
        name = "_".join([f"run{copy}", *(f"{key}_{value}" for key, value in change.items())])
        if name not in self._done:
            self.train(name, change)
            self._done[name] = self._folder / name
        return self._done[name]

    def train(self, name: str, change: Mapping[str, Any]) -> Path:
        """Train in a folder of that name; raise `Failed` with what was printed if that fails."""
        finished, printed = self.tool.train(self._folder / name, change)
        if not finished:
            raise Failed(printed)
        return self._folder / name

    def same(self, one: Path, other: Path) -> str:
        """Say whether two finished runs have the same final weights."""
        return SAME if self.tool.weights(one) == self.tool.weights(other) else DIFFERENT


class Failed(Exception):
    """A tool that did not finish its training; its text is what it printed."""


Cell = Callable[[Trials], str]


@dataclass(frozen=True)
class Row:
    """Something that is tried: its cell, of the runs of a tool."""

    name: str
    cell: Cell


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> Cell:
    """Return a cell that says whether two runs end with the same weights."""

    def cell(trials: Trials) -> str:
        return trials.same(trials.run(before), trials.run(after, "_again" * (before == after)))

    return cell


def resumed(number: signal.Signals) -> Cell:
    """Return a cell that says whether a run that was stopped ends as one that was not."""

    def cell(trials: Trials) -> str:
        # A tool that saves a while after the signal has the time to do so.
        stop, name = {"signal": int(number), "grace": 6}, number.name
        with suppress(Failed):
            run = trials.train(name, stop)
            if trials.tool.finished(run):
                return "trains on"
        return trials.same(trials.run({}), trials.train(name, {**stop, "resume": True}))

    return cell


def across_processes(trials: Trials) -> str:
    """Say whether 2 processes end with the weights of 1."""
    before = trials.tool.before_processes
    return trials.same(trials.run(before), trials.run({**before, "processes": 2}))


def refused(trials: Trials) -> str:
    """Say what comes of an operation that PyTorch's deterministic algorithms refuse."""
    try:
        trials.run({"refused": True})
    except Failed as error:
        printed = str(error).replace(f"{PAGE.parents[1]}/", "")
        if "put_" not in printed:
            raise
        return "a traceback" if "Traceback" in printed else f"`{last_line(printed)}`"
    return "trains"


def configuration(trials: Trials) -> str:
    """Return the files of a run's folder that hold its learning rate, as text or pickled."""
    searched = (str(LEARNING_RATE).encode(), struct.pack(">d", LEARNING_RATE))
    return recorded(trials.run({}), *searched)


def versions(trials: Trials) -> str:
    """Return the files of a run's folder that hold the version of torch."""
    return recorded(trials.run({}), importlib.metadata.version("torch").encode())


def commit(trials: Trials) -> str:
    """Return the files of a run's folder that name the commit of the code."""
    command = ("git", "-C", str(trials.tool.code), "rev-parse", "HEAD")
    found = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return recorded(trials.run({}), found.stdout.strip())


def recorded(run: Path, *searched: bytes) -> str:
    """Return the files of a run's folder that hold any of some bytes, checkpoints apart."""
    found = sorted(
        f"`{path.relative_to(run)}`"
        for path in run.rglob("*")
        if path.is_file() and "checkpoint" not in str(path.relative_to(run))
        if any(text in path.read_bytes() for text in searched)
    )
    return ", ".join(found) or "none"


def last_line(printed: str) -> str:
    """Return the last line of an output that says an error, else the last one."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if "Error" in line or line.startswith("error")]
    return (errors or lines)[-1].replace("|", "/")[:300]


ROWS = (
    Row("the same command twice, seed 1", compared({}, {})),
    Row("the same command twice, seed 0", compared({"seed": 0}, {"seed": 0})),
    Row("another seed (must be other weights)", compared({}, {"seed": 2})),
    Row("2 loader workers instead of none", compared({}, {"workers": 2})),
    Row("validation only at the end, or never", compared({}, {"validate": False})),
    Row(
        "something draws from the global generators after each step", compared({}, {"draws": True})
    ),
    Row("SIGKILL in the middle of an epoch, resumed", resumed(signal.SIGKILL)),
    Row("SIGTERM in the middle of an epoch, resumed", resumed(signal.SIGTERM)),
    Row("2 processes, the same global batch", across_processes),
    Row("an operation without a deterministic kernel", refused),
    Row("files that hold the learning rate", configuration),
    Row("files that name the commit", commit),
    Row("files that name the version of torch", versions),
)


def measure(
    tools: Sequence[Tool], rows: Iterable[Row], folder: Path
) -> Iterator[tuple[str, list[str]]]:
    """Yield each row's name and cells; a row's cells are tried side by side, three at a time."""
    trials = [Trials(tool, folder / tool.name.replace(" ", "_")) for tool in tools]
    for row in rows:
        with ThreadPoolExecutor(3) as pool:
            yield row.name, list(pool.map(partial(outcome, row), trials))


def outcome(row: Row, trials: Trials) -> str:
    """Return a row's cell; how the tool failed, where it did."""
    try:
        return row.cell(trials)
    except Failed as error:
        return f"fails: `{last_line(str(error))}`"
    except subprocess.TimeoutExpired as error:
        return f"not tried: not finished after {error.timeout:.0f} s"


def circumstances() -> str:
    """Say what was tried where."""
    installed = {entry.name.lower() for entry in importlib.metadata.distributions()}
    found = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if name in installed]
    return f"{platform.platform()}, Python {platform.python_version()}, {', '.join(found)}"


def main() -> None:
    """Try everything and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--template", type=Path, help="a clone of lightning-hydra-template")
    parser.add_argument("--only", default="", help="some rows, printed: their names hold this word")
    parser.add_argument(
        "--out", type=Path, default=PAGE, help="the page (default: docs/comparison.md)"
    )
    words = parser.parse_args()
    tools = templates_tools.tools(words.template)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for row in ROWS if words.only in row.name]
        lines = [
            f"| tried | {' | '.join(tool.name for tool in tools)} |",
            f"| --- |{' --- |' * len(tools)}",
        ]
        for name, cells in measure(tools, rows, Path(folder)):
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if not words.only:
        write(words.out, lines)


def write(page: Path, lines: Iterable[str]) -> None:
    """Write the measured part of the page; what was written by hand below it stays."""
    measured = f"Tried by `{COMMAND}` on {date.today()}, on {circumstances()}.".replace("\n", " ")
    table, kept = "\n".join(lines), invariance_runs.kept_part(page)
    page.write_text(f"# Seedbed beside other tools\n\n{measured}\n\n{table}\n\n{kept}")


if __name__ == "__main__":
    main()
