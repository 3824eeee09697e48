"""Which files of the checkout a training process imports: only they can explain its bits."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.record import code, git, source
from seedbed.worker.loaded import file_below


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
        self._root = root or source.project_root()
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
        root, commit = self._root, self._environment["git"]["commit"]
        found = {path for m in list(sys.modules.values()) if (path := file_below(m, root))}
        named = {git.printable(path.as_posix()): path for path in found}
        new = {name: path for name, path in named.items() if name not in self._files}
        if not new:
            return
        for name, path in new.items():
            with suppress(OSError):  # deleted meanwhile
                self._files[name] = code.blob_id((root / path).read_bytes(), commit)
        files = {"imported_files": dict(sorted(self._files.items()))}
        record.write_json(self._folder / "environment.json", {**self._environment, **files})
