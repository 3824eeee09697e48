"""One experiment: from the settings to a finished record."""

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from seedbed import (
    build,
    determinism,
    environment,
    fingerprint,
    record,
    refusals,
    restart,
    resume,
    rng,
    schedules,
    source,
    tasks,
    training,
)
from seedbed.data import loader
from seedbed.errors import InputError
from seedbed.journal import Journal, Silence
from seedbed.shards import Shards

if TYPE_CHECKING:
    from seedbed.processes import Processes

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Sources:
    """The data sets of a run, as functions from positions to batches."""

    train: loader.Source
    validation: loader.Source
    test: loader.Source


def carry_out(
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
    prepare_backends(settings["determinism"])
    device = choose_device(settings["trainer"]["device"], processes)
    shards = cut_batches(settings["trainer"], device, stop_requested, processes)
    circumstances = environment.describe(device) | {
        "processes": describe(shards),
        "git": code[0],
        "data_sha256": None,
    }
    if (
        summary["status"] == "running" and shards.writes_record
    ):  # a new run: its record is complete, also if it fails here
        record.write_circumstances(folder, circumstances, code[1])
    sources = build_sources(settings)
    circumstances["data_sha256"] = getattr(sources.train.dataset, "sha256", None)
    learner = build_learner(settings, device)
    origin = resume.Origin(dict(settings), circumstances, source.patched_files(code[1]))
    state = take_up(folder, learner, origin, code[1], request, summary, shards)
    plan = make_plan(settings, len(sources.train))
    progress = training.Progress(**state.get("progress", {}))
    journal: Journal = Silence()
    if shards.writes_record:
        journal = Journal(folder, learner, plan, asdict(origin), state)
    introduce(journal, settings, learner, plan, progress, shards)
    try:
        with warnings_listed(settings["determinism"], learner, journal):
            train(settings, learner, plan, progress, sources, journal, shards)
            test = evaluation(settings, sources.test, shards)
            result = training.evaluate(learner, test, shards)
        journal.note_test(progress, result)
        summary["fingerprints"] = {"predictions": hash_of([result.outputs])}
    finally:
        journal.close()
        if shards.writes_record:
            summarize(folder, settings, learner, plan, progress, journal.last, summary)


def warnings_listed(
    level: Settings, learner: training.Learner, journal: Journal
) -> AbstractContextManager[None]:
    """List operations without a deterministic implementation, where a warning was asked for."""
    if level["on_nondeterministic"] != "warn":
        return nullcontext()
    return refusals.reported(learner.model, journal.say)


def hash_of(tensors: Iterable[torch.Tensor]) -> str:
    """Return the fingerprint of tensors as text."""
    return fingerprint.text(int(fingerprint.of_tensors(tensors)))


def prepare_backends(level: Settings) -> None:
    """Apply a level's flags; where errors are asked for, refuse to go on if they do not hold."""
    determinism.apply(level)
    differences = determinism.differences(level)
    if differences and level["on_nondeterministic"] == "error":
        raise InputError(f"{differences[0]}; unset what overrides it, or choose another level")


def choose_device(name: str, processes: "Processes | None" = None) -> torch.device:
    """Return the device of that name; `auto` is a GPU of NVIDIA's or AMD's if there is one."""
    if processes is not None:
        name = processes.device_name(name, torch.cuda.device_count())
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < count,
        "mps": torch.backends.mps.is_available(),
    }[device.type]
    if not there:
        raise InputError(
            f"trainer.device: expected a device that is there, got {name}; try trainer.device=auto"
        )
    return device


def cut_batches(
    trainer: Settings,
    device: torch.device,
    stop_requested: Callable[[], bool],
    processes: "Processes | None",
) -> Shards:
    """Return how batches are cut and who works on them; several processes meet first."""
    if trainer["shards"] == 1:
        return Shards(stop_requested)
    from seedbed import distributed

    if processes is not None:
        processes.meet(device, stop_requested)
    in_tree = trainer["reduce"] == "tree"
    return distributed.SharedShards(trainer["shards"], stop_requested, processes, in_tree)


def take_up(
    folder: Path,
    learner: training.Learner,
    origin: resume.Origin,
    patch: bytes,
    request: resume.Request,
    summary: dict[str, Any],
    shards: Shards,
) -> dict[str, Any]:
    """Take up the run, the process that writes the record first: it checks and mends."""
    if shards.writes_record:
        state = restart.take_up(folder, learner, origin, patch, request, summary)
    shards.gather(lambda: None)
    if not shards.writes_record:
        restored = restart.load(folder, learner, origin, allow_changed=True)
        state = restored.state if restored else {}
    return state


def describe(shards: Shards) -> dict[str, Any]:
    """Return what environment.json says of the processes: how many, and if bits depend on it."""
    count = shards.processes
    return {"count": count, "bits_depend_on_count": None if shards.order_is_fixed else count}


def build_sources(settings: Settings) -> Sources:
    """Build the data sets; without one to test on, the validation set is it."""
    data, trusted = settings["data"], settings["trusted_packages"]
    collate = data.get("collate")
    if collate is not None:
        collate = build.resolve(str(collate), "data.collate", trusted)

    def source(split: str) -> loader.Source:
        spec = data.get(split) or data["validation"]
        seed, keyed = settings["seeds"]["augment"], settings["determinism"]["seeding"]
        if keyed:  # a data set may draw when it is built
            position = loader.SPLITS.index(split)
            rng.key_globals(rng.key(settings["seeds"]["data"], "data", position))
        dataset = build.build(spec, f"data.{split}", trusted)
        if not hasattr(dataset, "__len__"):
            raise InputError(
                f"data.{split}: expected a map-style data set, with __len__ and __getitem__, got "
                f"{type(dataset).__name__}; see docs/extending.md"
            )
        if len(dataset) == 0:
            raise InputError(f"data.{split}: expected at least one sample, got none")
        return loader.Source(dataset, split, seed, collate, keyed)

    sources = Sources(source("train"), source("validation"), source("test"))
    if data["batch_size"] > len(sources.train):
        raise InputError(
            f"data.batch_size: expected at most {len(sources.train)}, the number of training "
            f"samples, got {data['batch_size']}; try data.batch_size={min(64, len(sources.train))}"
        )
    return sources


