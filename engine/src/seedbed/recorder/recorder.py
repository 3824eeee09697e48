"""Writes the record of a training loop of one's own, one call a step."""

import atexit
import os
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from seedbed import fingerprint, record
from seedbed.errors import InputError
from seedbed.loading import process_group
from seedbed.names import STAGES
from seedbed.record import code
from seedbed.recorder import ending
from seedbed.recorder import folder as folders
from seedbed.recorder import step as parts
from seedbed.recorder.results import Results
from seedbed.recorder.settings import config_yaml, plain
from seedbed.recorder.tables import Tables
from seedbed.worker.imports import Imports

_GRADIENTS = STAGES.index("gradients")


class Recorder:
    """Writes a run folder that compare.py and the other readers of records read like any other.

    Under torch.distributed, rank 0 records its own samples and losses, and the weights and
    gradients that all ranks share; the others' calls do nothing. As a context manager, or by
    `close`, it notes how the loop ended.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        settings: object = None,
        *,
        fingerprint_every_steps: int = 1,
        write_every_steps: int = 20,
        steps_per_epoch: int | None = None,
        higher_is_better: bool = True,
        resume_from: int | None = None,
    ) -> None:
        """Begin a record, or go on with one.

        Args:
            folder: a new one, or with `resume_from` that of the record.
            settings: whatever the run depends on: a mapping or a dataclass, nested, of any values.
                `seed` and sections `model`, `data`, `optimizer` are known to the readers.
            fingerprint_every_steps: steps between two fingerprints; 0: none.
            write_every_steps: steps between two writes, each of which waits for the device.
            steps_per_epoch: fills the column `epoch`.
            higher_is_better: of the metric that `validation` is given.
            resume_from: the last step of the checkpoint that the loop goes on from; later rows of
                the record are cut off.

        Raises:
            InputError: the folder holds another record or is in use, or the settings cannot be
                written.
        """
        parts.require_steps("fingerprint_every_steps", fingerprint_every_steps, least=0)
        parts.require_steps("write_every_steps", write_every_steps, least=1)
        parts.require_steps("steps_per_epoch", steps_per_epoch, least=1, optional=True)
        parts.require_steps("resume_from", resume_from, least=0, optional=True)
        self._is_first = process_group()[0] == 0
        self._is_open = True
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._folder = Path(folder).absolute()
        self._every, self._write_every = fingerprint_every_steps, write_every_steps
        self._steps_per_epoch = steps_per_epoch
        self._resumed_from = resume_from
        self._last_step = -1 if resume_from is None else resume_from
        self._hasher: fingerprint.Hasher | None = None
        self._noted: list[Tensor] = []  # hashes of gradients that were noted before the step
        self._model: Any = None
        self._files = ExitStack()
        if self._records:
            self._settings = plain(settings)
            self._config = config_yaml(self._settings, fingerprint_every_steps)
            self._open(higher_is_better)

    def step(
        self,
        step: int,
        ids: Any,
        batch: Any,
        losses: Any,
        model: Any,
        optimizers: Any,
        *,
        metric: Any = None,
    ) -> None:
        """Record a step; to be called once, after the optimizers' update, before the next batch.

        The gradients are those in `p.grad` at the call, so after clipping; to record them before,
        or where they are gone by now, call `note_gradients` after the backward pass. The learning
        rate is that of the call: step the schedule afterwards. Nothing waits for the device, but
        for every `write_every_steps`-th call.

        Args:
            step: its number, larger than that of the call before.
            ids: of the samples: a tensor, an array, a list, a range, or None.
            batch: tensors, arrays, numbers and texts, nested in any way.
            losses: a scalar, or a mapping of scalars, each with a column; `loss`, or else their
                sum, is the loss.
            model: a module, or a list or a mapping of several.
            optimizers: one, or a list or a mapping of several, or None.
            metric: a scalar to log, whose column is `metric`, or a mapping of scalars by name, such
                as `{"accuracy": 0.9}`.

        Raises:
            InputError: an argument is of another kind, or the step is not a later one.
        """
        if not self._records:
            return
        with self._lock:
            self._require_open()
            if type(step) is not int or not self._last_step < step < parts.MOST:
                raise InputError(
                    f"step: expected an integer above {self._last_step}, the last one recorded, "
                    f"got {step!r}; count every step once"
                )
            named = parts.named_losses(losses)
            metrics = parts.named_metrics(metric)
            if self._hasher is None:
                self._begin(parts.modules(model))
            if self._every and step % self._every == 0:
                self._tables.add_stages(step, self._stages(ids, batch, named, model, optimizers))
            self._noted = []
            self._model = model
            rate = parts.learning_rate(optimizers)
            unwritten = self._tables.add_step(step, {**parts.values(named), **metrics}, rate)
            self._last_step = step
            if unwritten >= self._write_every:
                self._tables.write()

    def note_gradients(self, model: Any) -> None:
        """Take the gradients of this step now, instead of those at the call of `step`.

        Args:
            model: as for `step`, or a part of it. More than one call a step is fine.
        """
        if not self._records:
            return
        networks = parts.modules(model)
        with self._lock:
            self._require_open()
            hasher = self._hasher or fingerprint.Hasher(parts.device(networks))
            hasher.add(parts.gradients(networks))
            self._noted.append(hasher.hashes()[0])

    def validation(self, step: int, loss: Any = None, **metrics: Any) -> None:
        """Record an evaluation on held-out samples after a step; each value is a column.

        Args:
            loss, metrics: scalars, such as `accuracy=0.9`.
        """
        self._evaluation("validation", step, loss, metrics)

    def test(self, step: int, loss: Any = None, **metrics: Any) -> None:
        """Record an evaluation on test samples after a step, as `validation` does."""
        self._evaluation("test", step, loss, metrics)

    def flush(self) -> None:
        """Write down what was recorded so far; waits for the device.

        To be called with each checkpoint that a loop may go on from.
        """
        if self._records:
            with self._lock:
                self._require_open()
                self._tables.write()

    def close(self, status: str = "finished", error: str | None = None) -> None:
        """Complete the record: summary and loss curve. Calling it again does nothing.

        Args:
            status: finished, interrupted or failed.
            error: why, in a line.
        """
        with self._lock:
            if not self._records or not self._is_open:
                return
            self._is_open = False
        atexit.unregister(self._at_exit)
        with self._lock, self._files:
            self._tables.write()
            self._write_summary(status, error)
            if self._last_step >= 0:
                from seedbed.record import plots  # matplotlib takes a second

                plots.loss_curve(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close(*ending.of(error))

    @property
    def _records(self) -> bool:  # no other rank writes, and no fork
        return self._is_first and self._pid == os.getpid()

    def _require_open(self) -> None:
        if not self._is_open:
            raise InputError(
                f"recorder: expected calls before close(), got one after it; {self._folder} is "
                "complete"
            )

    def _open(self, higher_is_better: bool) -> None:
        resumes, before = self._resumed_from is not None, {}
        if resumes:
            before = folders.require_resumable(self._folder)
        else:
            folders.create(self._folder)
        self._files.enter_context(record.lock(self._folder))
        self._results = Results(higher_is_better, self._steps_per_epoch, before)
        self._tables = Tables(self._folder, self._results, self._resumed_from)
        self._files.callback(self._tables.close)
        if not resumes:
            record.write_atomically(self._folder / "config.yaml", self._config)
        self._root = folders.script_folder()
        self._git, self._patch = code.git_state(self._root)
        self._since = time.perf_counter()
        self._write_summary("running")
        atexit.register(self._at_exit)

    def _begin(self, networks: list[torch.nn.Module]) -> None:
        """Note the environment, now that the loop has imported what it uses."""
        parts.require_weights(networks)
        device = parts.device(networks)
        self._hasher = fingerprint.Hasher(device)
        found = folders.describe(device, self._git)
        imports = Imports(self._folder, found, self._root)
        entry = folders.write(self._folder, self._config, imports, self._patch, self._resumed_from)
        if entry is not None:
            self._results.resumes.append(entry)
            self._write_summary("running")
        self._tables.imports = imports

    def _stages(
        self, ids: Any, batch: Any, named: Mapping[str, Tensor], model: Any, optimizers: Any
    ) -> Tensor:
        assert self._hasher is not None
        gradients = [] if self._noted else parts.gradients(model)
        self._hasher.add(
            parts.sample_ids(ids),
            parts.contents(batch),
            list(named.values()),
            gradients,
            *parts.state(model, optimizers),
        )
        stages = self._hasher.hashes()
        if self._noted:
            one = len(self._noted) == 1
            stages[_GRADIENTS] = self._noted[0] if one else fingerprint.of_tensors(self._noted)
        return stages

    def _evaluation(self, phase: str, step: int, loss: Any, metrics: Mapping[str, Any]) -> None:
        if not self._records:
            return
        if type(step) is not int or step < self._last_step:
            raise InputError(
                f"step: expected an integer of at least {self._last_step}, the last one recorded, "
                f"got {step!r}; record an evaluation after its step"
            )
        with self._lock:
            self._require_open()
            self._tables.write_row(self._results.evaluation_row(phase, step, loss, metrics))

    def _write_summary(self, status: str, error: str | None = None) -> None:
        since, self._since = self._since, time.perf_counter()
        self._results.seconds += self._since - since
        networks = [] if self._model is None else parts.modules(self._model)
        tensors = [t for each in networks for t in (*each.parameters(), *each.buffers())]
        weights = fingerprint.text(int(fingerprint.of_tensors(tensors))) if tensors else None
        values = {
            "format_version": record.FORMAT_VERSION,
            "status": status,
            "error": error,
            "seed": self._settings.get("seed"),
            **self._results.summary(max(self._last_step, 0)),
            "parameters": sum(p.numel() for each in networks for p in each.parameters()),
            "fingerprints": {
                "weights": weights,
                "predictions": None,
                "all_steps": fingerprint.of_file(self._folder / "fingerprints.csv"),
            },
        }
        record.write_json(self._folder / "summary.json", values)

    def _at_exit(self) -> None:
        """Note how a process ended that did not close its record."""
        self.close(*ending.of_process())
