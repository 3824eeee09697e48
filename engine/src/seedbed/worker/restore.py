"""Resuming from a checkpoint: it is checked, then restored into model and optimizer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from seedbed import config, record
from seedbed.errors import InputError, one_line
from seedbed.record import Change, Origin, code
from seedbed.training import checkpoint
from seedbed.training.state import Plan, TrainingState
from seedbed.worker import best, longer
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
        is_rewound: the run had ended, and is to go on (see `longer`).
    """

    state: dict[str, Any]
    problems: list[str]
    changes: list[Change]
    is_rewound: bool = False


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
    restored = load(folder, parts.training, origin, allow_changed, parts.plan)
    (folder / "checkpoints").mkdir(exist_ok=True)
    for place in (folder, folder / "checkpoints"):  # of a process that was killed while it wrote
        for path in (*place.glob(".*.tmp"), *place.glob(".*.new")):
            path.unlink(missing_ok=True)
    if restored is not None:
        if restored.is_rewound:
            longer.keep(restored.state, folder / "checkpoints")
        note(folder, restored, summary)
        imports.resume(restored.state["origin"]["environment"].get("imported_files"))
        progress = checkpoint.progress_of(restored.state)
        keep_code(folder, progress.step, restored.changes)
        best.save(folder / "checkpoints", parts.training.model, progress)
    if job.request.settings:
        record.write_atomically(folder / "config.yaml", OmegaConf.to_yaml(origin.settings))
    imports.write(patch)
    return restored.state if restored else {}


def load(
    folder: Path,
    training: TrainingState,
    origin: Origin,
    allow_changed: bool,
    plan: Plan | None = None,
) -> Restored | None:
    """Load the newest good checkpoint into model and optimizer; None if there is none.

    Raises:
        InputError: what has changed since can alter bits, or the checkpoint does not fit.
    """
    state, problems = checkpoint.load_newest(folder / "checkpoints", training.device)
    if state is None:
        return None
    environment = state["origin"]["environment"]
    its_code = code.Code.of(environment, folder)
    made_under = Origin(state["origin"]["settings"], environment, its_code)
    step = state["progress"]["step"]
    found = record.changes(made_under, completed(made_under, origin))
    strict = config.promises_bits(made_under.settings["determinism"]["on_nondeterministic"])
    is_refused = strict and not allow_changed
    if plan is not None:
        found = longer.judged(found, made_under.settings, plan, step, is_refused)
    serious = [str(change) for change in found if change.alters_bits]
    if is_refused and serious:
        more = f" and {len(serious) - 3} more" if len(serious) > 3 else ""
        raise InputError(
            f"determinism=strict: expected what step {step} was made with, got "
            f"{', '.join(serious[:3])}{more}; undo it, or resume all the same with --allow-changed"
        )
    if plan is not None:
        longer.require_steps_left(folder, step, plan.total_steps)
    for name in ("metrics.csv", "fingerprints.csv"):
        record.require_bytes(folder / name, state["table_bytes"][name])
    rewound = longer.rewound(folder, state, made_under.settings, plan) if plan else None
    restore(folder, training, state, found)
    return Restored(rewound or state, problems, found, rewound is not None)


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
        raise InputError(
            f"{folder}: expected a checkpoint of this model and optimizer, got another "
            f"({one_line(error)}); resume with the code and configuration that wrote it, and make "
            "all parameters when the model is built"
        ) from None


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
