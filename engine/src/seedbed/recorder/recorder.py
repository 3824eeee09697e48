"""Writes the record of a training loop of one's own, one call a step."""

import atexit
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

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
            higher_is_better: of the metric that `validation` is given.
            resume_from: the last step of the checkpoint that the loop goes on from; later rows of
                the record are cut off.

        Raises:
            InputError: the folder holds another record or is in use, or the settings cannot be
                written.
        """
        self._pid = os.getpid() if process_group()[0] == 0 else None
        self._is_open = True
        self._folder = Path(folder).absolute()
        self._every, self._write_every = fingerprint_every_steps, write_every_steps
        self._higher_is_better, self._resumed_from = higher_is_better, resume_from
        self._last_step = -1 if resume_from is None else resume_from
        self._hasher: fingerprint.Hasher | None = None
        self._noted: Tensor | None = None  # hash of gradients that were noted before the step
        self._networks: list[nn.Module] = []
        self._pending: list[tuple[int, dict[str, Tensor]]] = []  # steps to be written
        self._stages: list[tuple[int, Tensor]] = []
        self._imports: Imports | None = None
        self._files = ExitStack()
        if self._is_recording():
            self._open(settings)

    def _is_recording(self) -> bool:
        """Return whether this process records: the first rank does, and no fork of it."""
        if self._pid != os.getpid():
            return False
        if not self._is_open:
            raise InputError(f"recorder: expected no call after close(): {self._folder}")
        return True

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
        if not self._is_recording():
            return
        self._require_step(step, self._last_step + 1)
        named, metrics = parts.scalars(losses, "loss"), parts.scalars(metric, "metric")
        _require_free(metrics, (*record.METRIC_FIELDS, *named))
        networks, optimizers = parts.several(model), parts.several(optimizers)
        if self._hasher is None:
            self._hasher = self._begin(networks)
        rate = optimizers[0].param_groups[0].get("lr") if optimizers else None
        rates = parts.scalars(rate, "learning_rate")  # a copy: schedules may change it in place
        if self._every and step % self._every == 0:
            gradients = [] if self._noted is not None else parts.gradients(networks)
            self._hasher.add(
                parts.sample_ids(ids), parts.contents(batch), list(named.values()), gradients,
                [p for network in networks for p in network.parameters()],
                [b for network in networks for b in network.buffers()],
                optimizer_tensors(*optimizers),
            )  # fmt: skip
            stages = self._hasher.hashes()
            if self._noted is not None:
                stages[_GRADIENTS] = self._noted
            self._stages.append((step, stages))
        self._noted, self._networks = None, networks
        if named and "loss" not in named:
            first, *more = named.values()
            named["loss"] = sum((each.to(first.device) for each in more), start=first)
        self._pending.append((step, {**named, **metrics, **rates}))
        self._last_step = step
        if len(self._pending) >= self._write_every:
            self._write()

    def note_gradients(self, model: Any) -> None:
        """Take the gradients of a model, or a part of it, now instead of at the call of `step`.

        More than one call a step is fine.
        """
        if not self._is_recording():
            return
        gradients, before = parts.gradients(parts.several(model)), self._noted
        if self._hasher is None:  # before the first step
            noted = fingerprint.of_tensors(gradients)
        else:
            self._hasher.add(gradients)
            noted = self._hasher.hashes()[0]
        self._noted = noted if before is None else fingerprint.of_tensors([before, noted])

    def validation(self, step: int, loss: Any = None, **metrics: Any) -> None:
        """Record scalars, such as `accuracy=0.9`, of held-out samples after a step, as columns."""
        self._evaluation("validation", step, loss, metrics)

    def test(self, step: int, loss: Any = None, **metrics: Any) -> None:
        """Record an evaluation on test samples after a step, as `validation` does."""
        self._evaluation("test", step, loss, metrics)

    def flush(self) -> None:
        """Write down what was recorded so far; waits for the device.

        To be called with each checkpoint that a loop may go on from.
        """
        if self._is_recording():
            self._write()

    def close(self, status: str = "finished", error: str | None = None) -> None:
        """Complete the record: summary and loss curve. Calling it again does nothing.

        `status` is finished, interrupted or failed; `error` says why, in a line.
        """
        if not self._is_open or not self._is_recording():
            return
        self._is_open = False
        atexit.unregister(self._at_exit)
        with self._files:
            self._write()
            self._write_summary(status, error)
            if self._last_step >= 0:
                from seedbed.record import plots  # matplotlib takes a second

                plots.loss_curve(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            self.close()
        else:
            status = "failed" if isinstance(error, Exception) else "interrupted"
            self.close(status, one_line(error))

    def _open(self, settings: object) -> None:
        self._config, seed = config_yaml(settings, self._every)
        before = folders.begin(self._folder, self._resumed_from)
        self._summary = {"seed": seed, "resumes": before.get("resumes", [])}
        self._since = time.perf_counter() - float(before.get("seconds", 0.0))
        self._files.enter_context(record.lock(self._folder))
        self._metrics, self._fingerprints = folders.open_tables(self._folder, self._resumed_from)
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
        parameters = (parameter for network in networks for parameter in network.parameters())
        device = next((parameter.device for parameter in parameters), torch.device("cpu"))
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
        rows = [self._row("train", step, values) for step, values in self._pending]
        stages = fingerprint.rows(self._stages)
        self._pending, self._stages = [], []
        self._metrics.append(rows)
        self._fingerprints.append(stages)
        if self._imports is not None and rows:
            self._imports.note()

    def _row(self, phase: str, step: int, values: Mapping[str, Any]) -> dict[str, object]:
        """Return a row of metrics.csv; what its reader would not take in a name becomes _."""
        cells = {re.sub(r"[^\w.@/-]", "_", name): repr(float(x)) for name, x in values.items()}
        return {**cells, "step": step, "phase": phase}

    def _evaluation(self, phase: str, step: int, loss: Any, metrics: Mapping[str, Any]) -> None:
        if self._is_recording():
            self._require_step(step, self._last_step)
            _require_free(metrics, record.METRIC_FIELDS)
            values = {"loss": loss, **metrics}
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
        all_steps = fingerprint.of_file(self._folder / "fingerprints.csv")
        values = {
            "format_version": record.FORMAT_VERSION,
            "status": status,
            "error": error,
            "steps": max(self._last_step, 0),
            "seconds": time.perf_counter() - self._since,
            **self._summary,
            **folders.metrics(record.read_metrics(self._folder), self._higher_is_better),
            "parameters": sum(p.numel() for each in self._networks for p in each.parameters()),
            "fingerprints": {"weights": weights, "all_steps": all_steps},
        }
        record.write_json(self._folder / "summary.json", values)

    def _at_exit(self) -> None:
        """Note how a process ended that did not close its record; an error was printed by then."""
        early = SystemExit("the process ended before Recorder.close()")
        self.__exit__(None, getattr(sys, "last_value", early), None)


def _require_free(metrics: Iterable[str], columns: Iterable[str]) -> None:
    """Refuse metrics by the names of other columns: one of the two would be lost."""
    if taken := {*metrics} & {*columns}:
        raise InputError(f"metric: expected a name that no other column has, got {min(taken)}")
