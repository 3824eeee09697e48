"""One experiment: from the settings to a finished record."""

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # PyTorch's optimizers would import it after `gc.freeze`

from seedbed import assemble, config, environment, launch
from seedbed.assemble import Parts, overlap, sources, statistics
from seedbed.environment import Imports
from seedbed.errors import InputError
from seedbed.record import Origin, code
from seedbed.run import failures, restore
from seedbed.run.job import Job
from seedbed.run.profiling import profiled
from seedbed.run.rehearse import Rehearsed
from seedbed.run.run_logger import RunLogger, stopped_early
from seedbed.run.trial import Trial
from seedbed.training import checkpoint, loop, predictions
from seedbed.training.evaluate import end_training, evaluate, run_evaluation_callbacks, swapped
from seedbed.training.loop import Logger
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, Progress


def run_experiment(job: Job, rehearsed: Rehearsed, git: dict[str, Any], patch: bytes) -> None:
    """Train from the newest checkpoint, or from the beginning; write the record.

    `job.summary` is updated even if training raises an exception.
    """
    settings = job.settings
    assemble.prepare_backends(settings)
    trainer, group = settings.trainer, job.group
    name = group.device_name(trainer.device, torch.cuda.device_count()) if group else trainer.device
    device = assemble.choose_device(name)
    if group:
        group.meet(device)
    in_tree, is_sharded = trainer.reduce == "tree", bool(group) and trainer.sharding == "full"
    shards = Shards(trainer.slices, job.stop.requested, group, in_tree, is_sharded)
    depends: Any = None if shards.order_is_fixed else shards.processes
    if depends and is_sharded:
        depends = f"{depends}, sharded"
    found = environment.describe(device) | {
        "processes": {"count": shards.processes, "bits_depend_on_count": depends},
        "git": git,
        "data_sha256": None,
        "files_sha256": {},
    }
    imports = Imports(job.folder, found)
    if job.leads and not job.is_resuming:
        imports.scan()  # so that a new run's record is complete even if it fails here
        imports.write(patch)
    # What a module draws during its import is seeded by its name (`data.imports`).
    sources.seed_stream(settings, "data")
    for key, target in config.targets_of(settings.plain):
        if not key.startswith("logger"):
            with suppress(Exception):  # left to the build
                importlib.import_module(target.rpartition(".")[0])
    job.settings = settings = sources.count_streams(settings, shards)
    fitted = partial(statistics.of_run, settings, job.folder, job.is_resuming)
    file = shards.gather(lambda: fitted() if shards.writes_record else None)[0]
    if file is not None:
        found["statistics_sha256"] = code.sha256(file)
        settings = statistics.filled(settings, statistics.parse(file))
    parts = assemble.build_parts(settings, device, shards)
    compared, last_step = len(rehearsed.fingerprints), job.request.last_step
    plan = replace(parts.plan, compared_steps=compared, last_step=last_step)
    plan = replace(plan, new_best_steps=job.request.new_best_steps)
    parts = replace(parts, plan=plan)
    parts.training.require_flags()
    found["versions"] |= environment.more_versions(job.settings.plain)
    stated = [k for k, v in parts.sources.items() if getattr(v.dataset, "sha256", None)]
    found["data_sha256"] = getattr(parts.sources["train"].dataset, "sha256", None)
    lines: list[str] = []
    if job.leads:
        found["files_sha256"] = environment.file_digests(job.settings.plain, stated)
        for path, value in found["files_sha256"].items():
            if value.startswith(("not recorded", "names and sizes")):
                lines.append(f"the record lacks the contents of {path}; add some to files")
    imports.scan()
    if job.leads and not job.is_resuming:
        launch.folders.require_submitted(job.folder, found["imported_files"])
    state = restore.resume(job, parts, Origin(job.settings.plain, found), patch, imports)
    progress = checkpoint.progress_of(state)
    run_logger = Logger(parts.training)
    if job.leads:
        run_logger = RunLogger(job, parts, imports, state, rehearsed)
    watched = group.watching() if group and is_sharded else nullcontext()
    with closing(run_logger), watched:
        if progress.step == 0 and not trainer.in_process:  # else checked when it began, or debugged
            if shards.writes_record and not job.request.rehearsal:
                overlap.check(settings, parts.sources, run_logger.log)
            failures.preflight(parts, run_logger.log)
            for line in lines:
                run_logger.log(line)
        if isinstance(run_logger, RunLogger) and settings.logger:
            from seedbed import loggers  # which may be deleted

            run_logger.loggers = loggers.Loggers(run_logger.run, run_logger.log)
        try:
            train(job, parts, progress, run_logger)
            test(parts, progress, run_logger, job.folder)
            parts.training.require_flags()
            end_training(parts.training, run_logger.log)
        finally:
            if isinstance(run_logger, RunLogger):
                job.summary |= run_logger.summary(progress)


