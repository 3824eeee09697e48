"""One experiment: from the settings to a finished record."""

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # PyTorch's optimizers would import it after `gc.freeze`

from seedbed import assemble, config, environment, launch
from seedbed.assemble import Parts, overlap, sources, statistics
from seedbed.config import Settings
from seedbed.environment import Imports
from seedbed.errors import InputError
from seedbed.record import Origin, chain, code, files
from seedbed.run import failures, restore
from seedbed.run.job import Job
from seedbed.run.profiling import profiled
from seedbed.run.rehearse import Rehearsed
from seedbed.run.run_logger import RunLogger, stopped_early
from seedbed.run.trial import Trial
from seedbed.training import checkpoint, epochs, loop, predictions
from seedbed.training.evaluate import (
    end_training,
    evaluate,
    run_evaluation_callbacks,
    swapped,
)
from seedbed.training.loop import Logger
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, Progress


def run_experiment(
    job: Job, rehearsed: Rehearsed, git: dict[str, Any], patch: bytes
) -> None:
    """Train from the newest checkpoint, or from the beginning; write the record.

    `job.summary` is updated even if training raises an exception.
    """
    assemble.prepare_backends(job.settings)
    device = choose_device(job)
    shards = share_slices(job, device)
    origin = describe(device, shards, git)
    imports = Imports(job.folder, origin)
    if job.starts_record:
        imports.scan()  # so that a new run's record is complete even if it fails here
        imports.write(patch)
    parts = build(job, device, shards, rehearsed, origin)
    origin |= describe_parts(job, parts, origin["versions"])
    imports.scan()
    if job.starts_record:
        launch.folders.require_submitted(job.folder, origin["imported_files"])
    state = restore.resume(
        job, parts, Origin(job.settings.plain, origin), patch, imports
    )
    progress = checkpoint.progress_of(state)
    run_logger = Logger(parts.training)
    if job.ranks.leads:
        run_logger = RunLogger(job, parts, imports, state, rehearsed)
    watching = job.ranks.watching() if shards.is_sharded else nullcontext()
    with closing(run_logger), watching:
        if progress.step == 0:  # else checked when it began
            check(job, parts, origin, run_logger.log)
        if isinstance(run_logger, RunLogger):
            run_logger.open_loggers(job.settings.logger)
        try:
            train(job, parts, progress, run_logger)
            test(parts, progress, run_logger, job.folder)
            parts.training.require_flags()
            end_training(parts.training, run_logger.log)
        finally:
            job.summary |= run_logger.summary(progress)


def choose_device(job: Job) -> torch.device:
    """Return the device of this process."""
    name = job.ranks.device_name(job.settings.trainer.device, torch.cuda.device_count())
    return assemble.choose_device(name)


def share_slices(job: Job, device: torch.device) -> Shards:
    """Meet the other processes, if any; return the slices of a batch that this one
    has."""
    trainer = job.settings.trainer
    job.ranks.meet(device)
    is_sharded = job.ranks.is_group and trainer.sharding == "full"
    in_tree = trainer.reduce == "tree"
    return Shards(trainer.slices, job.stop.requested, job.ranks, in_tree, is_sharded)


def describe(
    device: torch.device, shards: Shards, git: dict[str, Any]
) -> dict[str, Any]:
    """Return the environment of a run, before anything is built."""
    depends: Any = None if shards.order_is_fixed else shards.ranks.count
    if depends and shards.is_sharded:
        depends = f"{depends}, sharded"
    return environment.describe(device) | {
        "processes": {"count": shards.ranks.count, "bits_depend_on_count": depends},
        "git": git,
        "data_sha256": None,
        "files_sha256": {},
    }


def build(
    job: Job,
    device: torch.device,
    shards: Shards,
    rehearsed: Rehearsed,
    origin: dict[str, Any],
) -> Parts:
    """Import user code, measure what the data sets need, and build the parts of the
    run.

    Lengths of streams go to the settings of the job, the hash of statistics to its
    `origin`.
    """
    import_targets(job.settings)
    job.settings = sources.count_streams(job.settings, shards)
    settings = job.settings
    fitted = partial(statistics.of_run, settings, job.folder, job.is_resuming)
    file = shards.gather(lambda: fitted() if job.ranks.leads else None)[0]
    if file is not None:
        origin["statistics_sha256"] = code.sha256(file)
        settings = statistics.filled(settings, statistics.parse(file))
    parts = assemble.build_parts(settings, device, shards)
    parts.training.require_flags()
    plan = replace(
        parts.plan,
        compared_steps=len(rehearsed.fingerprints),
        last_step=job.request.last_step,
        new_best_steps=job.request.new_best_steps,
        kept_steps=chained_steps(job),
    )
    return replace(parts, plan=plan)


def chained_steps(job: Job) -> frozenset[int]:
    """Return the steps of the chain of the record that is replayed, if any.

    A record's settings may state others, which its plan does not cover.
    """
    replayed = job.request.record
    return frozenset(chain.checkpoints(Path(replayed)) if replayed else ())


