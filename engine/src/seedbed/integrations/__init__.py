"""The recorder as a callback for other libraries, one module each; their base class."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.loading import seed_step
from seedbed.recorder import Recorder

_TIMES = re.compile(r"(runtime|_per_second|epoch)$")  # not reproducible, so left out


class Recording:
    """Base class of callbacks that hold a Recorder while a trainer trains."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        settings: object = None,
        *,
        seed: int | None = None,
        ids: Callable[[int], Any] | None = None,
        **options: Any,
    ) -> None:
        """Store the options, and further ones of `Recorder`; the record starts with
        training.

        Args:
            settings: as for `Recorder`; None: those of the trainer or module.
            seed: seeds the global generators before each step, so that a resume has
            equal dropout.
            ids: returns the sample ids of a step, such as `seeded_loader(...).ids`.
        """
        self._folder = Path(folder)
        self._settings = settings
        self._seed = seed
        self._ids = ids
        self._options = options
        self._recorder: Any = None  # a Recorder while a trainer trains

    def _begin(self, settings: object, done: int) -> None:
        """Start the record, or resume it after the `done` steps of a checkpoint."""
        settings = settings if self._settings is None else self._settings
        resume_from = done if done and record.is_run(self._folder) else None
        self._recorder = Recorder(
            self._folder, settings, resume_from=resume_from, **self._options
        )

    def _seed_step(self, step: int, rank: int) -> None:
        if self._seed is not None:
            seed_step(self._seed, step, rank)

    def _step(self, step: int, *parts: Any) -> None:
        self._recorder.step(
            step, None if self._ids is None else self._ids(step), *parts
        )

    def _validation(self, step: int, metrics: Mapping[str, Any], prefix: str) -> None:
        """Record metrics whose names start with a pattern, such as `eval`, without that
        prefix."""
        values = {
            re.sub(r"\W", "_", name[begins.end() :]): value
            for name, value in metrics.items()
            if (begins := re.match(rf"({prefix})[/_.]", name))
            and not _TIMES.search(name)
        }
        if self._recorder and values:
            self._recorder.validation(step, **values)

    def _close(self, error: BaseException | None = None) -> None:
        if self._recorder:
            self._recorder.__exit__(None, error, None)
        self._recorder = None
