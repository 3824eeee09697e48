"""Resuming: the checkpoint is checked, then restored, and the record is repaired.

A run may be extended beyond its planned end, with the same bits as a run planned that
long.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seedbed import assemble, config, environment, record, weights
from seedbed.environment import Imports
from seedbed.errors import InputError, some
from seedbed.record import (
    LENGTHS,
    PATIENCE,
    Change,
    Monitor,
    Origin,
    mark,
    text,
    untrusted,
)
from seedbed.record.change import matches
from seedbed.run.job import Job
from seedbed.training import checkpoint, digests, evaluate
from seedbed.training.state import Plan, Progress, TrainingState

# Settings of which weights are kept as the best, or tested; steps do not depend on
# them.
_SELECTING = (
    "trainer.validate_every_",
    "trainer.test_weights",
    "trainer.monitor",
    "trainer.mode",
)
# Patterns of what does not say how weights are evaluated, or on which samples: of
# training alone, and the machine. `is_best_of_another` compares the monitor.
_OF_TRAINING = (
    "seed",
    "seeds.order",
    "seeds.augment",
    "optimizer",
    "optimizer.*",
    "schedule",
    "schedule.*",
    "data.train",
    "data.train.*",
    "data.test",
    "data.test.*",
    "data.batch_size",
    "data.sampler",
    "data.sampler.*",
    "data.training_collate",
    "data.training_collate.*",
    "data.samples_per_epoch",
    *LENGTHS,
    PATIENCE,
    "trainer.monitor",
    "trainer.mode",
    "trainer.test_weights",
    "trainer.validate_every_*",
    "trainer.accumulate",
    "trainer.shards",
    "trainer.reduce",
    "trainer.gradient_clip_norm",
    "trainer.limit_train_batches",
    "trainer.limit_test_batches",
    "trainer.overfit_batches",
    "cpu.*",
    "gpu.*",
)


@dataclass(frozen=True)
class Resumption:
    """A checkpoint that a run was restored from, and what is noted of it."""

    state: dict[str, Any]
    problems: Sequence[str]  # with newer checkpoints, which are damaged
    changes: Sequence[Change]  # since it was written
    starts_anew: bool  # whether the best weights are chosen anew


def resume(
    job: Job, parts: assemble.Parts, origin: Origin, patch: bytes, imports: Imports
) -> dict[str, Any]:
    """Restore a run's newest good checkpoint in all processes, and return it; {} if
    there is none.

    Rank 0 repairs the record, unless an InputError says that the run cannot be resumed
    here.
    """
    resumption = restore_newest(job, parts, origin, imports)
    parts.shards.gather(lambda: None)  # wait until all processes have read it
    if job.ranks.leads:
        remove_unfinished(job.folder)
        if resumption is not None:
            note_resumption(job, parts.training, resumption)
        write_settings(job.folder, origin.settings)
        imports.write(patch)
    return {} if resumption is None else resumption.state


def restore_newest(
    job: Job, parts: assemble.Parts, origin: Origin, imports: Imports
) -> Resumption | None:
    """Restore the newest good checkpoint; None if there is none.

    Raise InputError if what has changed since does not allow it.
    """
    folder = job.folder
    checkpoints = job.folder / "checkpoints"
    training = parts.training
    is_sharded = training.sharding.is_sharded
    state, problems = checkpoint.load_newest(checkpoints, training.reads_to, is_sharded)
    if state is None:
        return None
    before = Origin(state["origin"]["settings"], state["origin"]["environment"], folder)
    imports.expect(before.imported)
    changes = changes_since(before, origin, state["progress"]["step"], parts.plan)
    # other ranks do not see all changes
    if job.ranks.leads and not job.request.allow_changed:
        refuse_changes(folder, state, changes)
    state = of_length(folder, state, parts.plan, changes)
    # Rank 0 decides: others do not see all changes. A replay chooses as the run did,
    # whatever has changed on the way to this machine.
    counting = () if job.request.record else changes
    is_new = partial(is_best_of_another, state, training.monitor, counting)
    starts_anew = job.ranks.decide("new best", is_new)
    if starts_anew:
        state = without_best(state)
    # If it belongs to the chain of the run as it is now, it is added again.
    kept_step = min(
        checkpoint.progress_of(state).kept_step, state["progress"]["step"] - 1
    )
    state["progress"]["kept_step"] = kept_step
    if job.request.allow_changed:  # the next validation compares its samples with these
        samples = state["progress"]["samples_hash"]
        state["progress"]["samples_before"] = None if starts_anew else samples
        state["progress"]["samples_hash"] = None
    if not problems:  # else it is previous.pt, of which the summary says nothing
        weights.require_same_bytes(folder, checkpoints / checkpoint.LAST, state)
    require_best(folder, training, checkpoint.progress_of(state))
    restore(folder, training, state)
    return Resumption(state, problems, changes, starts_anew)


def remove_unfinished(folder: Path) -> None:
    """Remove what a process left that was killed while it wrote."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    for directory in (folder, checkpoints):
        for path in (*directory.glob(".*.tmp"), *directory.glob(".*.new")):
            path.unlink(missing_ok=True)


