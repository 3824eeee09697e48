"""The work of a rehearsal's child processes: evaluations, and notes for the training process.

Evaluations must be functions of weights and samples. So the first child evaluates batches in the
order A, B, A, also between its steps; the second, in the order B, A, as if in a loader worker.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data._utils import worker

from seedbed import fingerprint, record
from seedbed.data.positions import evaluation_positions
from seedbed.data.remedy import remedy_for
from seedbed.data.tensors import tensors_of
from seedbed.errors import InputError
from seedbed.training import optimizers
from seedbed.training.evaluate import measure, swapped, values_of
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.worker.assemble import Parts

NOTES = "notes.json"
STEPS = 2  # of a rehearsal: the second child resumes after the first one


class Trial:
    """Observes the two steps of a child process, and writes its notes."""

    def __init__(self, parts: Parts, folder: Path, is_resumed: bool) -> None:
        self._parts, self._folder, self._is_resumed = parts, folder, is_resumed
        self._attributes = attributes(parts.training)
        if is_resumed:  # any number of loader workers must load the same samples
            dataset = parts.sources["train"].dataset
            worker._worker_info = worker.WorkerInfo(id=1, num_workers=3, seed=0, dataset=dataset)

    def after_step(self, step: int) -> None:
        """Evaluate after a step; write the notes after the last one."""
        parts = self._parts
        if not self._is_resumed and step < STEPS:
            with swapped(parts.training):
                self._evaluated("validation", "A")  # the second step must not depend on it
            self._attributes = attributes(parts.training)
        if step != STEPS:
            return
        now, before = attributes(parts.training), self._attributes
        changed = [name for name, value in now.items() if value != before.get(name)]  # by step 2
        advice = {split: remedy_for(each.dataset) for split, each in parts.sources.items()}
        notes: dict[str, Any] = {"changed": changed, "advice": advice}
        with swapped(parts.training):
            for split in ("validation", "test") if parts.settings.data.test else ("validation",):
                notes |= self._evaluated(split, "BA" if self._is_resumed else "ABA")
        if parts.shards.writes_record:
            record.write_json(self._folder / NOTES, notes)

    def _evaluated(self, split: str, order: str) -> dict[str, dict[str, list[Any]]]:
        """Evaluate batches of a split in some order; return distinct hashes of samples and results.

        By the name of the batch there is one each, if they are functions of weights and samples.
        """
        training, source = self._parts.training, self._parts.sources[split]
        settings = self._parts.settings
        size = settings.data.eval_batch_size
        # Memory suffices for batches of training; for a size of its own, a model is compiled again.
        if not settings.trainer.compile:
            size = min(size, settings.data.batch_size)
        places = evaluation_positions(len(source), size)
        first, second = places[0], places[len(places) // 2]
        if len(places) == 1 and len(source) > 1:  # different samples, if possible
            half = len(source) // 2
            first, second = first.cut(0, half), first.cut(half, len(source))
        contents, results = ({name: list[Any]() for name in sorted(set(order))} for _ in range(2))
        for name in order:
            batch = source[first if name == "A" else second]
            content = fingerprint.text(int(fingerprint.of_tensors(tensors_of(batch[1:]))))
            rows = measure(training, [batch], Shards())
            result: dict[str, Any] = {"outputs": fingerprint.text(int(rows[0].output_hash))}
            try:
                values = values_of(training, rows)
                result |= {key: repr(value) for key, value in values.items()}
            except InputError:
                raise
            except Exception:  # some metrics are undefined for a single batch
                pass
            for table, found in ((contents, content), (results, result)):
                table[name] += [] if found in table[name] else [found]
        return {f"{split} batch": contents, f"{split} values": results}


def refusal(stage: str, notes: Mapping[str, Any]) -> str:
    """Return the error line for a stage that differs in a resumed run, with that run's notes."""
    key, remedy = WHERE[stage]
    when = "in step 2 from a run that is resumed after step 1"
    if stage.startswith(("validation", "test")):
        when = "each time, in any order and number of loader workers, and in a resumed run"
    changed = ", ".join(notes.get("changed", ())[:3])
    hint = f" (a step changes {changed})" if changed else ""
    return (
        f"{key}: expected the same {stage} {when}, got another{hint}; {remedy}, or set "
        f"determinism.on_nondeterministic=warn{advice(stage, notes)}"
    )


def not_repeated(stage: str, step: int = STEPS) -> str:
    """Return the error line for a step that does not repeat, whether resumed or not."""
    return (
        f"{WHERE[stage][0]}: expected the same {stage} each time that step {step} is taken, "
        "got another; draw from the global generators, and look for files that a step changes, "
        "memory that nothing wrote (torch.empty), a nondeterministic kernel or faulty hardware"
    )


def unwritten(got: str) -> str:
    return (
        "model: expected the same bits with and without filled memory, got "
        f"{got}: it reads memory that nothing wrote; look for torch.empty, new_empty and out=, or "
        "set determinism.fill_uninitialized_memory=false to skip this check"
    )


def advice(stage: str, notes: Mapping[str, Any]) -> str:
    """Return what to do about a data set's own generator, if a stage is of its samples."""
    split = {"batch": "train"}.get(stage, stage.removesuffix(" batch"))
    return str(notes.get("advice", {}).get(split, ""))


_IN_MODEL = (
    "model",
    "keep what lasts from step to step in buffers or parameters of the model, not in attributes, "
    "variables or closures, and let evaluations change nothing",
)
_IN_OPTIMIZER = (
    "optimizer",
    "let it keep what lasts in self.state, or in a state_dict and load_state_dict of its own, and "
    "on_step_end in buffers of the model",
)
_IN_SAMPLES = (
    "let a sample depend on its index and on seeded draws alone, not on a generator, a counter or "
    "a cache of the data set, nor on get_worker_info()"
)
_IN_VALUES = (
    "method",
    "keep nothing from call to call in validation_step, compute, metrics or the model in "
    "evaluation mode",
)
# What is compared, in causal order, with the configuration key to look at and the remedy.
WHERE = {
    "learning rate": ("schedule", "let a schedule alone set learning rates, by the step"),
    "sample_ids": ("data.sampler", "let batches depend on epoch, n and rng alone"),
    "batch": ("data.train", _IN_SAMPLES),
    "loss": _IN_MODEL,
    "gradients": _IN_MODEL,
    "weights": _IN_OPTIMIZER,
    "buffers": _IN_MODEL,
    "optimizer": _IN_OPTIMIZER,
    "validation batch": ("data.validation", _IN_SAMPLES),
    "validation values": _IN_VALUES,
    "test batch": ("data.test", _IN_SAMPLES),
    "test values": _IN_VALUES,
    "logged values": _IN_MODEL,
}


def attributes(training: TrainingState) -> dict[str, str]:
    """Return the `repr` of each public attribute of modules, method and optimizers, by path."""
    roots = {f"model.{path}".rstrip("."): each for path, each in training.model.named_modules()}
    roots |= {"method": training.method, **optimizers.labelled(training.optimizers)}
    return {
        f"{path}.{name}": repr(value)
        for path, root in roots.items()
        for name, value in vars(root).items()
        if not name.startswith("_") and name not in ("training", "state", "param_groups")
    }
