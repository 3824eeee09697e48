"""The recorder as a callback of the Trainer of transformers.

trainer = Trainer(model, args, callbacks=[RecorderCallback("runs/a")], ...)
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerCallback

from seedbed import record
from seedbed.integrations.metrics import held_out
from seedbed.loading import seed_step
from seedbed.recorder import Recorder


class RecorderCallback(TrainerCallback):  # type: ignore[misc]
    """Records every update of `Trainer.train`, and every evaluation.

    The batch is what the model was called with, the loss what it returned, both by a forward hook;
    with gradient accumulation those of all calls of the step. Gradients are those after clipping.
    `train(resume_from_checkpoint=...)` goes on with the record in the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        settings: object = None,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """Prepare to record.

        Args:
            settings: as `Recorder` takes them; the training arguments if None.
            seed: if given, the global generators are seeded by it and the step before each step,
                so that dropout is the same after a resume.
            options: more of `Recorder`'s.
        """
        self._folder, self._settings, self._seed = Path(folder), settings, seed
        self._options = options
        self._recorder: Recorder | None = None
        self._hook: Any = None
        self._batches: list[Any] = []
        self._losses: list[Tensor] = []

    def on_train_begin(self, args: Any, state: Any, _control: Any, **others: Any) -> None:
        settings = args.to_dict() if self._settings is None else self._settings
        done = state.global_step
        resumed: Any = {"resume_from": done} if done > 0 and record.is_run(self._folder) else {}
        self._recorder = Recorder(self._folder, settings, **resumed, **self._options)
        self._hook = others["model"].register_forward_hook(self._note, with_kwargs=True)

    def on_step_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        if self._seed is not None:
            seed_step(self._seed, state.global_step + 1, args.process_index)

    def on_optimizer_step(self, _args: Any, state: Any, _control: Any, **others: Any) -> None:
        if self._recorder is not None:  # the step is not counted yet
            parts = self._batches, self._losses, others["model"], others["optimizer"]
            self._recorder.step(state.global_step + 1, None, *parts)
        self._batches, self._losses = [], []

    def on_save(self, *_: Any, **__: Any) -> None:
        if self._recorder is not None:
            self._recorder.flush()

    def on_evaluate(
        self, _args: Any, state: Any, _control: Any, metrics: Mapping[str, Any], **_: Any
    ) -> None:
        found = held_out(metrics, "eval")
        if self._recorder is not None and found:
            self._recorder.validation(state.global_step, **found)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        if self._recorder is not None:
            self._hook.remove()
            self._recorder.close()
            self._recorder = None

    def _note(self, module: Any, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        if not module.training:
            return
        self._batches.append((args, kwargs))
        loss = output.get("loss") if isinstance(output, Mapping) else None
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            loss = output[0]  # with return_dict=False
        if loss is not None and loss.numel() == 1:
            self._losses.append(loss.detach())
