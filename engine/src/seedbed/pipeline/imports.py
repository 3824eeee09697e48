"""Seeding of project modules that draw when imported, such as `TABLE = torch.randn(64,
2)`.

A module may be imported early or late, and again in each loader worker that is not
forked. So its draws are a function of the seed and its name alone, and the table is the
same everywhere.
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from seedbed import project, rng
from seedbed.errors import InputError
from seedbed.record import code


def seed_imports(seed: int) -> None:
    """Seed the global generators by the data stream's seed in each import of a project
    module."""
    finder = next(
        (finder for finder in sys.meta_path if isinstance(finder, _Finder)), None
    )
    if finder is None:
        sys.meta_path.insert(0, _Finder(seed))
    else:
        finder.seed = seed


def seed_in_force() -> int | None:
    """Return the seed that `seed_imports` was called with; None if it was not."""
    return next(
        (finder.seed for finder in sys.meta_path if isinstance(finder, _Finder)), None
    )


class Executed(NamedTuple):
    """A file that is not installed, when it was first executed: it may be edited
    afterwards."""

    module: str
    content: bytes


executed: dict[str, Executed] = {}  # by path, in order
# the paths of those that only loader workers have executed
of_workers: set[str] = set()
# The seed by which a module drew when it was imported, by its name.
drawn: dict[str, int] = {}


def note_engine() -> None:
    """Note the engine's files, which are imported before `seed_imports`, as they are
    now."""
    for path in code.engine_files().values():
        executed.setdefault(str(path), Executed("seedbed", path.read_bytes()))


def digests(first: int = 0) -> dict[str, tuple[str, str]]:
    """Return module and SHA-256 of each executed file by its path, but for the `first`
    ones."""
    files = itertools.islice(executed.items(), first, None)
    return {path: (file.module, code.sha256(file.content)) for path, file in files}


def adopt(digests: Mapping[str, tuple[str, str]]) -> None:
    """Note what a loader worker has executed; raise InputError if this process has
    another file."""
    for path, (module, digest) in digests.items():
        if path not in executed:
            of_workers.add(path)
            with suppress(OSError):
                executed[path] = Executed(module, Path(path).read_bytes())
        if path not in executed or code.sha256(executed[path].content) != digest:
            raise edited(path)


def edited(path: str) -> InputError:
    return InputError(
        f"{path}: expected the file that the run began with, got an edited one, which"
        " loader workers import anew; undo the edit and resume the run, or start"
        " another"
    )


class _Finder(MetaPathFinder):
    """Meta path finder that seeds the import of the project's own (not installed)
    modules."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in sys.stdlib_module_names or name.startswith(
            "seedbed"
        ):
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader = None if spec is None else spec.loader
        if type(loader) is not SourceFileLoader or project.is_installed(loader.path):
            return None

        def execute(module: ModuleType) -> None:
            content = loader.get_data(loader.path)
            known = executed.setdefault(loader.path, Executed(name, content))
            # Else the user reloads it, as in a notebook.
            if known.content != content and loader.path in of_workers:
                raise edited(loader.path)
            with rng.restored():
                rng.seed_globals(rng.key(self.seed, "data", *name.encode()))
                before = rng.state()
                SourceFileLoader.exec_module(loader, module)
                if rng.state() != before:
                    drawn[name] = self.seed

        loader.exec_module = execute  # type: ignore[method-assign]
        return spec
