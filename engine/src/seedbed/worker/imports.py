"""The files that a training process imports: kept in code.zip, digests in environment.json."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import seedbed
from seedbed import project, record
from seedbed.data.imports import executed
from seedbed.errors import printable
from seedbed.record import archive, code

_real_folder = cache(os.path.realpath)


class Imports:
    """Keeps the files imported from outside site-packages, each as it was when first seen.

    Attributes:
        environment: the content of environment.json, to whose `imported_files` new files are added.
    """

    def __init__(self, folder: Path, environment: dict[str, Any], root: Path | None = None) -> None:
        self.environment = environment
        self._digests: dict[str, str] = environment.setdefault("imported_files", {})
        self._folder, self._root = folder, root or project.root()
        self._kept: dict[str, bytes] = {}
        self._modules = self._bytes = 0
        engine = Path(seedbed.__file__).resolve()
        if not project.is_installed(str(engine)):  # all of it: --explain runs more than a run
            for path in engine.parent.rglob("*.py"):
                inner = path.relative_to(engine.parents[1]).as_posix()
                self._kept[f"{code.ELSEWHERE}/{inner}"] = path.read_bytes()

    def look(self) -> bool:
        """Read the files imported since the last call; return whether there are any."""
        if len(sys.modules) == self._modules:
            return False
        self._modules, before = len(sys.modules), len(self._digests)
        for name, path, file in _imported(self._root):
            if name not in self._digests:
                with suppress(OSError):  # deleted in the meantime
                    self._keep(name, executed.get(file) or path.read_bytes())
        return len(self._digests) > before

    def expect(self, names: Iterable[str]) -> None:
        """Add the files that an earlier process of this run imported, as they are here.

        So far this process has imported only what its settings name; the earlier one has also
        imported what the first step will import here.
        """
        for name in names:
            content = None if name in self._digests else code.read_here(name, self._root)
            if content is not None:
                self._keep(name, content)

    def _keep(self, name: str, content: bytes) -> None:
        self._digests[name] = code.sha256(content)
        self._bytes += len(content)
        if self._bytes < archive.MAX_CODE_BYTES // 2:  # beyond that, only digests are kept
            self._kept[name] = content

    def write(self, patch: bytes | None = None) -> None:
        """Write code.zip, then environment.json, which lists its files, and source.patch."""
        path_entry = f"{os.pathsep.join(code.PLACES)}\n".encode()
        content = archive.zipped({**self._kept, code.PATH: path_entry})
        path = self._folder / code.ARCHIVE
        if not path.is_file() or path.read_bytes() != content:
            record.write_atomically(path, content)
        files = {"imported_files": dict(sorted(self._digests.items()))}
        record.write_json(self._folder / "environment.json", self.environment | files)
        if patch is not None:
            record.write_atomically(self._folder / "source.patch", patch)

    def note(self) -> None:
        if self.look():
            self.write()


def _imported(root: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield (name in code.zip, path, `__file__`) of each module that is not installed.

    Files in the caches of compilers are left out, since imports do not search there.
    """
    for key, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or project.is_installed(file):
            continue
        path = Path(file)
        if not path.is_relative_to(root):  # maybe reached through a symlink
            path = Path(_real_folder(str(path.parent)), path.name)
        inner = _import_path(key, module, path)
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
        if not name or (inner and name not in (inner, f"src/{inner}")):
            name = f"{code.ELSEWHERE}/{inner}"
        if archive.is_inside(printable(name)):
            yield printable(name), path, file


def _import_path(key: str, module: ModuleType, path: Path) -> str:
    """Return a module's file relative to the `sys.path` entry that it fits; "" if it fits none."""
    spec = getattr(module, "__spec__", None)
    parts = (spec.name if spec is not None else key).split(".")
    parts = [*parts, "__init__"] if path.stem == "__init__" else parts
    stem = path.name.partition(".")[0]  # of an extension, name.cpython-311-x86_64-linux-gnu.so
    fits = [*path.parts[-len(parts) : -1], stem] == parts
    return "/".join([*parts[:-1], path.name]) if fits else ""
