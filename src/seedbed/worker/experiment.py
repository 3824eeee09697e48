"""One experiment: from the settings to a finished record."""

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from seedbed import config, determinism, fingerprint, record
from seedbed.data import loader
from seedbed.errors import InputError
from seedbed.launch import resume
from seedbed.operations import refusals
from seedbed.record import source
from seedbed.training import checkpoint, loop, unsaved
from seedbed.training.evaluate import evaluate
from seedbed.training.logger import Logger, NullLogger
from seedbed.training.shards import Shards
from seedbed.training.state import Plan, Progress, TrainingState
from seedbed.worker import assemble, environment, inputs, loaded, restore
from seedbed.worker.assemble import Settings
from seedbed.worker.run_logger import RunLogger

if TYPE_CHECKING:
    from seedbed.distributed.processes import Processes


def run_experiment(
    folder: Path,
    settings: Settings,
    code: tuple[dict[str, Any], bytes],
    stop_requested: Callable[[], bool],
    summary: dict[str, Any],
    request: resume.Request,
    processes: "Processes | None" = None,
) -> None:
    """Train from the newest checkpoint, or from the beginning; write the record.

    Args:
        code: what `source.snapshot` returned.
        summary: brought up to date, also when an exception leaves; what becomes summary.json.
        request: what somebody who goes on with the run asked for; in the settings already.
        processes: this process among those of the run; None: it is the only one.

    Raises:
        training.Interrupted: it was asked to stop, and a checkpoint is saved.
    """
    assemble.prepare_backends(settings["determinism"])
    device = assemble.choose_device(settings["trainer"]["device"], processes)
    shards = assemble.cut_batches(settings["trainer"], device, stop_requested, processes)
    circumstances = environment.describe(device) | {
        "processes": describe(shards),
        "git": code[0],
        "data_sha256": None,
        "files_sha256": {},
    }
    if (
        summary["status"] == "running" and shards.writes_record
    ):  # a new run: its record is complete, also if it fails here
        record.write_environment(folder, circumstances, code[1])
    if shards.writes_record:
        circumstances["files_sha256"] = inputs.digests(settings)
    sources = assemble.build_sources(settings)
    circumstances["data_sha256"] = getattr(sources.train.dataset, "sha256", None)
    training = assemble.build_training_state(settings, device, sources.train)
    check_objective(settings["objective"], training.task.metric_name)
    note_loaded(circumstances, settings, code[1])
    origin = resume.Origin(dict(settings), circumstances, source.patched_files(code[1]))
    plan = assemble.make_plan(settings, len(sources.train))
    state = resume_from_checkpoint(
        folder, training, origin, code[1], request, summary, shards, plan.total_steps
    )
    progress = checkpoint.progress_of(state)
    run_logger: Logger = NullLogger()
    if shards.writes_record:
        run_logger = RunLogger(folder, training, plan, asdict(origin), state)
    print_header(run_logger, settings, training, plan, progress, shards)
    if lacking := source.warning(circumstances["git"]):
        run_logger.log(f"warning: {lacking}")
    try:
        if isinstance(run_logger, RunLogger) and settings.get("logger"):
            open_loggers(folder, settings, run_logger)
        with warnings_listed(settings["determinism"], training, run_logger):
            train(settings, training, plan, progress, sources, run_logger, shards)
            test = evaluation(settings, sources.test, shards)
            result = evaluate(training, test, shards)
        run_logger.log_test(progress, result)
        summary["fingerprints"] = {"predictions": hash_of([result.output_hashes])}
    finally:
        run_logger.close()
        if shards.writes_record:
            summarize(folder, settings, training, plan, progress, run_logger.last, summary)


def open_loggers(folder: Path, settings: Settings, run_logger: RunLogger) -> None:
    """Let the loggers of the configuration know what the run logger writes, and wrote so far."""
    from seedbed import loggers  # a part that can be deleted

    run = loggers.Run(folder, settings, loggers.history(folder))
    run_logger.observers.append(loggers.open_all(run, run_logger.log))


def note_loaded(circumstances: dict[str, Any], settings: Settings, patch: bytes) -> None:
    """Note what the classes of the run brought along: distributions, and code in no record."""
    root, git = source.project_root(), circumstances["git"]
    circumstances["versions"] |= loaded.more_versions(settings, root)
    recorded = source.recorded_files(root, git["commit"], source.patched_files(patch))
    if recorded is None:  # no code is, and the record says so
        return
    lacks = git["lacks"] | loaded.unrecorded(recorded, settings["trusted_packages"], root)
    circumstances["git"] = git | {"dirty": bool(patch or lacks), "lacks": lacks}


def check_objective(name: str, metric_name: str) -> None:
    """Raise InputError for an objective that no run of this task can have."""
    known = ["train_loss"] + [
        f"{phase}_{what}" for phase in ("validation", "test") for what in ("loss", metric_name)
    ]
    known.append(f"best_validation_{metric_name}")
    if name not in known:
        raise InputError(
            f"objective: expected one of {', '.join(known)}, got {name}; "
            f"{config.nearest(name, known)}"
        )


