"""TensorBoard: event files in the run folder.

View all runs with `tensorboard --logdir runs`. Values are stored as float32.
"""

from pathlib import Path

import numpy as np

from seedbed import record
from seedbed.loggers import Entry, Run, shown

_EXACT = 2**53  # hyperparameters are stored as float64: larger integers lose digits


class TensorBoard:
    """Writes event files, with the configuration as hyperparameters (HParams page)."""

    def __init__(self, run: Run, folder: str) -> None:
        from torch.utils.tensorboard.summary import hparams
        from torch.utils.tensorboard.writer import SummaryWriter

        event_folder = run.folder / folder
        # An earlier process wrote the rows before the checkpoint, and perhaps later
        # ones. Its rows from the last one before the checkpoint on are purged and
        # written again.
        history = run.history
        written = any(event_folder.glob("events.out.*"))
        first = history[-1].step if history and written else 0
        self._writer = SummaryWriter(str(event_folder), purge_step=first)
        # The metric columns of the HParams page.
        metrics = dict.fromkeys(
            ("validation/loss", f"validation/{run.monitor.name}"), 0.0
        )
        parameters = {
            key: (
                value
                if isinstance(value, int | float) and abs(value) <= _EXACT
                else str(value)
            )
            for key, value in record.flatten(shown(run.settings)).items()
        }
        begin, table, self._end = hparams(parameters, metrics)
        for summary in (begin, table):
            self._writer.file_writer.add_summary(summary)
        for entry in history:
            if entry.step >= first:
                self.log(entry)

    def log(self, entry: Entry) -> None:
        for name, value in entry.values.items():
            self._writer.add_scalar(name, value, entry.step)

    def log_figure(self, name: str, step: int, path: Path) -> None:
        from PIL import Image

        with Image.open(path) as picture:
            pixels = np.array(picture.convert("RGB"))
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def save(self) -> None:
        self._writer.flush()

    def close(self, finished: bool) -> None:
        if finished:
            self._writer.file_writer.add_summary(self._end)
        self._writer.close()
