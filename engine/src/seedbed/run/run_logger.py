"""The run logger: what a run writes besides its tables, and when."""

import math
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch_deterministic_kernels as kernels
from torch import Tensor
from tqdm import tqdm

from seedbed import fingerprint, record, signals, writer
from seedbed.assemble import Parts
from seedbed.config import Request
from seedbed.environment import Imports
from seedbed.errors import InputError
from seedbed.launch import pruning
from seedbed.methods import Run
from seedbed.record import chain, results
from seedbed.run.failures import NotFinite
from seedbed.run.job import Job
from seedbed.run.rehearse import Rehearsed
from seedbed.run.restore import is_kept
from seedbed.training import (
    checkpoint,
    digests,
    evaluate,
    predictions,
    scaling,
    schedules,
)
from seedbed.training.loop import Logger
from seedbed.training.state import Evaluation, Plan, Progress
from seedbed.writer import Writer

_RATE = "learning_rate"  # and before the names of groups, in metrics.csv
# Entries of summary.json that hold for a run from its start to its end.
_HISTORY = ("seed", "command", "resumes", "warnings", "status", "error")


class RunLogger(Logger):
    """Writes the record of a run; see `training.loop.fit` for when it is called.

    The tables are `writer.Writer`'s. Here are checkpoints, the chain, terminal output,
    warnings, and which rows are due.
    """

    def __init__(
        self,
        job: Job,
        parts: Parts,
        imports: Imports,
        state: dict[str, Any],
        rehearsed: Rehearsed,
    ) -> None:
        """Start the tables, or cut them back to the checkpoint if the run is
        resumed."""
        self._job = job
        self._parts = parts
        self._imports = imports
        self._rehearsed = rehearsed
        self._folder = job.folder
        self._training = parts.training
        self._plan = parts.plan
        self._recorded = {_key(row): row for row in _rows_to_reproduce(job.request)}
        training = parts.training
        settings = job.settings.plain
        show = self.log_figure
        every = self._plan.steps_per_epoch
        # of loggers
        self.run = Run(job.folder, settings, training.monitor, steps_per_epoch=every)
        run_of_callbacks = replace(
            self.run, model=training.model, _show=show, _sources=parts.sources
        )
        training.callbacks.open(run_of_callbacks)
        progress = checkpoint.progress_of(state)
        keeps = partial(is_kept, state=state, plan=self._plan) if state else None
        self._writer = Writer(job.folder, keeps, imports)
        total_steps = self._plan.total_steps
        plan = chain.plan_of(settings, imports.environment, total_steps)
        self._chain = chain.Chain(
            job.folder, None if progress.step else plan, progress.kept_step
        )
        self.loggers: Any = None  # `loggers.Loggers`, which get the rows of metrics.csv
        # step of the weights, result
        self._tested: tuple[int, Evaluation] | None = None
        self._replaced = 0  # how many replaced operations have been logged
        self._since = time.perf_counter()
        # Of the steps written so far in this epoch; `last.pt` has the sums.
        self._means = results.EpochMeans(state.get("epoch_sums", {}))
        self._saved_step = progress.step if state else -1
        self._weights: str | None = None  # the last hash of sharded weights
        # The progress bar is for interactive terminals, not for train.log.
        stream = getattr(sys.stdout, "stream", sys.stdout)
        self._is_watched = stream.isatty()
        self._bar = tqdm(
            total=total_steps,
            initial=progress.step,
            file=stream,
            unit=" steps",
            leave=False,
            dynamic_ncols=True,
            smoothing=0.1,
            disable=bool(os.environ.get("TQDM_DISABLE")) or not self._is_watched,
        )
        self._log_header(progress)
        if rehearsed.warning:
            self.log(rehearsed.warning)
        if progress.step:  # it may have stopped before it heard that it is pruned
            self._ask_search()

    def open_loggers(self, specs: Mapping[str, Any]) -> None:
        """Open loggers of other services, which get the rows of metrics.csv."""
        if specs:
            from seedbed import loggers  # which may be deleted

            self.loggers = loggers.Loggers(self.run, self.log)

    def log_step(
        self,
        step: int,
        loss: Tensor,
        values: dict[str, Tensor] | None,
        stages: Tensor | None,
    ) -> None:
        noted: dict[str, Any] = {"loss": loss}
        if values is not None:
            rates = schedules.learning_rates(self._training.optimizers)
            noted |= {**values, _RATE: next(iter(rates.values()))}
            if len(rates) > 1:
                noted |= {f"{_RATE}_{name}": rate for name, rate in rates.items()}
        self._writer.note("train", step, noted, stages)
        self._bar.update()

    def write(self, progress: Progress) -> None:
        """Write the steps logged since the last call; waits for the device once."""
        self._log_replaced_operations()
        noted, fingerprints = self._writer.take()
        if not noted:
            return
        rows = self._rows_of(noted)
        imported = self._imports.environment["imported_files"]
        self._rehearsed.compare(fingerprints, imported)
        every_steps = self._plan.fingerprint_every_steps
        due = [
            row for row in fingerprints if self._plan.is_due(every_steps, _key(row)[0])
        ]
        self._append(rows, due)
        if rows:
            self._show(rows[-1])

    def _log_replaced_operations(self) -> None:
        replaced = kernels.replaced()
        for operation, caller in replaced[self._replaced :]:
            self.log(f"deterministic replacement: {operation} in {caller}")
        self._replaced = len(replaced)

    def _rows_of(self, noted: Iterable[writer.Noted]) -> record.Rows:
        """Return the rows of metrics.csv for steps not yet written; add to the means of
        the epoch."""
        rows: list[record.Row] = []
        for _, step, values in noted:
            loss = values["loss"]
            # before anything is saved: the last checkpoint is good
            if not math.isfinite(loss):
                raise self._not_finite("loss", loss, step)
            self._means.add({"loss": loss})
            if self._plan.is_averaged(step):
                named = {
                    name: x
                    for name, x in values.items()
                    if name != "loss" and not name.startswith(_RATE)
                }
                self._means.add(named)
            means = self._means.end_epoch() if self._plan.ends_epoch(step) else {}
            # of the method
            means = {name: x for name, x in means.items() if name not in values}
            if _RATE in values:  # it is logged
                rows.append(self._row("train", step, {**values, **means}))
        return rows

    def _show(self, row: record.Row) -> None:
        """Show a row of a training step in the progress bar, or now and then as a
        line."""
        texts = [
            f"{name} {float(x):.4f}"
            for name, x in record.values_of(row).items()
            if not name.startswith(_RATE)
        ]
        self._bar.set_postfix_str(", ".join(texts), refresh=False)
        step = int(row["step"])
        if (
            not self._is_watched
            and step % (10 * self._plan.trainer.log_every_steps) == 0
        ):
            print(f"step {step}  {'  '.join(texts)}", flush=True)

    def log_validation(
        self, progress: Progress, result: Evaluation, is_best: bool
    ) -> None:
        """Write the results of a validation; save a checkpoint if they are the best so
        far."""
        self.write(progress)
        loss = result.values.get("loss", 0.0)
        if not math.isfinite(loss):
            raise self._not_finite("validation loss", loss, progress.step, "validation")
        self._append([self._row("validation", progress.step, result.values)])
        self._keep_best(progress.step, result)
        mark = " (best so far)" if is_best else ""
        epoch = round(progress.step / self._plan.steps_per_epoch, 2)
        values = "  ".join(
            f"{name} {value:.4f}" for name, value in result.values.items()
        )
        self.log(f"epoch {epoch:<4g} step {progress.step}  validation {values}{mark}")
        if is_best:
            self.save_checkpoint(progress)
        self._ask_search()

    def _ask_search(self) -> None:
        """Stop between two steps if the search that started this run prunes it, or is
        gone."""
        if self._job.request.rehearsal or self._job.request.record:
            return
        answer = pruning.should_prune(self._training.monitor)
        if answer is not False:
            self._job.stop.ask(signals.PRUNED if answer else 128 + signal.SIGTERM)

    def _keep_best(self, step: int, result: Evaluation) -> None:
        """Keep the weights of the best validations, each in a file; delete those of
        others.

        A run that is killed here validates again, as no checkpoint has this validation
        yet.
        """
        if self._plan.trainer.keep_best == 1:  # best.pt
            return
        best = self._best_steps()
        if step in best:
            path = self._folder / "checkpoints" / f"{record.BEST}{step}.pt"
            value = self._training.monitored(result.values)
            evaluate.save_as_evaluated(path, self._training, step, value)
        for other, path in record.best_checkpoints(self._folder).items():
            if other not in best:
                path.unlink()

    def _best_steps(self) -> list[int]:
        anew = (
            x["step"] for x in self._job.summary["resumes"] if x.get("best_starts_anew")
        )
        count = self._plan.trainer.keep_best
        return self._writer.results.best_steps(
            self._training.monitor, count, max(anew, default=0)
        )

    def log_new_best(self, progress: Progress) -> None:
        self._job.summary["resumes"][-1]["best_starts_anew"] = progress.step
        self._job.write_summary()
        self.log(
            f"from step {progress.step} on, the best weights are chosen anew: the"
            " validation has other samples than before the resume"
        )

    def log_test(self, evaluations: Mapping[int, Evaluation]) -> None:
        *_, result = evaluations.values()
        if not result.has_labels:
            self.log("warning: data.test: no sample has a label: the test has no loss")
        elif bad := [
            name for name, value in result.values.items() if not math.isfinite(value)
        ]:
            self.log(
                f"warning: test {', '.join(bad)}: not finite; look at the test samples"
            )
        rows = [
            self._row("test", step, evaluation.values)
            for step, evaluation in evaluations.items()
            if evaluation.values
        ]
        self._append(rows)
        if result.predictions is not None:
            table = predictions.table(result, self._parts.sources["test"].dataset)
            record.write_atomically(self._folder / "test_predictions.csv", table)
        self._tested = [*evaluations][-1], result

    def log_figure(self, name: str, step: int, path: Path) -> None:
        if self.loggers:
            self.loggers.call("log_figure", name, step, path)

    def save_checkpoint(self, progress: Progress) -> None:
        """Save a checkpoint from which the run continues as if it had never stopped."""
        self.write(progress)
        self._imports.note()
        if self.loggers:
            self.loggers.call("save")
        before = self._since
        self._since = time.perf_counter()
        progress.seconds += self._since - before
        self._writer.sync()
        settings = self._job.settings.plain
        environment = self._imports.environment
        notes = {
            "origin": {"settings": settings, "environment": environment},
            "epoch_sums": self._means.sums,
        }
        folder = self._folder / "checkpoints"
        state = checkpoint.capture(self._training, progress, folder, **notes)
        named = dict(self._training.model.named_parameters())
        weights = {
            name: state["model"].get(name, parameter)
            for name, parameter in named.items()
        }
        trained = {
            name: weights[name]
            for name, parameter in named.items()
            if parameter.requires_grad
        }
        for name, is_finite in scaling.are_finite(trained).items():
            if not is_finite:  # keep the last good one
                raise self._not_finite(f"model.{name}", math.nan, progress.step)
        if self._training.sharding.is_sharded:  # `summary` is for one process
            self._weights = fingerprint.text_of(
                [*weights.values(), *self._training.model.buffers()]
            )
        state[digests.WEIGHTS] = digests.of_weights(state)
        evaluate.note_best(self._training, progress, state)
        self._begin_summary()
        if progress.kept_step == progress.step:
            self._keep(state, progress.step)
        path = folder / checkpoint.LAST
        checkpoint.save(state, path, keep_previous=progress.step != self._saved_step)
        self._saved_step = progress.step
        evaluate.save_best(folder, self._training, progress, state)

    def _keep(self, state: dict[str, Any], step: int) -> None:
        """Add a checkpoint to the chain, and keep it in a file of its own if the plan
        says so.

        Before it replaces last.pt: after a kill in between, an earlier checkpoint leads
        here again.
        """
        if step in self._chain.weights:
            return
        if self._plan.keeps(step):
            # not `checkpoint_path`, which may be that of the best weights of this step
            path = self._folder / "checkpoints" / f"{record.KEPT}{step}.pt"
            checkpoint.save(state, path)
        weights = state[digests.WEIGHTS]
        self._chain.append(step, weights, digests.of_training(state, weights))

    def log(self, text: str) -> None:
        """Print a line; write a warning into the summary, too, at once: the run may be
        killed."""
        warning = text.removeprefix("warning: ")
        if warning != text and warning not in self._job.summary["warnings"]:
            self._job.summary["warnings"] = [*self._job.summary["warnings"], warning]
            self._job.write_summary()
        self._bar.clear()
        print(text, flush=True)
        self._bar.refresh()

    def close(self) -> None:
        self._writer.close()
        self._chain.close()
        if self.loggers:
            self.loggers.call("close", self._tested is not None)
        self._bar.close()

    def summary(self, progress: Progress) -> dict[str, Any]:
        settings = self._parts.settings
        training = self._training
        tested = self._tested
        parameters = [*training.model.parameters()]
        order = self._parts.order
        # A run that did not finish has values up to its last validation.
        step = (
            tested[0]
            if tested
            else progress.step_that_counts(settings.trainer.test_weights)
        )
        objective = settings.objective or training.monitor.metric
        samples = order.samples_per_epoch * progress.step / order.steps_per_epoch
        kept = record.kept_checkpoints(self._folder)
        steps = ("validation_step", "compute")
        is_own = settings.data.task is None or any(map(training.overrides, steps))
        weights = self._weights
        if not training.sharding.is_sharded:
            weights = fingerprint.text_of([*parameters, *training.model.buffers()])
        common = self._writer.summary(
            training.monitor,
            min(step, self._writer.results.last_step),
            tested and tested[0],
            parameters,
            weights,
        )
        return common | {
            "task": (settings.data.task or {}).get("name"),
            "evaluated_by": "method" if is_own else "task",
            "precision": settings.trainer.precision,
            "steps": progress.step,
            "epochs": progress.step / self._plan.steps_per_epoch,
            "best_step": progress.best_step,
            "kept_steps": [step for step in kept if step <= progress.step],
            **self._kept_best(),
            "stopped_early": stopped_early(self._plan, progress),
            "objective": {
                "name": objective,
                "value": results.by_name(common).get(objective),
            },
            "weights_sha256": self._weights_sha256(progress),
            "seconds": progress.seconds,
            "samples_per_second": (
                samples / progress.seconds if progress.seconds else 0.0
            ),
            "gpu_peak_memory_bytes": gpu_peak_memory_bytes(training.device),
            "samples": {
                "train": len(self._parts.sources["train"]),
                "validation": progress.validation_set.get("samples"),
            },
            "inputs": progress.validation_set.get("inputs"),
            "fingerprints": common["fingerprints"]
            | {
                "validation_targets": progress.validation_set.get("targets"),
                "predictions": (
                    tested and fingerprint.text_of([tested[1].output_hashes])
                ),
                "validation_samples": _text(progress.samples_hash),
                "test_samples": _text(tested and tested[1].samples_hash),
            },
        }

    def _kept_best(self) -> dict[str, list[int]]:
        if self._plan.trainer.keep_best == 1:
            return {}
        there = record.best_checkpoints(self._folder)
        return {"best_steps": [step for step in self._best_steps() if step in there]}

    def _weights_sha256(self, progress: Progress) -> dict[str, str | None]:
        """Return the SHA-256 of the weights in each checkpoint, by its name."""
        digests_by_name = dict[str, str | None]()
        folder = self._folder / "checkpoints"
        best = record.best_checkpoints(self._folder).values()
        for path in (folder / checkpoint.BEST, folder / checkpoint.LAST, *best):
            with suppress(InputError):  # damaged
                if path.exists():
                    digests_by_name[path.stem] = checkpoint.load(path, mapped=True).get(
                        digests.WEIGHTS
                    )
        if progress.best_sha256 is not None:  # whatever the file says of itself
            digests_by_name["best"] = progress.best_sha256
        kept = record.kept_checkpoints(self._folder)
        chained = {
            f"{record.KEPT}{step}": digest
            for step, digest in self._chain.weights.items()
            if step in kept
        }
        return digests_by_name | chained

    def _log_header(self, progress: Progress) -> None:
        settings = self._parts.settings
        training = self._training
        shards = self._parts.shards
        begins = f"resuming after step {progress.step}" if progress.step else ""
        if self._job.starts_over:
            every_steps = settings.trainer.checkpoint_every_steps
            begins = (
                "from the start: it has no checkpoint "
                f"(trainer.checkpoint_every_steps={every_steps})"
            )
        size = sum(parameter.numel() for parameter in training.model.parameters())
        where = str(training.device)
        if where == "cpu":
            cores = (
                len(os.sched_getaffinity(0))
                if sys.platform == "linux"
                else os.cpu_count()
            )
            where += f" ({torch.get_num_threads()} of {cores} cores)"
        elif training.device.type == "cuda":
            where += f" ({torch.cuda.get_device_name(training.device)})"
        self.log(
            f"{settings.model.name} ({size:,} parameters) on {settings.data.name},"
            f" {where}, determinism={settings.determinism.name}, seed={settings.seed},"
            f" {self._plan.total_steps} steps"
            + (f", {shards.ranks.count} processes" if shards.is_shared else "")
            + ("" if shards.order_is_fixed else " (on whose number the bits depend)")
            + (f", {begins}" if begins else "")
        )

    def _append(self, rows: record.Rows, fingerprints: record.Rows = ()) -> None:
        if rows or fingerprints:
            self._begin_summary()
        self._writer.append(rows, fingerprints)
        for row in (*rows, *fingerprints):
            recorded = self._recorded.get(_key(row), {})
            if record.differing(recorded, row, recorded):
                self._job.stop.ask(signals.DIFFERS)
        if self.loggers:
            self.loggers.note(rows)

    def _begin_summary(self) -> None:
        """Remove the results of an earlier process, which hold until this one
        writes."""
        if "metrics" in self._job.summary:
            self._job.summary = {key: self._job.summary[key] for key in _HISTORY}
            self._job.write_summary()
            (self._folder / "test_predictions.csv").unlink(missing_ok=True)

    def _row(self, phase: str, step: int, values: Mapping[str, Any]) -> record.Row:
        epoch = repr(step / self._plan.steps_per_epoch)
        return writer.row(phase, step, values, epoch=epoch)

    def _not_finite(
        self, quantity: str, value: float, step: int, phase: str = "train"
    ) -> NotFinite:
        updates = step - (quantity == "loss")  # the loss of a step precedes its update
        clips = self._training.gradient_clip_norm is not None
        advice = (
            f"lower optimizer.lr{'' if clips else ' or set trainer.gradient_clip_norm'}"
        )
        advice = advice if updates else "look at the samples and the loss"
        message = (
            f"{quantity}: expected a finite number, got {value} in step {step}, after"
            f" {updates} update{'' if updates == 1 else 's'}; {advice}"
        )
        return NotFinite(message, phase, step)


def _rows_to_reproduce(request: Request) -> list[record.Row]:
    """Return the rows of the tables that a replay must have, or else stop."""
    if not request.record or not request.stops_where_it_differs:
        return []
    path = Path(request.record)
    rows = record.read_metrics(path)
    if (path / "fingerprints.csv").exists():
        rows += record.read_fingerprints(path)
    return rows


def _text(sample_hash: int | None) -> str | None:
    return None if sample_hash is None else fingerprint.text(sample_hash)


def gpu_peak_memory_bytes(device: torch.device) -> int | None:
    """Return the most memory that tensors of this process had on a GPU; None on other
    devices."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _key(row: record.Row) -> tuple[int, str]:
    return int(row["step"]), row.get("phase", "")


def stopped_early(plan: Plan, progress: Progress) -> dict[str, int | None] | None:
    """Return step, patience and best step if early stopping ended a run, else None."""
    if progress.step == plan.total_steps or not plan.is_over(progress):
        return None
    patience = plan.trainer.early_stopping_patience
    return {
        "step": progress.step,
        "patience": patience,
        "best_step": progress.best_step,
    }
