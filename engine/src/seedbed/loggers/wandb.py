"""Weights & Biases: offline by default, into the run folder.

`wandb sync RUN/wandb/offline-run-*` uploads it; logger.wandb.mode=online does so during
the run.
"""

import secrets
from pathlib import Path
from typing import Any, Literal

from seedbed import record
from seedbed.loggers import Entry, Run, shown


class WandB:
    """Logs to a single W&B run, however often the training is resumed.

    Offline, each process writes its own file, most of which is lost if it is killed,
    and the last one uploaded replaces the others
    (https://github.com/wandb/wandb/issues/3841): so each holds all rows. Online, W&B
    resumes the run and accepts steps in increasing order only, so earlier steps are not
    sent again.
    """

    def __init__(
        self,
        run: Run,
        project: str,
        mode: Literal["online", "offline", "disabled", "shared"],
    ) -> None:
        import wandb

        file = run.folder / "wandb_run_id"
        if not file.exists():
            record.write_atomically(file, f"{secrets.token_hex(8)}\n")
        offline = mode == "offline"
        self._run = wandb.init(
            project=project,
            id=file.read_text().strip(),
            name=run.folder.name,
            tags=run.settings.get("tags") or None,
            notes=run.settings.get("notes"),
            dir=str(run.folder),
            mode=mode,
            resume=None if offline else "allow",
            config=shown(run.settings),
            # The terminal belongs to the run logger; online, W&B prints the run's
            # address there.
            settings=wandb.Settings(console="off", silent=offline),
        )
        self._first = 0 if offline else self._run.step
        self._last = 0
        for entry in run.history:
            self.log(entry)

    def log(self, entry: Entry) -> None:
        self._log(entry.step, entry.values)

    def log_figure(self, name: str, step: int, path: Path) -> None:
        import wandb

        self._log(step, {name: wandb.Image(str(path))})

    def _log(self, step: int, values: dict[str, Any]) -> None:
        """Log values; those of earlier weights at the last step, since W&B drops
        earlier steps."""
        self._last = max(self._last, step)
        if self._last >= self._first:
            self._run.log(values, step=self._last)

    def save(self) -> None:
        """Do nothing: W&B cannot be told to flush, and a resumed run logs everything
        again."""

    def close(self, finished: bool) -> None:
        """End the run; one that is not finished counts as crashed until it is
        resumed."""
        self._run.finish(exit_code=0 if finished else 1)
