"""The recorder as a tracker of accelerate.

tracker = RecorderTracker("runs/a")
accelerator = Accelerator(log_with=tracker)
accelerator.init_trackers("name", config=settings)
... tracker.step(step, ids, batch, loss, model, optimizer) ...
accelerator.end_training()
"""

import os
from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from seedbed.integrations.metrics import held_out
from seedbed.recorder import Recorder


class RecorderTracker(GeneralTracker):  # type: ignore[misc]
    """Records the steps that it is given, and what is logged as `val_...` or `eval_...`."""

    name = "seedbed"
    requires_logging_directory = False
    main_process_only = False  # the recorder knows which process writes

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        """Prepare to record.

        Args:
            folder: the run folder.
            options: more of `Recorder`'s.
        """
        super().__init__()
        self._folder, self._options = folder, options
        self._settings: Mapping[str, Any] | None = None
        self._recorder: Recorder | None = None

    @property
    def tracker(self) -> Recorder:
        """Return the recorder; it begins when it is asked for first."""
        if self._recorder is None:
            self._recorder = Recorder(self._folder, self._settings, **self._options)
        return self._recorder

    def step(
        self, step: int, ids: Any, batch: Any, losses: Any, model: Any, optimizers: Any
    ) -> None:
        """Record a step, as `Recorder.step` does; to be called in every process."""
        self.tracker.step(step, ids, batch, losses, model, optimizers)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Take the settings of the run."""
        self._settings = values

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Record an evaluation; what else is logged belongs to other trackers."""
        found = held_out(values, "val|validation|eval")
        if found and step is not None:
            self.tracker.validation(step, **found)

    def finish(self) -> None:
        """Complete the record."""
        if self._recorder is not None:
            self._recorder.close()
