"""Seeding of project modules that draw when imported, such as `TABLE = torch.randn(64, 2)`.

A module may be imported early or late, and again in each loader worker that is not forked. So its
draws are a function of the seed and its name alone, and the table is the same everywhere.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from seedbed import project, rng


def seed_imports(seed: int) -> None:
    """Seed the global generators by the data stream's seed in each import of a project module."""
    if seed_in_force() is None:
        sys.meta_path.insert(0, _Finder(seed))


def seed_in_force() -> int | None:
    """Return the seed that `seed_imports` was called with; None if it was not."""
    return next((finder.seed for finder in sys.meta_path if isinstance(finder, _Finder)), None)


# The content of each project file when it was first executed, since it may be edited afterwards.
executed: dict[str, bytes] = {}


class _Finder(MetaPathFinder):
    """Meta path finder that seeds the import of the project's own (not installed) modules."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in sys.stdlib_module_names or name.startswith("seedbed"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader = None if spec is None else spec.loader
        if type(loader) is not SourceFileLoader or project.is_installed(loader.path):
            return None

        def execute(module: ModuleType) -> None:
            executed.setdefault(loader.path, loader.get_data(loader.path))
            with rng.restored():
                rng.seed_globals(rng.key(self.seed, "data", *name.encode()))
                SourceFileLoader.exec_module(loader, module)

        loader.exec_module = execute  # type: ignore[method-assign]
        return spec