def build_learner(settings: Settings, device: torch.device) -> training.Learner:
    """Build model and optimizer. The weights are drawn on the CPU, so every device has the same.

    (CUDA's generator depends on the GPU's number of multiprocessors.)
    """
    trusted, level, trainer = (
        settings["trusted_packages"],
        settings["determinism"],
        settings["trainer"],
    )
    if level["seeding"]:
        rng.key_globals(rng.key(settings["seeds"]["init"], "init"))
    model: nn.Module = build.build(settings["model"], "model", trusted)
    if level["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    model = model.to(device)
    if level["on_nondeterministic"] == "error":
        refusals.check_recurrent_dropout(model, device.type)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("model: expected a model with parameters to train, got none")
    optimizer = build.build(settings["optimizer"], "optimizer", trusted, parameters)
    if trainer["compile"]:
        model.compile()
    return training.Learner(
        model=model,
        optimizer=optimizer,
        task=tasks.make(settings["data"]["task"], trusted),
        device=device,
        autocast=trainer["precision"] == "bfloat16",
        channels_last=level["channels_last"],
        gradient_clip_norm=trainer["gradient_clip_norm"],
        dropout_seed=settings["seeds"]["dropout"] if level["seeding"] else None,
    )


def make_plan(settings: Settings, training_samples: int) -> training.Plan:
    """Work out when things happen."""
    trainer, schedule = settings["trainer"], settings["schedule"]
    steps_per_epoch = training_samples // settings["data"]["batch_size"]
    total_steps = trainer["max_epochs"] * steps_per_epoch
    if trainer["max_steps"] is not None:
        total_steps = min(total_steps, trainer["max_steps"])
    return training.Plan(
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        log_every_steps=trainer["log_every_steps"],
        validate_every_epochs=trainer["validate_every_epochs"],
        checkpoint_every_steps=trainer["checkpoint_every_steps"],
        fingerprint_every_steps=settings["fingerprint"]["every_steps"],
        early_stopping_patience=trainer["early_stopping_patience"],
        learning_rate_factor=functools.partial(
            schedules.factor,
            total_steps=total_steps,
            warmup_fraction=schedule["warmup_fraction"],
            final_fraction=schedule["final_fraction"],
        ),
    )


def train(
    settings: Settings,
    learner: training.Learner,
    plan: training.Plan,
    progress: training.Progress,
    sources: Sources,
    journal: Journal,
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
    how = loading(settings, learner.device)
    batches = loader.load(sources.train, shards.divide(positions), how, settings["determinism"])
    validation = functools.partial(evaluation, settings, sources.validation, shards)
    training.fit(learner, plan, progress, batches, validation, journal, shards)


def evaluation(settings: Settings, source: loader.Source, shards: Shards) -> Iterable[loader.Batch]:
    """Return our batches of an evaluation; data sets that load whole batches need no workers."""
    positions = loader.evaluation_positions(len(source), settings["data"]["eval_batch_size"])
    workers = 0 if hasattr(source.dataset, "fetch") else settings["data"]["num_workers"]
    how = loader.Loading(workers, True, 2, settings["data"]["start_method"])
    return loader.load(source, shards.share(positions), how, settings["determinism"])


def loading(settings: Settings, device: torch.device) -> loader.Loading:
    """Return how training batches are loaded."""
    data = settings["data"]
    return loader.Loading(
        num_workers=data["num_workers"],
        persistent_workers=data["persistent_workers"],
        prefetch_factor=data["prefetch_factor"],
        start_method=data["start_method"],
        pin_memory=device.type == "cuda",
    )


def introduce(
    journal: Journal,
    settings: Settings,
    learner: training.Learner,
    plan: training.Plan,
    progress: training.Progress,
    shards: Shards,
) -> None:
    """Say what is going to happen."""
    size = sum(parameter.numel() for parameter in learner.model.parameters())
    journal.say(
        f"{settings['model']['name']} ({size:,} parameters) on {settings['data']['name']}, "
        f"{learner.device}, determinism={settings['determinism']['name']}, "
        f"seed={settings['seed']}, {plan.total_steps} steps"
        + (f", {shards.processes} processes" if shards.processes > 1 else "")
        + ("" if shards.order_is_fixed else " (on whose number the bits depend)")
        + (f", going on after step {progress.step}" if progress.step else "")
    )


def summarize(
    folder: Path,
    settings: Settings,
    learner: training.Learner,
    plan: training.Plan,
    progress: training.Progress,
    last: dict[str, float],
    summary: dict[str, Any],
) -> None:
    """Bring a summary up to date with where the run stands."""
    model, name = learner.model, learner.task.metric_name
    metrics = dict(last)
    if progress.best_metric is not None:
        metrics[f"best_validation_{name}"] = progress.best_metric
    samples = progress.step * settings["data"]["batch_size"]
    summary |= {
        "task": settings["data"]["task"]["name"],
        "metric_name": name,
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
            "ladder": fingerprint.of_file(folder / "fingerprints.csv"),
            **summary.get("fingerprints", {}),
        },
    }
