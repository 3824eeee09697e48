"""The code of records in this process, for `seedbed.load`.

A process has one module of each name. So it can load runs of different code, or of
modules that drew other random numbers when they were imported, only if they share none
of these modules.
"""

import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from seedbed.errors import InputError
from seedbed.pipeline import imports
from seedbed.record import Origin, code
from seedbed.record.code import Tree

_ADVICE = "load this run in a new process"
# Until the process ends: a model may import further modules, and tracebacks show its
# source.
_extracted = ExitStack()
_trees: dict[str, Tree] = {}  # by the SHA-256 of code.zip
_digests: dict[str, str] = {}  # of the files in these trees, by their names in code.zip


def tree_of(origin: Origin) -> Tree:
    """Return the code of a record, extracted; nothing is imported from it yet."""
    key = "" if origin.archive is None else code.sha256(origin.archive.read_bytes())
    if key not in _trees:
        _trees[key] = _extracted.enter_context(code.code_of(origin, wanted=True))
    return _trees[key]


def use(origin: Origin, tree: Tree, seed: int) -> None:
    """Import the modules of a run from a tree of code, with draws by the seed of the
    data stream.

    Raises InputError if this process has, or would import, other modules of their
    names.
    """
    if tree.is_recorded:
        wanted = _own(origin.files, map(code.sha256, origin.files.values()))
    else:
        contents = {name: code.read_here(name) for name in origin.imported}
        wanted = {
            name: code.sha256(content) for name, content in contents.items() if content
        }
    for name, digest in wanted.items():
        module = _module_of(name)
        file = getattr(sys.modules.get(module), "__file__", None)
        is_there = file is not None and Path(file).is_file()
        present = (
            code.sha256(Path(str(file)).read_bytes())
            if is_there
            else _digests.get(name, digest)
        )
        if present != digest:
            raise InputError(
                f"{origin.folder}: this process uses another version of {module};"
                f" {_ADVICE}"
            )
        if imports.drawn.get(module, seed) != seed:
            raise InputError(
                f"{origin.folder}: {module} drew random numbers when it was imported,"
                f" by seeds.data={imports.drawn[module]}, and this run has {seed};"
                f" {_ADVICE}"
            )
    if tree.is_recorded:
        _digests.update(wanted)
        for folder in reversed(code.PLACES):
            if (path := str(tree.root / folder)) not in sys.path:
                sys.path.insert(0, path)


def packages(origin: Origin) -> list[str]:
    """Return the top-level packages and modules that the code.zip of a record has of
    its own."""
    return sorted(
        {
            _module_of(name).partition(".")[0]
            for name in _own(origin.files, origin.files)
        }
    )


def _own(names: Iterable[str], values: Iterable[str]) -> Mapping[str, str]:
    """Return values by the names of Python files that are not the engine's."""
    both = zip(names, values, strict=True)
    engine = f"{code.ELSEWHERE}/seedbed/"
    return {
        name: x
        for name, x in both
        if name.endswith(".py") and not name.startswith(engine)
    }


def _module_of(name: str) -> str:
    """Return the dotted name of the module of a file in code.zip."""
    inner = name.removeprefix("src/").removeprefix(f"{code.ELSEWHERE}/")
    return inner.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
