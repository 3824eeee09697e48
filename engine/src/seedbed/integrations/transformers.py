"""The recorder as a callback of transformers' Trainer.

trainer = Trainer(model, args, callbacks=[RecorderCallback("runs/a")], ...)
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import TrainerCallback

from seedbed.integrations import Recording

__all__ = ["RecorderCallback"]


class RecorderCallback(Recording, TrainerCallback):  # type: ignore[misc]
    """Records every update of `Trainer.train`, and every evaluation.

    Batch and loss are the model's inputs and the loss it returned, taken by a forward
    hook; with gradient accumulation, those of all forward passes of the step. Gradients
    are recorded after clipping; settings default to the training arguments.
    `train(resume_from_checkpoint=...)` resumes the record in the folder.
    """

    def on_train_begin(
        self, args: Any, state: Any, _control: Any, **others: Any
    ) -> None:
        self._begin(args.to_dict(), state.global_step)
        self._hook = others["model"].register_forward_hook(self._note, with_kwargs=True)
        self._batches: list[Any] = []
        self._losses: list[Tensor] = []

    def on_step_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        self._seed_step(state.global_step + 1, args.process_index)

    def on_optimizer_step(
        self, _args: Any, state: Any, _control: Any, **others: Any
    ) -> None:
        parts = self._batches, self._losses, others["model"], others["optimizer"]
        self._step(state.global_step + 1, *parts)  # global_step is not increased yet
        self._batches = []
        self._losses = []

    def on_save(self, *_: Any, **__: Any) -> None:
        if self._recorder:
            self._recorder.flush()

    def on_evaluate(
        self,
        _args: Any,
        state: Any,
        _control: Any,
        metrics: Mapping[str, Any],
        **_: Any,
    ) -> None:
        self._validation(state.global_step, metrics, "eval")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._hook.remove()
        self._close()

    def _note(
        self, module: Any, args: Any, kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if not module.training:
            return
        self._batches.append((args, kwargs))
        loss = output.get("loss") if isinstance(output, Mapping) else None
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            loss = output[0]  # with return_dict=False
        if loss is not None and loss.numel() == 1:
            self._losses.append(loss.detach())
