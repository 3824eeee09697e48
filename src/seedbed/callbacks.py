"""What Hydra tells us about a sweep."""

from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class SweepFolder(Callback):
    """Remembers where a sweep lies, so that `train.py` can report on it however it ends."""

    folder: ClassVar[Path | None] = None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Note the sweep's folder."""
        SweepFolder.folder = Path(config.hydra.sweep.dir)
