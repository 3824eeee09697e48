"""The recorder as a callback of Lightning.

trainer = Trainer(callbacks=[RecorderCallback("runs/a")], ...)
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from seedbed.integrations import Recording

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

__all__ = ["RecorderCallback"]


class RecorderCallback(Recording, Callback):  # type: ignore[misc]
    """Records every training batch of `Trainer.fit`, and values logged as `val_...`.

    A step of the record is a batch, even with `accumulate_grad_batches`. Gradients are
    recorded before clipping; settings default to the module's hyperparameters. `fit`
    with `ckpt_path` resumes the record in the folder.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin(dict(pl_module.hparams), _batches(trainer))

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self._seed_step(_batches(trainer), trainer.global_rank)

    def on_before_optimizer_step(
        self, _trainer: Any, pl_module: Any, _optimizer: Any
    ) -> None:
        self._recorder.note_gradients(pl_module)  # before they are clipped

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, _index: int
    ) -> None:
        named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        losses = {
            k: v for k, v in named.items() if isinstance(v, Tensor) and v.numel() == 1
        }
        self._step(_batches(trainer), batch, losses, pl_module, trainer.optimizers)

    def on_save_checkpoint(self, *_: Any) -> None:
        if self._recorder:
            self._recorder.flush()

    def on_validation_end(self, trainer: Any, _pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._validation(
                _batches(trainer), trainer.callback_metrics, "val|validation"
            )

    def on_fit_end(self, *_: Any) -> None:
        self._close()

    def on_exception(
        self, _trainer: Any, _pl_module: Any, exception: BaseException
    ) -> None:
        self._close(exception)


def _batches(trainer: Any) -> int:
    """Return the number of training batches started, over all epochs."""
    return int(trainer.fit_loop.total_batch_idx) + 1
