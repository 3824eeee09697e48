"""The record of a user-defined training loop, one call per step: `seedbed.Recorder`."""

import atexit
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from seedbed import environment, fingerprint, record, writer
from seedbed.environment import Imports
from seedbed.errors import InputError, one_line
from seedbed.loading import process_group
from seedbed.names import STAGES
from seedbed.pipeline.tensors import contents
from seedbed.record import Origin, code, plots, untrusted
from seedbed.recorder import convert
from seedbed.training.optimizers import optimizer_tensors


class Recorder:
    """Writes a run folder that compare.py and the other tools read like any other run
    folder.

    Under torch.distributed, only rank 0 records: its own samples and losses, and the
    weights and gradients that all ranks share. Calls on other ranks do nothing. Use it
    as a context manager or call `close`, which records how the loop ended.
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
        """Start a record, or resume one.

        Args:
            folder: a folder without a record or, with `resume_from`, the folder of the
            record.
            settings: everything the run depends on: a mapping or dataclass, nested, of
                any values. The tools know `seed` and the sections `model`, `data` and
                `optimizer`.
            fingerprint_every_steps: steps between fingerprints; 0 disables them.
            write_every_steps: steps between writes; each write waits for the device.
            higher_is_better: whether higher values of the metric given to `validation`
            are better.
            resume_from: the step of the checkpoint to resume from; later rows are
            removed.

        Raises:
            InputError: the folder holds another record or is in use, or YAML cannot
            hold settings.
        """
        self._pid = os.getpid() if process_group()[0] == 0 else None
        self._is_open = True
        self._folder = Path(folder).absolute()
        self._every = fingerprint_every_steps
        self._write_every = write_every_steps
        self._higher_is_better = higher_is_better
        self._last_step = -1 if resume_from is None else resume_from
        # hash of the gradients given to `note_gradients`
        self._noted: Tensor | None = None
        self._networks: list[nn.Module] = []
        self._files = ExitStack()
        if not self._is_recording():
            return
        self._config, seed = convert.config_yaml(settings, self._every)
        opened = self._files.enter_context(convert.opened(self._folder, resume_from))
        before, self._writer = opened
        self._summary = {"seed": seed, "resumes": before.get("resumes", [])}
        self._since = time.perf_counter() - float(before.get("seconds", 0.0))
        if resume_from is None:
            record.write_atomically(self._folder / "config.yaml", self._config)
        self._write_summary("running")
        atexit.register(self._at_exit)

    def _is_recording(self) -> bool:
        """Return whether this is rank 0 and not a fork of it; raise InputError after
        `close`."""
        if self._pid != os.getpid():
            return False
        if not self._is_open:
            raise InputError(
                f"recorder: expected no call after close(): {self._folder}"
            )
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
        """Record a step; call it once, after the optimizer update and before the next
        batch.

        Gradients (`p.grad`, so after clipping unless `note_gradients` was called) and
        the learning rate are read at this call: step the scheduler afterwards. Only
        every `write_every_steps`-th call waits for the device.

        Args:
            step: its number, larger than in the previous call.
            ids: the sample ids: a tensor, an array, a list, a range, or None.
            batch: tensors, arrays, numbers and strings, nested in any way.
            losses: a scalar, or a mapping of scalars, one column each; if none is
                called `loss`, that is their sum.
            model: a module, or a list or mapping of several.
            optimizers: an optimizer, a list or mapping of several, or None.
            metric: a scalar to log in the column `metric`, or `{"accuracy": 0.9}`.
        """
        if not self._is_recording():
            return
        losses = convert.scalars(losses, "loss")
        metrics = convert.scalars(metric, "metric")
        self._check(step, self._last_step + 1, metrics, losses)
        networks, optimizers = [
            [*convert.named(each).values()] for each in (model, optimizers)
        ]
        self._begin(networks)
        rate = optimizers[0].param_groups[0].get("lr") if optimizers else None
        # a copy: schedules may change it in place
        rates = convert.scalars(rate, "learning_rate")
        stages = None
        if self._every and step % self._every == 0:
            gradients = [] if self._noted is not None else convert.gradients(networks)
            self._hasher.add(
                convert.sample_ids(ids),
                contents(batch),
                [*losses.values()],
                gradients,
                [p for network in networks for p in network.parameters()],
                [b for network in networks for b in network.buffers()],
                optimizer_tensors(*optimizers),
            )
            stages = self._hasher.hashes()
            if self._noted is not None:
                stages[STAGES.index("gradients")] = self._noted
        self._noted = None
        self._networks = networks
        if losses and "loss" not in losses:
            first, *more = losses.values()
            losses["loss"] = sum((each.to(first.device) for each in more), start=first)
        self._last_step = step
        values = {**losses, **metrics, **rates}
        if self._writer.note("train", step, values, stages) >= self._write_every:
            self.flush()

    def note_gradients(self, model: Any) -> None:
        """Record the gradients of a model, or a part of it, now: after each backward
        pass, say."""
        if not self._is_recording():
            return
        networks = convert.named(model).values()
        before = self._noted
        self._begin(networks)
        self._hasher.add(convert.gradients(networks))
        noted = self._hasher.hashes()[0]
        self._noted = (
            noted if before is None else fingerprint.of_tensors([before, noted])
        )

    def validation(self, step: int, loss: Any = None, **metrics: Any) -> None:
        """Record scalars of held-out samples after a step; `loss` may be a mapping of
        several."""
        self._evaluation("validation", step, loss, metrics)

    def test(self, step: int, loss: Any = None, **metrics: Any) -> None:
        """Record an evaluation on test samples, as `validation` does.

        Args:
            step: that of the weights, which may be earlier ones, such as the best.
        """
        self._evaluation("test", step, loss, metrics)

    def flush(self) -> None:
        """Write all rows so far, as before each checkpoint of the loop; waits for the
        device."""
        if not self._is_recording():
            return
        noted, fingerprints = self._writer.take()
        rows = [
            writer.row(
                phase, step, {convert.column(name): x for name, x in values.items()}
            )
            for phase, step, values in noted
        ]
        self._writer.append(rows, fingerprints)

    def close(self, status: str = "finished", error: str | None = None) -> None:
        """Complete the record: `status` is finished, interrupted or failed, `error` the
        reason."""
        if not self._is_open or not self._is_recording():
            return
        atexit.unregister(self._at_exit)
        with self._files:
            try:
                self.flush()
            # e.g. a GPU failed, and its tensors cannot be read
            except Exception as failure:
                status = "failed"
                error = error or one_line(failure)
                raise
            finally:
                self._is_open = False
                self._write_summary(status, error)
            if self._last_step >= 0:
                plots.loss_curve(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> None:
        if error is None:
            self.close()
        else:
            status = "failed" if isinstance(error, Exception) else "interrupted"
            self.close(status, one_line(error))

    def _begin(self, networks: Iterable[nn.Module]) -> None:
        """Record the environment and what changed on a resume, once all modules are
        imported."""
        if self._writer.imports is not None:
            return
        folder = self._folder
        step = self._last_step
        devices = (p.device for network in networks for p in network.parameters())
        device = next(devices, torch.device("cpu"))
        self._hasher = fingerprint.Hasher(device)
        script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
        is_script = script.endswith(".py") and "site-packages" not in script
        # of recorded code paths
        root = Path(script).resolve().parent if is_script else Path.cwd()
        found, (_, count) = environment.describe(device), process_group()
        found["git"], patch = code.git_state(root)
        found["versions"] |= environment.more_versions({})
        found["processes"] = {
            "count": count,
            "bits_depend_on_count": count if count > 1 else None,
        }
        imports = Imports(folder, found, root)
        imports.scan()
        if (folder / "environment.json").exists():
            made_with = record.read_environment(folder)
            before = Origin(untrusted.read_dict(folder), made_with, folder)
            record.write_atomically(folder / "config.yaml", self._config)
            imports.expect(before.imported)
            now = Origin(untrusted.read_dict(folder), imports.environment)
            changes = record.changes(before, now)
            entry = environment.keep_code(folder, step, changes)
            self._summary["resumes"] = [*self._summary["resumes"], entry]
            self._write_summary("running")
        imports.write(patch)
        self._writer.imports = imports

    def _evaluation(
        self, phase: str, step: int, loss: Any, metrics: Mapping[str, Any]
    ) -> None:
        if self._is_recording():
            losses = convert.named(loss, "loss")
            least = 0 if phase == "test" else self._last_step
            self._check(step, least, metrics, losses)
            values = convert.scalars({**losses, **metrics}, phase)
            self._writer.note(phase, step, values)
            self.flush()

    def _check(
        self, step: int, least: int, metrics: Iterable[str], losses: Iterable[str]
    ) -> None:
        """Raise InputError for a step that is too low, and for unusable or clashing
        names."""
        if type(step) is not int or step < least:
            raise InputError(
                f"step: expected an integer of at least {least}, since"
                f" {self._last_step} was the last one recorded, got {step!r}"
            )
        columns = [convert.column(name) for name in (*metrics, *losses)]
        if len({*columns}) < len(columns) or not all(
            0 < len(name) <= 100 for name in columns
        ):
            raise InputError(
                "losses, metric: expected different names of 1 to 100 letters, digits"
                f" and _, got {', '.join(columns)[:200]}"
            )
        others = {*record.METRIC_FIELDS} - {"loss"}
        if taken := {*metrics} & {"loss", *losses} | {*columns} & others:
            raise InputError(
                f"losses, metric: expected names of new columns, got {min(taken)}"
            )

    def _write_summary(self, status: str, error: str | None = None) -> None:
        """Write summary.json; the weights that count are those that were tested, or the
        last."""
        results = self._writer.results
        name = next((name for name in results.names if name != "loss"), "loss")
        monitor = record.Monitor(name, self._higher_is_better and name != "loss")
        tested = results.tested_step
        parameters = [p for each in self._networks for p in each.parameters()]
        tensors = [
            t for each in self._networks for t in (*each.parameters(), *each.buffers())
        ]
        weights = fingerprint.text_of(tensors) if tensors else None
        step_that_counts = results.last_step if tested is None else tested
        common = self._writer.summary(
            monitor, step_that_counts, tested, parameters, weights
        )
        values = {
            "status": status,
            "error": error,
            "steps": max(self._last_step, 0),
            "seconds": time.perf_counter() - self._since,
            **self._summary,
            **common,
            "best_step": results.best_step(monitor),
        }
        record.write_summary(self._folder, values)

    def _at_exit(self) -> None:
        """Close the record if the loop did not; Python has set `sys.last_value` on an
        error."""
        early = SystemExit("the process ended before Recorder.close()")
        self.__exit__(None, getattr(sys, "last_value", early), None)
