"""A run that goes on beyond its planned end, to the bits of one of that length."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seedbed import config, record
from seedbed.config import Settings
from seedbed.errors import InputError
from seedbed.record import Change
from seedbed.training import checkpoint
from seedbed.training.state import Plan
from seedbed.worker import assemble


def judged(
    found: Iterable[Change], before: Mapping[str, Any], plan: Plan, step: int, is_refused: bool
) -> list[Change]:
    """Return changes, with that of the run's length altering bits only where it alters a rate.

    Args:
        before: the settings so far.
        step: how many were taken.
        is_refused: whether a change that alters bits is an error.

    Raises:
        InputError: the learning rate of a step so far depends on the length.
    """
    found = list(found)
    length = next((change for change in found if change.key in record.LENGTHS), None)
    if length is None:
        return found
    old = assemble.make_plan(_typed(before), plan.steps_per_epoch).learning_rate_factor
    if all(old(n) == plan.learning_rate_factor(n) for n in range(step)):
        return [replace(c, alters_bits=False) if c.key in record.LENGTHS else c for c in found]
    if is_refused:
        raise InputError(
            f"{length.key}: expected a schedule whose learning rates do not depend on the number "
            f"of steps, as schedule=constant, got {before['schedule']['name']}; start a run of "
            "that length by train.py, or resume all the same with --allow-changed"
        )
    return found


def _typed(settings: Mapping[str, Any]) -> Settings:
    return config.typed(OmegaConf.create(dict(settings)))


def require_steps_left(folder: Path, step: int, total_steps: int) -> None:
    """Raise InputError if a run has made more steps than it shall have; finished, as many."""
    is_finished = record.is_run(folder) and record.read_summary(folder)["status"] == "finished"
    if step > total_steps or (is_finished and step == total_steps):
        raise InputError(
            f"trainer.max_steps: expected a run of {'more than' if is_finished else 'at least'} "
            f"{step} steps, which its checkpoint has made, got one of {total_steps}; raise "
            "trainer.max_steps or trainer.max_epochs"
        )


def rewound(
    folder: Path, state: dict[str, Any], before: Mapping[str, Any], plan: Plan
) -> dict[str, Any] | None:
    """Return a checkpoint of a run's last step as that of a longer run; None if it is no such.

    What is done in the last step and else is not due is undone: rows of the tables, and the
    validation, which comes again where the longer plan has it.

    Raises:
        InputError: the validation found the best weights, and the longer run would not have it.
    """
    progress = checkpoint.progress_of(state)
    step = progress.step
    ended = assemble.make_plan(_typed(before), plan.steps_per_epoch).total_steps
    if not step == ended < plan.total_steps:
        return None
    if progress.validated_step == step:
        if progress.best_step != step:
            progress.validations_without_gain -= 1
        elif not plan.validates_after(step):
            raise InputError(
                f"trainer.max_epochs: expected a run whose last validation, of step {step}, a "
                "longer one has as well, got one that found its best weights there; start a run "
                "of that length by train.py"
            )
        else:
            progress.best_metric = None  # what comes again is the best again
        progress.validated_step = step - 1
    is_logged = plan.is_due(plan.log_every_steps, step)
    is_hashed = plan.is_due(plan.fingerprint_every_steps, step)
    unwanted: dict[str, Callable[[list[str]], bool]] = {
        "metrics.csv": lambda row: row[2] == "validation" or not is_logged,
        "fingerprints.csv": lambda row: not is_hashed,
    }
    lengths = dict(state["table_bytes"])
    for name, is_unwanted in unwanted.items():
        lines = (folder / name).read_text()[: lengths[name]].splitlines(keepends=True)
        while lines[-1].startswith(f"{step},") and is_unwanted(lines[-1].split(",")):
            lengths[name] -= len(lines.pop())
    return {**state, "progress": asdict(progress), "table_bytes": lengths}


def keep(state: dict[str, Any], folder: Path) -> None:
    """Save such a checkpoint in place of both: the tables are about to be cut back to it."""
    for _ in range(2):
        checkpoint.save(state, folder / checkpoint.LAST)