def train(job: Job, parts: Parts, progress: Progress, run_logger: Logger) -> None:
    """Train to the end of the plan, or until early stopping ends the run."""
    training, plan, shards = parts.training, parts.plan, parts.shards
    observing: AbstractContextManager[Callable[[int], None] | None] = nullcontext(None)
    if job.request.rehearsal:
        observing = nullcontext(Trial(parts, job.folder, is_resumed=progress.step > 0).after_step)
    elif job.leads and plan.trainer.profile_steps:
        observing = profiled(job.folder, plan.trainer.profile_steps, run_logger.log)
    detects = plan.trainer.detect_anomaly or torch.is_anomaly_enabled()
    batches, held_out = parts.training_batches(progress.step), parts.sources["validation"]
    most = parts.settings.trainer.limit_validation_batches
    validation = partial(sources.evaluation_batches, parts.settings, held_out, shards, most)
    try:
        with torch.autograd.set_detect_anomaly(detects), observing as after_step:
            loop.fit(training, plan, progress, batches, validation, run_logger, shards, after_step)
    except failures.NotFinite as error:
        raise failures.explained(error, parts) from None
    if early := stopped_early(parts.plan, progress):
        run_logger.log(
            f"stopped early at step {early['step']} of {parts.plan.total_steps}: no better "
            f"{training.monitor.metric} in {early['patience']} validations after "
            f"step {early['best_step']}"
        )


def test(parts: Parts, progress: Progress, run_logger: Logger, folder: Path) -> None:
    """Test the weights selected by `trainer.test_weights`, and on a test set also the last ones."""
    training, most = parts.training, parts.settings.trainer.limit_test_batches
    is_test = parts.settings.data.spec("test") is not None
    counts = progress.step_that_counts(parts.settings.trainer.test_weights)

    def evaluated(step: int) -> Evaluation:
        source, shards = parts.sources["test"], parts.shards
        batches = sources.evaluation_batches(parts.settings, source, shards, most)
        result = evaluate(training, batches, parts.shards, predictions.MOST)
        # Metrics of the validation set are not test results.
        if not is_test:
            return replace(result, values={})
        return run_evaluation_callbacks(training, "test", step, result)

    results: dict[int, Evaluation] = {}  # the weights that count come last
    if is_test or counts == progress.step:
        with swapped(training):
            results[progress.step] = evaluated(progress.step)
    if counts != progress.step:
        # All processes can read best.pt: they met in `loop.save` after rank 0 had written it.
        with checkpoint.best_weights(folder / "checkpoints", progress, training):
            results[counts] = evaluated(counts)
    if training.strict and len({result.samples_hash for result in results.values()}) > 1:
        raise InputError(
            "data.test: expected the same samples for the best weights as for the last ones, got "
            "others; let a sample depend on its index and on seeded draws alone, or set "
            "determinism.on_nondeterministic=warn"
        )
    run_logger.log_test(results)
