"""The recorder as a callback of Lightning.

trainer = Trainer(callbacks=[RecorderCallback("runs/a")], ...)
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from seedbed import record
from seedbed.integrations.metrics import held_out
from seedbed.loading import seed_step
from seedbed.recorder import Recorder

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback


class RecorderCallback(Callback):  # type: ignore[misc]
    """Records every training batch of `Trainer.fit`, and what is logged as `val_...`.

    A step of the record is a batch, also with `accumulate_grad_batches`. Gradients are those before
    clipping. A `fit` with `ckpt_path` goes on with the record in the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        settings: object = None,
        *,
        seed: int | None = None,
        ids: Callable[[int], Any] | None = None,
        **options: Any,
    ) -> None:
        """Prepare to record.

        Args:
            folder: the run folder.
            settings: as `Recorder` takes them; the module's hyperparameters if None.
            seed: if given, the global generators are seeded by it and the step before each batch,
                so that dropout is the same after a resume.
            ids: returns the sample ids of a step, such as `seeded_loader(...).ids`.
            options: more of `Recorder`'s.
        """
        self._folder, self._settings = Path(folder), settings
        self._seed, self._ids, self._options = seed, ids, options
        self._recorder: Recorder | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the record, or go on with it after the steps of a checkpoint."""
        settings = dict(pl_module.hparams) if self._settings is None else self._settings
        done = _batches(trainer)
        resumes = done > 0 and record.is_run(self._folder)
        self._recorder = Recorder(
            self._folder, settings, resume_from=done if resumes else None, **self._options
        )

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Seed the step."""
        if self._seed is not None:
            seed_step(self._seed, _batches(trainer), trainer.global_rank)

    def on_before_optimizer_step(self, _trainer: Any, pl_module: Any, _optimizer: Any) -> None:
        """Take the gradients, before they are clipped."""
        if self._recorder is not None:
            self._recorder.note_gradients(pl_module)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, _index: int
    ) -> None:
        """Record the step."""
        if self._recorder is not None:
            step = _batches(trainer)
            ids = None if self._ids is None else self._ids(step)
            losses = _scalars(outputs)
            self._recorder.step(step, ids, batch, losses, pl_module, trainer.optimizers)

    def on_save_checkpoint(self, *_: Any) -> None:
        """Write down what a resume from this checkpoint goes on with."""
        if self._recorder is not None:
            self._recorder.flush()

    def on_validation_end(self, trainer: Any, _pl_module: Any) -> None:
        """Record what was logged as `val_...` or `validation_...`."""
        found = held_out(trainer.callback_metrics, "val|validation")
        if self._recorder is not None and found and not trainer.sanity_checking:
            self._recorder.validation(_batches(trainer), **found)

    def on_fit_end(self, *_: Any) -> None:
        """Complete the record."""
        self._close(None)

    def on_exception(self, _trainer: Any, _pl_module: Any, exception: BaseException) -> None:
        """Note how the loop ended."""
        self._close(exception)

    def _close(self, error: BaseException | None) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(None if error is None else type(error), error, None)
        self._recorder = None


def _batches(trainer: Any) -> int:
    """Return how many training batches were begun, over all epochs."""
    return int(trainer.fit_loop.total_batch_idx) + 1


def _scalars(outputs: Any) -> dict[str, Any]:
    """Return the losses that a `training_step` returned."""
    named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
    return {k: v for k, v in named.items() if isinstance(v, Tensor) and v.numel() == 1}
