"""A run that goes on beyond its planned end, to the bits of one of that length."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seedbed import config, record
from seedbed.errors import InputError
from seedbed.record import Change
from seedbed.training import checkpoint
from seedbed.training.state import Plan
from seedbed.worker import assemble


def plan_before(state: Mapping[str, Any], plan: Plan) -> Plan:
    """Return the plan that a checkpoint was made by."""
    settings = config.typed(OmegaConf.create(state["origin"]["settings"]))
    return assemble.make_plan(settings, plan.steps_per_epoch)


def judged(changes: Sequence[Change], state: Mapping[str, Any], plan: Plan) -> list[Change]:
    """Return changes since a checkpoint: the run's length alters bits only if it altered a rate."""
    if not any(change.key in record.LENGTHS for change in changes):
        return list(changes)
    rates = plan_before(state, plan).learning_rate_factor, plan.learning_rate_factor
    if any(rates[0](n) != rates[1](n) for n in range(state["progress"]["step"])):
        return list(changes)
    return [replace(c, alters_bits=False) if c.key in record.LENGTHS else c for c in changes]


def rewound(folder: Path, state: dict[str, Any], plan: Plan) -> dict[str, Any] | None:
    """Return a checkpoint of a run's last step as that of a longer run; None if it is no such.

    What is done in the last step and else is not due is undone: rows of the tables, and the
    validation, which comes again where the longer plan has it.

    Raises:
        InputError: the validation found the best weights, and the longer run would not have it.
    """
    progress = checkpoint.progress_of(state)
    step = progress.step
    if not step == plan_before(state, plan).total_steps < plan.total_steps:
        return None
    if progress.validated_step == step:
        if progress.best_step != step:
            progress.validations_without_gain -= 1
        elif plan.validates_after(step):
            progress.best_metric = None  # what comes again is the best again
        else:
            raise InputError(
                f"trainer.max_epochs: expected a run whose last validation, of step {step}, a "
                "longer one has as well, got one that found its best weights there; start a run "
                "of that length by train.py"
            )
        progress.validated_step = step - 1
    # By table, the beginnings of rows that the longer run does not have after this step.
    unwanted = {"metrics.csv": [f"{step},{step / plan.steps_per_epoch!r},validation,"]}
    if not plan.is_due(plan.log_every_steps, step):
        unwanted["metrics.csv"] = [f"{step},"]
    if not plan.is_due(plan.fingerprint_every_steps, step):
        unwanted["fingerprints.csv"] = [f"{step},"]
    lengths = dict(state["table_bytes"])
    for name, beginnings in unwanted.items():
        lines = (folder / name).read_text()[: lengths[name]].splitlines(keepends=True)
        while lines[-1].startswith(tuple(beginnings)):
            lengths[name] -= len(lines.pop())
    return {**state, "progress": asdict(progress), "table_bytes": lengths}
