"""Writes the record of a training loop of one's own, one call a step."""

import atexit
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

import torch
from torch import Tensor, nn

from seedbed import fingerprint, record
from seedbed.errors import InputError, one_line
from seedbed.loading import process_group
from seedbed.names import STAGES
from seedbed.record import code
from seedbed.recorder import folder as folders
from seedbed.recorder import step as parts
from seedbed.recorder.settings import config_yaml
from seedbed.training.optimizers import optimizer_tensors
from seedbed.worker.imports import Imports

_P = ParamSpec("_P")
_Method = Callable[Concatenate["Recorder", _P], None]
_GRADIENTS = STAGES.index("gradients")


def _recording(method: _Method[_P]) -> _Method[_P]:
    """Call a method unless this is another rank, or a fork."""

    @wraps(method)
    def call(self: "Recorder", /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if self._is_first and self._pid == os.getpid():
            if not self._is_open:
                raise InputError(f"recorder: expected no call after close(): {self._folder}")
            method(self, *args, **kwargs)

    return call


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
        """Begin a record, or resume one.

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
        self._is_first, self._pid = process_group()[0] == 0, os.getpid()
        self._is_open = True
        self._folder = Path(folder).absolute()
        self._every, self._write_every = fingerprint_every_steps, write_every_steps
        self._steps_per_epoch, self._higher_is_better = steps_per_epoch, higher_is_better
        self._resumed_from = resume_from
        self._last_step = -1 if resume_from is None else resume_from
        self._hasher: fingerprint.Hasher | None = None
        self._noted: list[Tensor] = []  # hashes of gradients that were noted before the step
        self._networks: list[nn.Module] = []
        self._pending: list[tuple[int, dict[str, Tensor], Any]] = []  # steps to be written
        self._stages: list[tuple[int, Tensor]] = []
        self._imports: Imports | None = None
        self._files = ExitStack()
        self._open(settings)

    @_recording
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
        """
        self._require_step(step, self._last_step + 1)
        named, metrics = parts.scalars(losses, "loss"), parts.scalars(metric, "metric")
        networks, optimizers = parts.several(model), parts.several(optimizers)
        if self._hasher is None:
            self._hasher = self._begin(networks)
        rate = optimizers[0].param_groups[0].get("lr") if optimizers else None
        if isinstance(rate, Tensor):  # which schedules change in place
            rate = rate.detach().clone()
        if self._every and step % self._every == 0:
            gradients = [] if self._noted else parts.gradients(networks)
            self._hasher.add(
                parts.sample_ids(ids), parts.contents(batch), list(named.values()), gradients,
                [p for network in networks for p in network.parameters()],
                [b for network in networks for b in network.buffers()],
                optimizer_tensors(*optimizers),
            )  # fmt: skip
            stages = self._hasher.hashes()
            if self._noted:
                several = len(self._noted) > 1
                noted = fingerprint.of_tensors(self._noted) if several else self._noted[0]
                stages[_GRADIENTS] = noted
            self._stages.append((step, stages))
        self._noted, self._networks = [], networks
        if named and "loss" not in named:
            first, *more = named.values()
            named["loss"] = sum((each.to(first.device) for each in more), start=first)
        self._pending.append((step, {**named, **metrics}, rate))
        self._last_step = step
        if len(self._pending) >= self._write_every:
            self._write()

    @_recording
    def note_gradients(self, model: Any) -> None:
        """Take the gradients of this step now, instead of those at the call of `step`.

        Args:
            model: as for `step`, or a part of it. More than one call a step is fine.
        """
        networks = parts.several(model)
        hasher = self._hasher or fingerprint.Hasher(_device(networks))
        hasher.add(parts.gradients(networks))
        self._noted.append(hasher.hashes()[0])

    def validation(self, step: int, loss: Any = None, **metrics: Any) -> None:
        """Record an evaluation on held-out samples after a step; each value is a column.

        Args:
            loss, metrics: scalars, such as `accuracy=0.9`.
        """
        self._evaluation("validation", step, {"loss": loss, **metrics})

    def test(self, step: int, loss: Any = None, **metrics: Any) -> None:
        """Record an evaluation on test samples after a step, as `validation` does."""
        self._evaluation("test", step, {"loss": loss, **metrics})

    @_recording
    def flush(self) -> None:
        """Write down what was recorded so far; waits for the device.

        To be called with each checkpoint that a loop may go on from.
        """
        self._write()

    def close(self, status: str = "finished", error: str | None = None) -> None:
        """Complete the record: summary and loss curve. Calling it again does nothing.

        Args:
            status: finished, interrupted or failed.
            error: why, in a line.
        """
        if self._is_open:
            self._close(status, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            status = "failed" if isinstance(error, Exception) else "interrupted"
            self.close(status, one_line(error))

    @_recording
    def _open(self, settings: object) -> None:
        self._config, seed = config_yaml(settings, self._every)
        before = folders.begin(self._folder, self._resumed_from)
        self._summary = {"seed": seed, "resumes": before.get("resumes", [])}
        self._since = time.perf_counter() - float(before.get("seconds", 0.0))
        self._files.enter_context(record.lock(self._folder))
        self._metrics, self._fingerprints = folders.tables(self._folder, self._resumed_from)
        for table in (self._metrics, self._fingerprints):
            self._files.callback(table.close)
        if self._resumed_from is None:
            record.write_atomically(self._folder / "config.yaml", self._config)
        self._root = folders.script_folder()
        self._git, self._patch = code.git_state(self._root)
        self._write_summary("running")
        atexit.register(self._at_exit)

    def _begin(self, networks: list[nn.Module]) -> fingerprint.Hasher:
        """Note the environment, now that the loop has imported what it uses."""
        device = _device(networks)
        imports = Imports(self._folder, folders.describe(device, self._git), self._root)
        imports.look()
        if self._resumed_from is not None and (self._folder / "environment.json").exists():
            change = folders.resumed(self._folder, self._config, imports, self._resumed_from)
            self._summary["resumes"] = [*self._summary["resumes"], change]
            self._write_summary("running")
        imports.write(self._patch)
        self._imports = imports
        return fingerprint.Hasher(device)

    def _write(self) -> None:
        """Write down the steps since the last time; waits for the device."""
        rows = []
        for step, values, rate in self._pending:
            row = self._row("train", step, values)
            rows.append(row | {"learning_rate": "" if rate is None else repr(float(rate))})
        stages = fingerprint.rows(self._stages)
        self._pending, self._stages = [], []
        self._metrics.append(rows)
        self._fingerprints.append(stages)
        if self._imports is not None and rows:
            self._imports.note(rows)

    def _row(self, phase: str, step: int, values: Mapping[str, Any]) -> dict[str, object]:
        """Return a row of metrics.csv; what its reader would not take in a name becomes _."""
        cells = {re.sub(r"[^\w.@/-]", "_", name): repr(float(x)) for name, x in values.items()}
        epoch = repr(step / self._steps_per_epoch) if self._steps_per_epoch else ""
        return {**cells, "step": step, "epoch": epoch, "phase": phase}

    @_recording
    def _evaluation(self, phase: str, step: int, values: Mapping[str, Any]) -> None:
        self._require_step(step, self._last_step)
        row = self._row(phase, step, {k: v for k, v in values.items() if v is not None})
        self._write()
        self._metrics.append([row])

    def _require_step(self, step: int, least: int) -> None:
        if type(step) is not int or step < least:
            raise InputError(
                f"step: expected an integer of at least {least}, since {self._last_step} was the "
                f"last one recorded, got {step!r}"
            )

    def _write_summary(self, status: str, error: str | None = None) -> None:
        tensors = [t for each in self._networks for t in (*each.parameters(), *each.buffers())]
        weights = fingerprint.text(int(fingerprint.of_tensors(tensors))) if tensors else None
        values = {
            "format_version": record.FORMAT_VERSION,
            "status": status,
            "error": error,
            "task": None,
            "steps": max(self._last_step, 0),
            "seconds": time.perf_counter() - self._since,
            **self._summary,
            **folders.metrics(record.read_metrics(self._folder), self._higher_is_better),
            "parameters": sum(p.numel() for each in self._networks for p in each.parameters()),
            "fingerprints": {
                "weights": weights,
                "predictions": None,
                "all_steps": fingerprint.of_file(self._folder / "fingerprints.csv"),
            },
        }
        record.write_json(self._folder / "summary.json", values)

    @_recording
    def _close(self, status: str, error: str | None) -> None:
        self._is_open = False
        atexit.unregister(self._at_exit)
        with self._files:
            self._write()
            self._write_summary(status, error)
            if self._last_step >= 0:
                from seedbed.record import plots  # matplotlib takes a second

                plots.loss_curve(self._folder)

    def _at_exit(self) -> None:
        """Note how a process ended that did not close its record; an error was printed by then."""
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.__exit__(None, error, None)
        else:
            self.close("interrupted", "the process ended before Recorder.close()")


def _device(networks: list[nn.Module]) -> torch.device:
    """Return where the first weight lies."""
    devices = (parameter.device for network in networks for parameter in network.parameters())
    return next(devices, torch.device("cpu"))
