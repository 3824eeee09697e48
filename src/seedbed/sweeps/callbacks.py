"""Hydra's callback at the start of a sweep."""

import sys
import traceback
from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from seedbed import launch
from seedbed.config import launchers
from seedbed.errors import InputError
from seedbed.sweeps import resume_sweep


class SweepFolder(Callback):
    """Remembers where a sweep lies, so that `train.py` can report on it however it ends."""

    folder: ClassVar[Path | None] = None

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Check what the sweep is started with, and note its folder."""
        folder = Path(config.hydra.sweep.dir)
        try:
            launch.require_name("hydra.sweep.dir", config.hydra.sweep.dir)
            launchers.prepare(config.hydra)
            resume_sweep.begin(folder, config.hydra)
        except InputError as error:  # Hydra would make a warning of it
            print(f"error: {error}", file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        except OSError:  # Hydra meets it again when it writes there, and reports it
            return
        except Exception:  # of which Hydra would make a warning as well
            traceback.print_exc()
            raise SystemExit(1) from None
        SweepFolder.folder = folder
