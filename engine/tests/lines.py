"""Count lines, and name what to read, in which order, to trust a run.

usage: python -m tests.lines
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path

from tests.rooms import ROOMS
from tests.running import ROOT

ENGINE = ROOT / "src" / "seedbed"
MOST_TO_READ = 5500  # lines

# From the command line to the bits: what a run draws, sets, loads, computes and writes.
READING = (
    "train.py",
    *("src/seedbed/errors.py", "src/seedbed/names.py", "src/seedbed/rng.py"),
    "src/seedbed/determinism",
    "src/seedbed/config",
    "src/seedbed/launch",
    "src/seedbed/worker",
    "src/seedbed/data",
    *("src/seedbed/tasks.py", "src/seedbed/methods.py"),
    "src/seedbed/operations",
    "src/seedbed/training",
    "src/seedbed/fingerprint.py",
    "src/seedbed/record",
)
# Of these rooms, no bit of a run that is not interrupted depends on the files of the three lists
# below. The first two are for those who ask more of a run than its bits.
RESUMING = (
    "src/seedbed/config/request.py",
    "src/seedbed/launch/resume.py",
    "src/seedbed/record/change.py",
    "src/seedbed/record/neutral.py",
    "src/seedbed/record/origin.py",
    "src/seedbed/training/capture.py",
    "src/seedbed/training/checkpoint.py",
    "src/seedbed/training/structure.py",
    "src/seedbed/training/unsaved.py",
    "src/seedbed/worker/best.py",
    "src/seedbed/worker/restore.py",
)
DESCRIBING = (
    "src/seedbed/record/blobs.py",
    "src/seedbed/record/code.py",
    "src/seedbed/record/git.py",
    "src/seedbed/record/source.py",
    "src/seedbed/worker/environment.py",
    "src/seedbed/worker/imports.py",
    "src/seedbed/worker/inputs.py",
    "src/seedbed/worker/loaded.py",
)
OTHERS = {
    "src/seedbed/config/check.py": "refuses values",
    "src/seedbed/config/command.py": "names run folders, and words what Hydra cannot do",
    "src/seedbed/config/hydra_errors.py": "words an error",
    "src/seedbed/config/launchers.py": "checks launchers of clusters",
    "src/seedbed/config/loggers.py": "chooses loggers",
    "src/seedbed/config/missing.py": "refuses what lacks keys",
    "src/seedbed/config/options.py": "reads the command lines of scripts",
    "src/seedbed/config/rules.py": "refuses values",
    "src/seedbed/config/targets.py": "refuses classes",
    "src/seedbed/config/trust.py": "refuses classes",
    "src/seedbed/data/collate.py": "mixes batches, where a configuration says so",
    "src/seedbed/data/files.py": "reads files, whose digests are in the record",
    "src/seedbed/data/part.py": "cuts data sets, where a configuration says so",
    "src/seedbed/data/sampled.py": "orders samples, where there is data.sampler",
    "src/seedbed/data/samplers.py": "likewise",
    "src/seedbed/data/streams.py": "reads iterable data sets",
    "src/seedbed/determinism/running.py": "sets a preset in processes that train.py did not start",
    "src/seedbed/launch/devices.py": "refuses devices",
    "src/seedbed/operations/place.py": "words where an operation was refused",
    "src/seedbed/operations/refusals.py": "words which operation was refused, and where",
    "src/seedbed/operations/trace.py": "traces a step that is examined or explained",
    "src/seedbed/operations/substitutes.py": "words what to use instead of a refused operation",
    "src/seedbed/record/plots.py": "draws pictures",
    "src/seedbed/record/terminal.py": "prints",
    "src/seedbed/record/untrusted.py": "reads records of others",
    "src/seedbed/training/callbacks.py": "looks on, and changes nothing",
    "src/seedbed/training/held.py": "gives a model back as it was, and notices other state",
    "src/seedbed/training/metrics.py": "evaluates by a library, where it is asked for",
    "src/seedbed/training/values.py": "refuses what methods return of another kind",
    "src/seedbed/worker/ending.py": "words how a run ended",
    "src/seedbed/worker/failure.py": "words why a run failed",
    "src/seedbed/worker/order.py": "orders samples, where there is data.sampler or data.streams",
}


def main() -> None:
    """Print the counts and the lists."""
    optional = {name: list(engine_files(room.paths)) for name, room in ROOMS.items()}
    deletable = {file for files in optional.values() for file in files}
    core = set(ENGINE.rglob("*.py")) - deletable
    print(f"{count(core):6,} lines of the engine without optional rooms")
    for name, files in optional.items():
        if files:
            print(f"{count(files):6,} lines of the optional room {name}")
    print(f"{count((ROOT / 'src/project').rglob('*.py')):6,} lines of the project")
    show(f"to read to trust the bits of a run (limit {MOST_TO_READ:,}), in order", reading_list())
    show("more to trust that it can be interrupted and resumed", paths(RESUMING))
    show("more to trust what its record says of code, files and machine", paths(DESCRIBING))
    show("of these rooms are left", paths(OTHERS), OTHERS.values())


def show(what: str, files: Sequence[Path], reasons: Iterable[str] = ()) -> None:
    """Print how many lines files have together, and each with its own number and a reason."""
    print(f"\n{count(files):6,} lines {what}:")
    for file, reason in zip(files, reasons or repeat(""), strict=False):
        print(f"{count([file]):6,} {file.relative_to(ROOT)}" + (f": {reason}" if reason else ""))


def engine_files(paths: Iterable[str]) -> Iterable[Path]:
    """Yield the engine's Python files among files and folders."""
    for path in (ROOT / path for path in paths):
        if path.is_relative_to(ENGINE):
            yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def reading_list() -> list[Path]:
    """Return the files to read, in order; of a room, its `__init__.py` first."""
    found: list[Path] = []
    for path in (ROOT / path for path in READING):
        found += sorted(path.glob("*.py")) if path.is_dir() else [path]
    left_out = {*paths(RESUMING), *paths(DESCRIBING), *paths(OTHERS)}
    return [file for file in found if file not in left_out]


def paths(names: Iterable[str]) -> list[Path]:
    """Return files by their names from the checkout's root."""
    return [ROOT / name for name in names]


def count(files: Iterable[Path]) -> int:
    """Return the number of lines, with comments, docstrings and empty ones."""
    return sum(len(file.read_text().splitlines()) for file in files)


if __name__ == "__main__":
    main()
