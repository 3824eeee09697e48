"""The work of a rehearsal's child processes: evaluations, and notes for the training
process.

Evaluations must be functions of weights and samples. So the first child evaluates
batches in the order A, B, A, also between its steps; the second, in the order B, A, as
if in a loader worker. The second also evaluates before its step, with nothing but what
the checkpoint restored: that must be what the first child's step left. It evaluates B,
since the first child evaluated A before its first
step: a model that keeps what it draws in its first evaluation would keep the same in
both.
"""

from pathlib import Path
from typing import Any

from torch.utils.data._utils import worker

from seedbed import fingerprint, record
from seedbed.assemble import Parts
from seedbed.errors import InputError, Interrupted
from seedbed.pipeline.positions import EvaluationPositions, Position
from seedbed.pipeline.tensors import contents
from seedbed.training import epochs, optimizers, predictions
from seedbed.training.evaluate import (
    evaluation_of,
    measure,
    run_evaluation_callbacks,
    swapped,
    values_of,
)
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState

NOTES = "notes.json"
STEPS = 2  # of a rehearsal: the second child resumes after the first one


class Trial:
    """Observes the two steps of a child process, and writes its notes."""

    def __init__(self, parts: Parts, folder: Path, is_resumed: bool) -> None:
        self._parts = parts
        self._folder = folder
        self._is_resumed = is_resumed
        self._notes: dict[int, dict[str, Any]] = {}  # by step
        if is_resumed:  # any number of loader workers must load the same samples
            dataset = parts.sources["train"].dataset
            worker._worker_info = worker.WorkerInfo(
                id=1, num_workers=3, seed=0, dataset=dataset
            )
            self._evaluate(STEPS - 1, "B")
        self._attributes = attributes(parts.training)

    def after_step(self, step: int) -> None:
        """Evaluate after a step; after the last one, write the notes and stop in all
        processes."""
        parts = self._parts
        if step < STEPS:
            self._evaluate(step, "B")  # the second step must not depend on it
            self._attributes = attributes(parts.training)
            return
        after = attributes(parts.training)
        before = self._attributes
        # by step 2
        changed = [name for name, value in after.items() if value != before.get(name)]
        self._evaluate(step, "BA" if self._is_resumed else "ABA")
        self._notes[step]["changed"] = changed
        if parts.shards.ranks.leads:
            record.write_json(
                self._folder / NOTES, {str(n): of for n, of in self._notes.items()}
            )
        raise Interrupted

    def _evaluate(self, step: int, order: str) -> None:
        """Note evaluations of all splits after a step."""
        splits = (
            ("validation", "test")
            if self._parts.settings.data.spec("test")
            else ("validation",)
        )
        notes: dict[str, Any] = {}
        logged: dict[str, str] = {}
        with swapped(self._parts.training):
            for split in splits:
                notes |= self._evaluated(split, order)
                # After a resume, the checkpoint has what callbacks keep of evaluations
                # before it.
                if not self._is_resumed or step == STEPS:
                    logged |= self._logged_by_callbacks(split, step)
        if self._parts.training.overrides("epoch_values"):
            notes["epoch values"] = self._epoch_values(step)
        self._notes[step] = notes
        if step == STEPS:
            notes["values of callbacks"] = logged

    def _epoch_values(self, step: int) -> str:
        """Return a hash of the values for an epoch that would begin after a step."""
        training = self._parts.training
        epoch = 1 + step // self._parts.plan.steps_per_epoch
        values = epochs.values_here(training, step, epoch)
        return fingerprint.text(int(fingerprint.of_tensors(contents(values))))

    def _logged_by_callbacks(self, split: str, step: int) -> dict[str, str]:
        """Call the hooks of callbacks after the evaluation of a batch; return what they
        log."""
        training = self._parts.training
        if not self._parts.settings.callbacks:
            return {}
        batch = self._parts.sources[split][self._positions(split)["A"]]
        rows = measure(
            training, [batch], Shards(), training.callbacks.takes_evaluations
        )
        # of another process: all of them evaluate if sharded
        if training.callbacks.run is None:
            return {}
        try:
            result = evaluation_of(training, rows)
            values = run_evaluation_callbacks(training, split, step, result).values
        except InputError:
            raise
        except Exception:  # a single batch may not suffice for what a callback computes
            return {}
        return {
            f"{split}_{name}": repr(values[name])
            for name in values.keys() - result.values
        }

    def _positions(self, split: str) -> dict[str, Position]:
        """Return two batches of a split, A and B, of different samples if it has
        several."""
        settings = self._parts.settings
        samples = len(self._parts.sources[split])
        size = settings.data.eval_batch_size
        # Memory suffices for batches of training; for a size of its own, a model is
        # compiled again.
        if not settings.trainer.compile:
            size = min(size, settings.data.batch_size)
        batches = EvaluationPositions(samples, size)
        if len(batches) == 1 and samples > 1:
            half = samples // 2
            return {"A": batches[0].cut(0, half), "B": batches[0].cut(half, samples)}
        return {"A": batches[0], "B": batches[len(batches) // 2]}

    def _evaluated(self, split: str, order: str) -> dict[str, dict[str, list[Any]]]:
        """Evaluate batches of a split in some order; return distinct hashes of samples
        and results.

        By the name of the batch there is one each, if they are functions of weights and
        samples.
        """
        training = self._parts.training
        source = self._parts.sources[split]
        positions = self._positions(split)
        samples, results = (
            {name: list[Any]() for name in sorted(set(order))} for _ in range(2)
        )
        for name in order:
            batch = source[positions[name]]
            content = fingerprint.text(int(fingerprint.of_tensors(contents(batch[1:]))))
            rows = measure(
                training, [batch], Shards(), most_probabilities=predictions.MOST
            )
            result: dict[str, Any] = {
                "outputs": fingerprint.text(int(rows[0].output_hash))
            }
            table = [
                x for x in (rows[0].predictions, rows[0].probabilities) if x is not None
            ]
            result["predictions"] = fingerprint.text(int(fingerprint.of_tensors(table)))
            try:
                values = values_of(training, rows)
                result |= {key: repr(value) for key, value in values.items()}
            except InputError:
                raise
            except Exception:  # some metrics are undefined for a single batch
                pass
            for distinct, outcome in ((samples, content), (results, result)):
                distinct[name] += [] if outcome in distinct[name] else [outcome]
        return {f"{split} batch": samples, f"{split} values": results}


def attributes(training: TrainingState) -> dict[str, str]:
    """Return the `repr` of each public attribute of modules, method and optimizers, by
    path."""
    roots = {
        f"model.{path}".rstrip("."): module
        for path, module in training.model.named_modules()
    }
    roots |= {"method": training.method, **optimizers.labelled(training.optimizers)}
    return {
        f"{path}.{name}": repr(value)
        for path, root in roots.items()
        for name, value in vars(root).items()
        if not name.startswith("_")
        and name not in ("training", "state", "param_groups")
    }
