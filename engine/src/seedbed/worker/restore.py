"""Resuming from a checkpoint: it is checked, then restored into model and optimizer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from seedbed import config, record
from seedbed.errors import InputError
from seedbed.record import code
from seedbed.record.change import Change
from seedbed.record.origin import Origin, changes
from seedbed.training import checkpoint
from seedbed.training.state import Progress, TrainingState
from seedbed.worker import best
from seedbed.worker.imports import Imports, completed
from seedbed.worker.job import Job
from seedbed.worker.parts import Parts
from seedbed.worker.summary import Summary


@dataclass(frozen=True)
class Restored:
    """A checkpoint that a run can be resumed from.

    Attributes:
        problems: what is wrong with the newer ones that were passed over.
        changes: what is not as it was when it was made.
    """

    state: dict[str, Any]
    problems: list[str]
    changes: list[Change]


def resume_from_checkpoint(
    job: Job, parts: Parts, origin: Origin, patch: bytes, summary: Summary, imports: Imports
) -> dict[str, Any]:
    """Restore a run's newest good checkpoint, and bring its record up to date.

    Returns:
        The checkpoint; {} where there is none, and the run starts from the beginning.

    Raises:
        InputError: the run cannot be resumed from here. Nothing of the record has changed.
    """
    folder, allow_changed = job.folder, job.request.allow_changed
    restored = load(folder, parts.training, origin, allow_changed, parts.plan.total_steps)
    if restored is not None:
        note(folder, restored, summary)
        imports.resume(restored.state["origin"]["environment"].get("imported_files"))
        keep_code(folder, restored.state["progress"]["step"], restored.changes)
    restore_best(folder / "checkpoints", restored, origin)
    if job.request.settings:
        record.write_atomically(folder / "config.yaml", OmegaConf.to_yaml(origin.settings))
    imports.write(patch)
    (folder / "checkpoints").mkdir(exist_ok=True)
    remove_leftovers(folder)
    return restored.state if restored else {}


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote them."""
    for place in (folder, folder / "checkpoints"):
        for path in (*place.glob(".*.tmp"), *place.glob(".*.new")):
            path.unlink(missing_ok=True)


def keep_code(folder: Path, step: int, found: Iterable[Change]) -> None:
    """Keep the code that made the steps so far, if the next ones have another.

    If one is kept that reaches as far, it made them: the code since then has left no step behind.
    """
    path, prefix = folder / code.ARCHIVE, "code_until_step_"
    kept = [each.stem.removeprefix(prefix) for each in folder.glob(f"{prefix}*.zip")]
    if any(number.isdecimal() and int(number) >= step for number in kept):
        return
    changed = any(change.kind == "code" and change.alters_bits for change in found)
    if changed and path.is_file():
        record.write_atomically(folder / f"{prefix}{step}.zip", path.read_bytes())


def restore_best(folder: Path, restored: Restored | None, origin: Origin) -> None:
    """Let the best weights be those that the checkpoint knows of; print what became of others."""
    if restored is None:  # all starts over, and the tables, too
        best.restore(folder, 0, comes_again=True)
        return
    promised = config.promises_bits(origin.settings["determinism"]["on_nondeterministic"])
    comes_again = promised and not any(change.alters_bits for change in restored.changes)
    message = best.restore(folder, restored.state["progress"]["best_step"], comes_again)
    if message:
        print(f"warning: {message}", flush=True)


def load(
    folder: Path,
    training: TrainingState,
    origin: Origin,
    allow_changed: bool,
    total_steps: int | None = None,
) -> Restored | None:
    """Load the newest good checkpoint into model and optimizer; None if there is none."""
    state, problems = checkpoint.load_newest(folder / "checkpoints", training.device)
    if state is None:
        return None
    try:
        require_plausible(state)
        made_under = Origin(state["origin"]["settings"], state["origin"]["environment"])
        step = state["progress"]["step"]
        found = changes(made_under, completed(made_under, origin), folder)
        strict = config.promises_bits(made_under.settings["determinism"]["on_nondeterministic"])
        if strict and not allow_changed:
            require_equal(found, step)
        if total_steps is not None and step > total_steps:
            raise InputError(
                f"trainer.max_steps: expected a run of at least {step} steps, which its checkpoint "
                f"has made, got one of {total_steps}; raise trainer.max_steps or trainer.max_epochs"
            )
        for name in ("metrics.csv", "fingerprints.csv"):
            record.require_bytes(folder / name, state["table_bytes"][name])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder}: expected a checkpoint of this model and optimizer, got {said_by(error)}; "
            "start anew by scripts/verify.py or train.py"
        ) from None
    restore(folder, training, state, found)
    return Restored(state, problems, found)