def note_resumption(job: Job, training: TrainingState, resumption: Resumption) -> None:
    """Print and record that a run goes on, with what has changed; write its best
    weights again."""
    state = resumption.state
    checkpoints = job.folder / "checkpoints"
    # the next save would rename the damaged one over the good one
    if resumption.problems:
        checkpoint.save(state, checkpoints / checkpoint.LAST, keep_previous=False)
    progress = checkpoint.progress_of(state)
    step = state["progress"]["step"]
    for problem in resumption.problems:
        print(f"warning: {problem}; resuming from the one before it, of step {step}")
    for change in resumption.changes:
        print(f"changed since step {step}: {change}")
    job.is_resuming = False
    entry = environment.keep_code(job.folder, step, resumption.changes)
    if resumption.starts_anew:
        entry["best_starts_anew"] = step
        print(
            f"from step {step} on, the best weights are chosen anew: {training.monitor}"
        )
    job.summary["resumes"] += [entry]
    job.write_summary()
    # Computed again, as best.pt is written again.
    state[digests.WEIGHTS] = digests.of_weights(state)
    evaluate.note_best(training, progress, state)
    evaluate.save_best(checkpoints, training, progress, state)


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write config.yaml if it has other settings, and its mark if it had one of this
    checkout."""
    if untrusted.read_dict(folder) == settings:  # also counted streams
        return
    is_own = mark.is_own(folder)
    record.write_atomically(folder / "config.yaml", OmegaConf.to_yaml(settings))
    if is_own:
        mark.write(folder)


def require_best(folder: Path, training: TrainingState, progress: Progress) -> None:
    """Raise InputError if best.pt has other weights than last.pt or the summary says of
    its step.

    If the last weights are the best, it is written again. A damaged one matters when it
    is used.
    """
    path = folder / "checkpoints" / checkpoint.BEST
    best = dict[str, Any]()
    if progress.best_step in (0, progress.step):
        return
    with suppress(InputError):
        best = checkpoint.load(path, training.reads_to, training.sharding.is_sharded)
    if best:
        checkpoint.require_best(path, best, progress)
        weights.require_same_bytes(folder, path, best)


def changes_since(
    before: Origin, origin: Origin, step: int, plan: Plan
) -> list[Change]:
    """Return what has changed since the checkpoint of a step was made.

    A longer run alters bits only if a learning rate used so far is another; more
    patience, none.
    """
    changes = record.changes(before, origin)
    harmless = set[str]()
    for change in changes:
        # None: for good
        waits = change.now
        waited = change.before
        if (
            change.key == PATIENCE
            and waited is not None
            and (waits is None or waits > waited)
        ):
            harmless.add(PATIENCE)
    if any(change.key in LENGTHS for change in changes):
        settings = config.check(OmegaConf.create(dict(before.settings)))
        then = assemble.make_plan(settings, plan.steps_per_epoch).learning_rate_factor
        if all(then(n) == plan.learning_rate_factor(n) for n in range(step)):
            harmless.update(LENGTHS)
    return [
        replace(c, alters_bits=c.alters_bits and c.key not in harmless) for c in changes
    ]


def refuse_changes(
    folder: Path, state: Mapping[str, Any], changes: Iterable[Change]
) -> None:
    """Raise InputError if a change can alter bits of the steps that the preset
    promises."""
    serious = [change for change in changes if change.alters_bits]
    settings = state["origin"]["settings"]
    preset = settings["determinism"]
    schedule = settings["schedule"]
    # Else validation has a say in the steps to come.
    if (
        not settings["trainer"]["early_stopping_patience"]
        and "patience" not in schedule
    ):
        serious = [
            change for change in serious if not change.key.startswith(_SELECTING)
        ]
    if serious and config.promises_bits(preset["on_nondeterministic"]):
        shown = some(serious, 3)
        more = ""
        if any(change.key in LENGTHS for change in serious):
            more += (
                " (the schedule depends on its length; that of schedule=constant does"
                " not)"
            )
        if any(change.key.startswith(_SELECTING) for change in serious):
            more += " (early stopping or the schedule counts validations)"
        remedy = (
            "undo that, or pass --allow-changed, after which verify.py cannot repeat"
            " the run from its start"
        )
        if all(change.key in LENGTHS for change in serious):
            asked = " ".join(
                f"{change.key}={text.show(change.now)}" for change in serious
            )
            remedy = (
                "to extend it all the same, with other bits than a run of that length,"
                " so that verify.py cannot repeat it from its start: "
                f"{text.resume_command(folder)} {asked} --allow-changed"
            )
        raise InputError(
            "determinism=strict: expected settings, code and environment of step "
            f"{state['progress']['step']}, got {shown}{more}; {remedy}"
        )


def of_length(
    folder: Path, state: dict[str, Any], plan: Plan, changes: Iterable[Change]
) -> dict[str, Any]:
    """Return a checkpoint without its final validation, if a longer run would not have
    made it."""
    progress = checkpoint.progress_of(state)
    step = progress.step
    total_steps = plan.total_steps
    is_finished = (
        record.is_run(folder) and record.read_summary(folder)["status"] == "finished"
    )
    if step > total_steps or (is_finished and step == total_steps):
        raise InputError(
            "trainer.max_steps: expected a run of"
            f" {'more than' if is_finished else 'at least'} {step} steps, which its"
            f" checkpoint has made, got one of {total_steps}"
        )
    if is_finished and plan.is_over(progress):
        raise InputError(
            f"{PATIENCE}: expected more than the {progress.validations_without_gain}"
            " validations after which the run stopped early, got"
            f" {plan.trainer.early_stopping_patience}; set it higher, or to null"
        )
    lengths = [change.key for change in changes if change.key in LENGTHS]
    if not lengths or progress.validated_step != step or plan.validates_after(step):
        return state
    is_counted = progress.plateau.get("without_gain") == 0  # and cannot be undone
    of_callbacks = any(state[key] for key in state if key.startswith("callback."))
    if progress.best_step == step or is_counted or of_callbacks:
        raise InputError(
            f"{lengths[0]}: expected a run whose last validation, of step {step}, a"
            " longer one has as well, got one whose best weights, learning rates or"
            " callbacks' state come from it; start a run of that length by train.py"
        )
    if progress.plateau:
        progress.plateau["without_gain"] -= 1
    progress.validated_step = step - 1
    progress.validations_without_gain -= 1
    return {**state, "progress": asdict(progress)}


def is_best_of_another(
    state: Mapping[str, Any], monitor: Monitor, changes: Iterable[Change]
) -> bool:
    """Return whether a checkpoint's best value is not comparable with those to come.

    It is of another metric, or a change since then may concern how weights are
    evaluated, or on which samples.
    """
    measured = checkpoint.progress_of(state).monitor
    if measured is None:  # there is none
        return False
    others = (change for change in changes if not matches(change.key, _OF_TRAINING))
    return measured != monitor or any(change.alters_bits for change in others)


def without_best(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint without its best value, early-stopping count and plateau."""
    progress = checkpoint.progress_of(state)
    progress.forget_best()
    return {**state, "progress": asdict(progress)}


