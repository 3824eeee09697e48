"""Going on from a checkpoint: into model and optimizer, if nothing speaks against it."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from seedbed import record
from seedbed.errors import InputError
from seedbed.launch import resume
from seedbed.training import checkpoint
from seedbed.training.state import TrainingState
from seedbed.worker import best


@dataclass(frozen=True)
class Restored:
    """A checkpoint that a run can go on from.

    Attributes:
        problems: what is wrong with the newer ones that were passed over.
        changes: what is not as it was when it was made.
    """

    state: dict[str, Any]
    problems: list[str]
    changes: list[resume.Change]


def resume_from_checkpoint(
    folder: Path,
    training: TrainingState,
    origin: resume.Origin,
    patch: bytes,
    request: resume.Request,
    summary: dict[str, Any],
    total_steps: int | None = None,
) -> dict[str, Any]:
    """Take up a run where its newest good checkpoint is, and bring its record up to date.

    Returns:
        The checkpoint; {} where there is none, and the run starts from the beginning.

    Raises:
        InputError: the run cannot go on from here. Nothing of the record has changed.
    """
    restored = load(folder, training, origin, request.allow_changed, total_steps)
    if restored is not None:
        note(folder, restored, summary)
        keep_patch(folder, patch, restored.state["progress"]["step"])
    restore_best(folder / "checkpoints", restored, origin)
    if request.settings:
        record.write_atomically(folder / "config.yaml", OmegaConf.to_yaml(origin.settings))
    record.write_environment(folder, origin.environment, patch)
    (folder / "checkpoints").mkdir(exist_ok=True)
    resume.remove_leftovers(folder)
    return restored.state if restored else {}


def keep_patch(folder: Path, patch: bytes, step: int) -> None:
    """Keep the patch of the code that made the steps so far, if the next ones have another.

    If one is kept that reaches as far, it made them: the code since then has left no step behind.
    """
    path, prefix = folder / "source.patch", "source_until_step_"
    kept = [each.stem.removeprefix(prefix) for each in folder.glob(f"{prefix}*.patch")]
    if any(number.isdecimal() and int(number) >= step for number in kept):
        return
    if path.exists() and path.read_bytes() != patch:
        os.replace(path, folder / f"{prefix}{step}.patch")


def restore_best(folder: Path, restored: Restored | None, origin: resume.Origin) -> None:
    """Let the best weights be those that the checkpoint knows of; print what became of others."""
    if restored is None:  # all starts over, and the tables, too
        best.restore(folder, 0, comes_again=True)
        return
    promised = origin.settings["determinism"]["on_nondeterministic"] == "error"
    comes_again = promised and not any(change.alters_bits for change in restored.changes)
    message = best.restore(folder, restored.state["progress"]["best_step"], comes_again)
    if message:
        print(f"warning: {message}", flush=True)


def load(
    folder: Path,
    training: TrainingState,
    origin: resume.Origin,
    allow_changed: bool,
    total_steps: int | None = None,
) -> Restored | None:
    """Load the newest good checkpoint into model and optimizer; None if there is none."""
    state, problems = checkpoint.load_newest(folder / "checkpoints", training.device)
    if state is None:
        return None
    try:
        made_under, step = resume.Origin(**state["origin"]), state["progress"]["step"]
        changes = resume.changes(made_under, origin)
        strict = made_under.settings["determinism"]["on_nondeterministic"] == "error"
        if strict and not allow_changed:
            resume.require_equal(changes, step)
        if total_steps is not None and step > total_steps:
            raise InputError(
                f"trainer.max_steps: expected a run of at least {step} steps, which its checkpoint "
                f"has made, got one of {total_steps}; raise trainer.max_steps or trainer.max_epochs"
            )
        for name, length in state["table_bytes"].items():
            record.require_bytes(folder / name, length)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder}: expected a checkpoint of this model and optimizer, got one without "
            f"{' '.join(str(error).split())[:160]}; start anew by scripts/verify.py or train.py"
        ) from None
    restore(folder, training, state, changes)
    return Restored(state, problems, changes)


def restore(
    folder: Path, training: TrainingState, state: dict[str, Any], changes: list[resume.Change]
) -> None:
    """Bring model and optimizer into a checkpoint's state, with the options of today."""
    options = [dict(group) for group in training.optimizer.param_groups]
    try:
        checkpoint.restore(training, state)
        change_options(training.optimizer, options, changes)
    except checkpoint.MISMATCH as error:
        advice = "resume with the code and configuration that wrote it"
        if not any(change.alters_bits for change in changes):
            advice = "make all parameters when the model is built, steps cannot add any"
        raise InputError(
            f"{folder}: expected a checkpoint of this model and optimizer, got "
            f"{' '.join(str(error).split())[:160]}; {advice}"
        ) from None


def change_options(
    optimizer: torch.optim.Optimizer,
    options: Sequence[Mapping[str, Any]],
    changes: Iterable[resume.Change],
) -> None:
    """Let an optimizer's options be what the configuration says now: its state brought the old.

    Args:
        options: those of each group as the configuration makes them.
    """
    prefix = "optimizer."
    changed = {c.key.removeprefix(prefix) for c in changes if c.key.startswith(prefix)}
    for group, new in zip(optimizer.param_groups, options, strict=True):
        group.update({name: new[name] for name in changed & new.keys()})
        if "lr" in changed:
            group["initial_lr"] = new["lr"]


def note(folder: Path, restored: Restored, summary: dict[str, Any]) -> None:
    """Say and record with what the run goes on."""
    step = restored.state["progress"]["step"]
    for problem in restored.problems:
        print(f"warning: {problem}; resuming from the one before it, of step {step}", flush=True)
    for change in restored.changes:
        print(f"changed since step {step}: {change}", flush=True)
    summary["status"] = "running"
    summary["resumes"] = [*summary["resumes"], resume.entry(step, restored.changes)]
    record.write_json(folder / "summary.json", summary)
    if restored.problems:
        checkpoint.discard_damaged(folder / "checkpoints")
