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
        settings = dict(pl_module.hparams) if self._settings is None else self._settings
        done = _batches(trainer)
        resumed: Any = {"resume_from": done} if done > 0 and record.is_run(self._folder) else {}
        self._recorder = Recorder(self._folder, settings, **resumed, **self._options)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self._seed is not None:
            seed_step(self._seed, _batches(trainer), trainer.global_rank)

    def on_before_optimizer_step(self, _trainer: Any, pl_module: Any, _optimizer: Any) -> None:
        if self._recorder is not None:
            self._recorder.note_gradients(pl_module)  # before they are clipped

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, _index: int
    ) -> None:
        if self._recorder is not None:
            step = _batches(trainer)
            ids = None if self._ids is None else self._ids(step)
            named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
            losses = {k: v for k, v in named.items() if isinstance(v, Tensor) and v.numel() == 1}
            self._recorder.step(step, ids, batch, losses, pl_module, trainer.optimizers)

    def on_save_checkpoint(self, *_: Any) -> None:
        if self._recorder is not None:
            self._recorder.flush()

    def on_validation_end(self, trainer: Any, _pl_module: Any) -> None:
        metrics = held_out(trainer.callback_metrics, "val|validation")
        if self._recorder is not None and metrics and not trainer.sanity_checking:
            self._recorder.validation(_batches(trainer), **metrics)

    def on_fit_end(self, *_: Any) -> None:
        self._close(None)

    def on_exception(self, _trainer: Any, _pl_module: Any, exception: BaseException) -> None:
        self._close(exception)

    def _close(self, error: BaseException | None) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(None if error is None else type(error), error, None)
        self._recorder = None


def _batches(trainer: Any) -> int:
    """Return how many training batches were begun, over all epochs."""
    return int(trainer.fit_loop.total_batch_idx) + 1