def require_equal(found: Sequence[Change], step: int) -> None:
    """Raise InputError if something changed that can alter bits."""
    serious = [str(change) for change in found if change.alters_bits]
    if serious:
        more = f" and {len(serious) - 3} more" if len(serious) > 3 else ""
        raise InputError(
            f"determinism=strict: expected what step {step} was made with, got "
            f"{', '.join(serious[:3])}{more}; undo it, or resume all the same with --allow-changed"
        )


def require_plausible(state: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError for numbers that no run has written."""
    progress = Progress(**state["progress"])
    counts = (progress.step, progress.validated_step, progress.best_step)
    for count in (*counts, progress.validations_without_gain, *state["table_bytes"].values()):
        if type(count) is not int or count < 0:
            raise ValueError(f"one with {count!r} for an integer >= 0")
    for number in (progress.best_metric, progress.seconds, *state["last"].values()):
        if type(number) is not float and number is not None:
            raise ValueError(f"one with {number!r} for a decimal number")


def restore(
    folder: Path, training: TrainingState, state: dict[str, Any], found: list[Change]
) -> None:
    """Bring model and optimizer into a checkpoint's state, with the options of today."""
    optimizers = training.optimizers.values()
    options = [[dict(group) for group in each.param_groups] for each in optimizers]
    try:
        checkpoint.restore(training, state)
        for optimizer, its_options in zip(optimizers, options, strict=True):
            change_options(optimizer, its_options, found)
    except checkpoint.MISMATCH as error:
        advice = "resume with the code and configuration that wrote it"
        if "Unexpected key" in str(error) and not any(change.alters_bits for change in found):
            advice = "make all parameters when the model is built, steps cannot add any"
        elif not any(change.alters_bits for change in found):
            advice = "start anew by scripts/verify.py or train.py"
        raise InputError(
            f"{folder}: expected a checkpoint of this model and optimizer, got {said_by(error)}; "
            f"{advice}"
        ) from None


def said_by(error: Exception) -> str:
    """Return in a few words what a checkpoint that does not fit provoked."""
    text = " ".join(str(error).split())[:160]
    return f"one without {text}" if isinstance(error, KeyError) else text or type(error).__name__


def change_options(
    optimizer: torch.optim.Optimizer,
    options: Sequence[Mapping[str, Any]],
    found: Iterable[Change],
) -> None:
    """Let an optimizer's options be what the configuration says now: its state brought the old.

    Args:
        options: those of each group as the configuration makes them.
    """
    prefix = "optimizer."
    changed = {c.key.removeprefix(prefix) for c in found if c.key.startswith(prefix)}
    for group, new in zip(optimizer.param_groups, options, strict=True):
        group.update({name: new[name] for name in changed & new.keys()})
        if "lr" in changed:
            group["initial_lr"] = new["lr"]


def note(folder: Path, restored: Restored, summary: Summary) -> None:
    """Print and record from which step the run is resumed, and what has changed since."""
    step = restored.state["progress"]["step"]
    for problem in restored.problems:
        print(f"warning: {problem}; resuming from the one before it, of step {step}", flush=True)
    for change in restored.changes:
        print(f"changed since step {step}: {change}", flush=True)
    summary.note_resume(entry(step, restored.changes))
    if restored.problems:
        checkpoint.discard_damaged(folder / "checkpoints")


def entry(step: int, found: Sequence[Change]) -> dict[str, Any]:
    """Return what summary.json says of a resume (`record.altered` reads it)."""
    return {
        "step": step,
        "changes": {change.key: [change.before, change.now] for change in found},
        "can_alter_bits": [change.key for change in found if change.alters_bits],
    }