def warnings_listed(
    preset: Settings, training: TrainingState, run_logger: Logger
) -> AbstractContextManager[None]:
    """List operations without a deterministic implementation, where a warning was asked for."""
    if preset["on_nondeterministic"] != "warn":
        return nullcontext()
    return refusals.reported(training.model, run_logger.log)


def hash_of(tensors: Iterable[torch.Tensor]) -> str | None:
    """Return the fingerprint of tensors as text; None if a GPU has failed and answers no more."""
    try:
        return fingerprint.text(int(fingerprint.of_tensors(tensors)))
    except torch.AcceleratorError:
        return None


def resume_from_checkpoint(
    folder: Path,
    training: TrainingState,
    origin: resume.Origin,
    patch: bytes,
    request: resume.Request,
    summary: dict[str, Any],
    shards: Shards,
    total_steps: int,
) -> dict[str, Any]:
    """Take up the run, the process that writes the record first: it checks and mends."""
    if shards.writes_record:
        state = restore.resume_from_checkpoint(
            folder, training, origin, patch, request, summary, total_steps
        )
    shards.gather(lambda: None)
    if not shards.writes_record:
        restored = restore.load(folder, training, origin, allow_changed=True)
        state = restored.state if restored else {}
    return state


def describe(shards: Shards) -> dict[str, Any]:
    """Return what environment.json says of the processes: how many, and if bits depend on it."""
    count = shards.processes
    return {"count": count, "bits_depend_on_count": None if shards.order_is_fixed else count}


def train(
    settings: Settings,
    training: TrainingState,
    plan: Plan,
    progress: Progress,
    sources: assemble.Sources,
    run_logger: Logger,
    shards: Shards,
) -> None:
    """Train to the end of the plan."""
    positions = loader.training_positions(
        len(sources.train),
        settings["data"]["batch_size"],
        settings["seeds"]["order"],
        progress.step,
        plan.total_steps,
    )
    how = assemble.loading(settings, training.device)
    batches = loader.load(sources.train, shards.divide(positions), how, settings["determinism"])
    validation = functools.partial(evaluation, settings, sources.validation, shards)
    watch = unsaved.Watch(training, run_logger.log)
    loop.fit(training, plan, progress, batches, validation, run_logger, shards, watch)


def evaluation(settings: Settings, source: loader.Source, shards: Shards) -> Iterable[loader.Batch]:
    """Return our batches of an evaluation; data sets that load whole batches need no workers."""
    positions = loader.evaluation_positions(len(source), settings["data"]["eval_batch_size"])
    workers = 0 if hasattr(source.dataset, "fetch") else settings["data"]["num_workers"]
    how = loader.Loading(workers, True, 2, settings["data"]["start_method"])
    return loader.load(source, shards.share(positions), how, settings["determinism"])


def print_header(
    run_logger: Logger,
    settings: Settings,
    training: TrainingState,
    plan: Plan,
    progress: Progress,
    shards: Shards,
) -> None:
    """Say what is going to happen."""
    size = sum(parameter.numel() for parameter in training.model.parameters())
    run_logger.log(
        f"{settings['model']['name']} ({size:,} parameters) on {settings['data']['name']}, "
        f"{training.device}, determinism={settings['determinism']['name']}, "
        f"seed={settings['seed']}, {plan.total_steps} steps"
        + (f", {shards.processes} processes" if shards.processes > 1 else "")
        + ("" if shards.order_is_fixed else " (on whose number the bits depend)")
        + (f", resuming after step {progress.step}" if progress.step else "")
    )
    if training.autocast and training.device.type == "cpu" and not determinism.computes_bfloat16():
        run_logger.log(
            "warning: trainer.precision: this processor has no bfloat16 instructions, so bfloat16 "
            "takes several times as long as float32"
        )


def summarize(
    folder: Path,
    settings: Settings,
    training: TrainingState,
    plan: Plan,
    progress: Progress,
    last: dict[str, float],
    summary: dict[str, Any],
) -> None:
    """Bring a summary up to date with where the run stands."""
    model, name = training.model, training.task.metric_name
    metrics = dict(last)
    if progress.best_metric is not None:
        metrics[f"best_validation_{name}"] = progress.best_metric
    samples = progress.step * settings["data"]["batch_size"]
    summary |= {
        "task": settings["data"]["task"]["name"],
        "metric_name": name,
        "higher_is_better": training.task.higher_is_better,
        "steps": progress.step,
        "epochs": progress.step / plan.steps_per_epoch,
        "metrics": metrics,
        "objective": {"name": settings["objective"], "value": metrics.get(settings["objective"])},
        "seconds": progress.seconds,
        "samples_per_second": samples / progress.seconds if progress.seconds else 0.0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "fingerprints": {
            "weights": hash_of([*model.parameters(), *model.buffers()]),
            "predictions": None,
            "all_steps": fingerprint.of_file(folder / "fingerprints.csv"),
            **summary.get("fingerprints", {}),
        },
    }
