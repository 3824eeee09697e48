"""Which files of the checkout a training process imports: only they can explain its bits."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from seedbed import project, record
from seedbed.record import code, git
from seedbed.record.origin import Origin
from seedbed.worker.loaded import file_below


def completed(folder: Path, before: Origin, now: Origin) -> tuple[Origin, Origin]:
    """Return the origins of a run's checkpoint and of this process with the files they imported.

    A process that resumes has imported what its settings name; what its first step will import on
    top, the one before has imported too, or a file among these is another.
    """
    root = project.root()
    recorded = record.read_json(folder / "environment.json").get("imported_files")
    here = _blobs(_imported(root), root, now.environment["git"]["commit"])
    files = recorded, here if recorded else None
    before, now = (
        replace(each, environment={**each.environment, "imported_files": found})
        for each, found in zip((before, now), files, strict=True)
    )
    return before, now


class Imports:
    """An observer of a run logger that keeps the files which Python imports in environment.json.

    It looks when a table is written, so after the first step, and when a checkpoint is saved, so at
    the end. A file is what it held when it was first seen.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, Any], root: Path | None = None
    ) -> None:
        """Take the run folder, what else its environment.json holds, and the checkout's root."""
        self._folder, self._environment = folder, environment
        self._root = root or project.root()
        self._files: dict[str, str] = {}
        self._modules = 0

    def note(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Look, if modules were imported since the last time."""
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            self._look()

    def save(self) -> None:
        """Look, as `note` does."""
        self.note(())

    def close(self, finished: bool) -> None:
        """Do nothing: what the end of a run imports has no part in its bits."""

    def _look(self) -> None:
        commit, known = self._environment["git"]["commit"], self._files
        new = {name: path for name, path in _imported(self._root).items() if name not in known}
        if not new:
            return
        self._files |= _blobs(new, self._root, commit)
        files = {"imported_files": dict(sorted(self._files.items()))}
        record.write_json(self._folder / "environment.json", {**self._environment, **files})


def _imported(root: Path) -> dict[str, Path]:
    """Return the files below a checkout's root that this process has imported, by their names."""
    found = {path for m in list(sys.modules.values()) if (path := file_below(m, root))}
    return {git.printable(path.as_posix()): path for path in found}


def _blobs(files: Mapping[str, Path], root: Path, commit: str | None) -> dict[str, str]:
    """Return the blob ids of files, by the same names."""
    found = {}
    for name, path in files.items():
        with suppress(OSError):  # deleted meanwhile
            found[name] = code.blob_id((root / path).read_bytes(), commit)
    return found