def is_kept(row: record.Row, state: Mapping[str, Any], plan: Plan) -> bool:
    """Return whether a row of the tables is kept when a run resumes from a checkpoint.

    Later rows will be written again, and a row of a last step alone is not in a longer
    run's.
    """
    step = int(row["step"])
    phase = row.get("phase")
    progress = state["progress"]
    if phase == "validation":
        return step <= int(progress["validated_step"])
    then = state["origin"]["settings"]  # the next steps may be logged less often
    trainer = then["trainer"]
    fingerprint = then["fingerprint"]
    every_steps = trainer["log_every_steps"] if phase else fingerprint["every_steps"]
    is_due = step < progress["step"] or plan.is_due(every_steps, step)
    is_due = is_due or (phase == "train" and plan.ends_epoch(step))
    return phase != "test" and step <= progress["step"] and is_due


def restore(folder: Path, training: TrainingState, state: dict[str, Any]) -> None:
    """Restore the training state, except for optimizer options that are built otherwise
    now."""
    optimizers = training.optimizers.values()
    built = [dict(group) for each in optimizers for group in each.param_groups]
    with checkpoint.fitting(folder):
        checkpoint.restore(training, state)
    if training.strict:  # otherwise, an evaluation may have changed the weights
        weights.require_recorded(folder, folder / "checkpoints", state, training)
    # The checkpoint's state includes the old options.
    groups = [group for each in optimizers for group in each.param_groups]
    options = zip(training.options, state.get("options", training.options), strict=True)
    for group, as_built, (built_options, saved_options) in zip(
        groups, built, options, strict=True
    ):
        changed = [
            name
            for name, option in built_options.items()
            if option != saved_options.get(name)
        ]
        group.update({name: as_built[name] for name in changed})
        if "lr" in changed:
            group["initial_lr"] = as_built["lr"]