def import_targets(settings: Settings) -> None:
    """Import the modules of all classes that the settings name, in an order of its own.

    What a module draws during its import is seeded by its name (`data.imports`).
    """
    sources.seed_stream(settings, "data")
    for key, target in config.targets_of(settings.plain):
        if not key.startswith("logger"):
            with suppress(Exception):  # left to the build
                importlib.import_module(target.rpartition(".")[0])


def describe_parts(job: Job, parts: Parts, versions: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of data, files and packages once all parts are built."""
    plain = job.settings.plain
    stated = [k for k, v in parts.sources.items() if getattr(v.dataset, "sha256", None)]
    return {
        "versions": versions | environment.more_versions(plain),
        "data_sha256": getattr(parts.sources["train"].dataset, "sha256", None),
        "files_sha256": (files.named_in(plain, stated) if job.ranks.leads else {}),
    }


def check(
    job: Job, parts: Parts, origin: Mapping[str, Any], log: Callable[[str], None]
) -> None:
    """Look at the data sets, and take the first passes, of a run that begins."""
    if job.settings.trainer.in_process:  # it is debugged
        return
    if job.ranks.leads and not job.request.rehearsal:
        overlap.check(parts.settings, parts.sources, log)
    failures.preflight(parts, log)
    for path, value in origin["files_sha256"].items():
        if value.startswith(("not recorded", "names and sizes")):
            log(f"the record lacks the contents of {path}; add some to files")


def train(job: Job, parts: Parts, progress: Progress, run_logger: Logger) -> None:
    """Train to the end of the plan, or until early stopping ends the run."""
    training = parts.training
    plan = parts.plan
    shards = parts.shards
    observing: AbstractContextManager[Callable[[int], None] | None] = nullcontext(None)
    if job.request.rehearsal:
        observing = nullcontext(
            Trial(parts, job.folder, is_resumed=progress.step > 0).after_step
        )
    elif job.ranks.leads and plan.trainer.profile_steps:
        observing = profiled(job.folder, plan.trainer.profile_steps, run_logger.log)
    detects = plan.trainer.detect_anomaly or torch.is_anomaly_enabled()
    batches = parts.training_batches(progress)
    if not training.overrides("epoch_values"):
        owners = {"data.train": parts.sources["train"].dataset}
        owners["data.sampler"] = getattr(parts.order, "sampler", None)
        in_epoch = plan.steps_per_epoch * len(shards.mine)
        batches = epochs.warning(batches, owners, in_epoch, run_logger.log)
    validation = validation_loader(parts)
    try:
        with (
            closing(validation),
            torch.autograd.set_detect_anomaly(detects),
            observing as after_step,
        ):
            loop.fit(
                training,
                plan,
                progress,
                batches,
                validation,
                run_logger,
                shards,
                after_step,
            )
    except failures.NotFinite as error:
        raise failures.explained(error, parts) from None
    if early := stopped_early(parts.plan, progress):
        run_logger.log(
            f"stopped early at step {early['step']} of {parts.plan.total_steps}: no"
            f" better {training.monitor.metric} in {early['patience']} validations"
            f" after step {early['best_step']}"
        )


def validation_loader(parts: Parts) -> sources.EvaluationLoader:
    """Return what loads the validation set, with the same loader workers each time."""
    return sources.EvaluationLoader(
        parts.settings,
        parts.sources["validation"],
        parts.shards,
        parts.training.device,
        parts.settings.trainer.limit_validation_batches,
        # As in training: the values for an epoch may be in what data sets share.
        is_kept=not parts.training.overrides("epoch_values"),
    )


def test(parts: Parts, progress: Progress, run_logger: Logger, folder: Path) -> None:
    """Test the weights selected by `trainer.test_weights`, and on a test set also the
    last ones."""
    training = parts.training
    most = parts.settings.trainer.limit_test_batches
    is_test = parts.settings.data.spec("test") is not None
    counts = progress.step_that_counts(parts.settings.trainer.test_weights)

    def evaluated(step: int) -> Evaluation:
        result = evaluate(training, loader(), parts.shards, predictions.MOST)
        # Metrics of the validation set are not test results.
        if not is_test:
            return replace(result, values={})
        return run_evaluation_callbacks(training, "test", step, result)

    results: dict[int, Evaluation] = {}  # the weights that count come last
    loader = sources.EvaluationLoader(
        parts.settings, parts.sources["test"], parts.shards, training.device, most
    )
    with closing(loader):
        if is_test or counts == progress.step:
            with swapped(training):
                results[progress.step] = evaluated(progress.step)
        if counts != progress.step:
            # All processes can read best.pt: they met in `loop.save` after rank 0 had
            # written it.
            with checkpoint.best_weights(folder / "checkpoints", progress, training):
                results[counts] = evaluated(counts)
    if (
        training.strict
        and len({result.samples_hash for result in results.values()}) > 1
    ):
        raise InputError(
            "data.test: expected the same samples for the best weights as for the last"
            " ones, got others; let a sample depend on its index and on seeded draws"
            " alone, or set determinism.on_nondeterministic=warn"
        )
    run_logger.log_test(results)
