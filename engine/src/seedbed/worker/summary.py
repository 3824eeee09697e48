"""What a run says of itself at its beginning, and summary.json at its end."""

import os
import sys
from collections.abc import Iterable

import torch

from seedbed import fingerprint
from seedbed.training.loop import Logger
from seedbed.training.state import Evaluation, Progress
from seedbed.worker.assemble import Parts
from seedbed.worker.job import Job


def print_header(run_logger: Logger, parts: Parts, progress: Progress, starts_over: bool) -> None:
    """Print what is trained, on what, by which preset and seed, and for how long."""
    settings, training, shards = parts.settings, parts.training, parts.shards
    begins = f"resuming after step {progress.step}" if progress.step else ""
    if starts_over:
        every = settings.trainer.checkpoint_every_steps
        begins = f"from the start: it has no checkpoint (trainer.checkpoint_every_steps={every})"
    size = sum(parameter.numel() for parameter in training.model.parameters())
    where = str(training.device)
    if where == "cpu":
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
        where += f" ({torch.get_num_threads()} of {cores} cores)"
    run_logger.log(
        f"{settings.model.name} ({size:,} parameters) on {settings.data.name}, {where}, "
        f"determinism={settings.determinism.name}, "
        f"seed={settings.seed}, {parts.plan.total_steps} steps"
        + (f", {shards.processes} processes" if shards.processes > 1 else "")
        + ("" if shards.order_is_fixed else " (on whose number the bits depend)")
        + (f", {begins}" if begins else "")
    )


def summarize(
    job: Job,
    parts: Parts,
    progress: Progress,
    last: dict[str, float],
    tested: tuple[int, Evaluation] | None,
) -> None:
    settings, training, model = parts.settings, parts.training, parts.training.model
    metrics = dict(last)
    if progress.best_metric is not None:
        metrics[f"best_validation_{training.metric_name}"] = progress.best_metric
    samples = parts.order.samples_per_epoch * progress.step / parts.plan.steps_per_epoch
    job.summary |= {
        "task": (settings.data.task or {}).get("name"),
        "metric_name": training.metric_name,
        "higher_is_better": training.higher_is_better,
        "steps": progress.step,
        "epochs": progress.step / parts.plan.steps_per_epoch,
        "best_step": progress.best_step,
        "tested_step": tested and tested[0],
        "stopped_early": stopped_early(parts, progress),
        "metrics": metrics,
        "objective": {"name": settings.objective, "value": metrics.get(settings.objective)},
        "seconds": progress.seconds,
        "samples_per_second": samples / progress.seconds if progress.seconds else 0.0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "fingerprints": {
            "weights": hash_of([*model.parameters(), *model.buffers()]),
            "predictions": tested and hash_of([tested[1].output_hashes]),
            "all_steps": fingerprint.of_file(job.folder / "fingerprints.csv"),
        },
    }


def stopped_early(parts: Parts, progress: Progress) -> dict[str, int | None] | None:
    """Return where early stopping ended a run; None if it did not."""
    plan = parts.plan
    if progress.step == plan.total_steps or not plan.is_over(progress):
        return None
    patience = plan.trainer.early_stopping_patience
    return {"step": progress.step, "patience": patience, "best_step": progress.best_step}


def hash_of(tensors: Iterable[torch.Tensor]) -> str | None:
    """Return the fingerprint of tensors as text; None if a GPU has failed and answers no more."""
    try:
        return fingerprint.text(int(fingerprint.of_tensors(tensors)))
    except torch.AcceleratorError:
        return None
