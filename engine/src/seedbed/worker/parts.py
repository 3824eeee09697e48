"""All that a run is made of, and its batches."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from seedbed.config import Settings
from seedbed.data.positions import Order, evaluation_positions, positions
from seedbed.data.source import Batch, Source
from seedbed.data.streams import Streamed, StreamSource
from seedbed.data.workers import Loading, load
from seedbed.errors import InputError
from seedbed.names import did_you_mean
from seedbed.training.rehearsal import Rebuilt
from seedbed.training.shards import Shards
from seedbed.training.state import Plan, TrainingState
from seedbed.worker import assemble
from seedbed.worker.sources import Sources, build_order, build_source, build_sources


@dataclass(frozen=True)
class Parts:
    """What a run is made of, and the settings that it was made by."""

    settings: Settings
    sources: Sources
    order: Order
    training: TrainingState
    plan: Plan
    shards: Shards

    def training_batches(self, first_step: int) -> Iterator[Batch]:
        """Load this process's shards of each batch, from the step after `first_step` on."""
        data = self.settings.data
        places = self.shards.divide(positions(self.order, first_step, self.plan.total_steps))
        workers = data.num_workers
        if isinstance(self.order, Streamed):
            workers = self.order.workers(workers, self.shards.processes)
        how = Loading(
            num_workers=workers,
            persistent_workers=data.persistent_workers,
            prefetch_factor=data.prefetch_factor,
            start_method=data.start_method,
            pin_memory=self.training.device.type == "cuda",
        )
        return load(self.sources.train, places, how, self.settings.plain["determinism"])

    def rebuilt(self, step: int) -> Rebuilt:
        """Build anew what a process has that resumes the run before a step."""
        settings = self.settings
        source = build_source(settings, "train")
        order = build_order(settings, source)
        plan = assemble.make_plan(settings, order.steps_per_epoch)
        if settings.data.num_workers > 1:
            # The process that loaded the step may have loaded nothing before; this one has.
            for place in self.shards.divide(positions(order, max(step - 2, 0), step - 1)):
                _ = source[place]
        places = self.shards.divide(positions(order, step - 1, step))
        batches = [source[place] for place in places]
        training = assemble.build_training_state(settings, self.training.device, source)
        return Rebuilt(training, batches, plan.learning_rate_factor(step - 1))

    def held_out_batch(self) -> list[Batch]:
        """Load the first of this process's validation batches, from a data set built anew."""
        data = self.settings.data
        source = build_source(self.settings, "validation")
        size = data.eval_batch_size
        if not self.settings.trainer.compile:  # which would compile for another size
            size = min(size, data.batch_size)
        places = self.shards.share(evaluation_positions(len(source), size))
        return [source[place] for place in places[:1]]


def evaluation_batches(
    settings: Settings, source: Source, shards: Shards, most: int | None = None
) -> Iterator[Batch]:
    """Load this process's batches of a data set, or the first few of them."""
    data = settings.data
    places = shards.share(evaluation_positions(len(source), data.eval_batch_size))[:most]
    # Whole batches are loaded without workers.
    workers = 0 if hasattr(source.dataset, "fetch") else min(data.num_workers, len(places))
    if isinstance(source, StreamSource):  # one stream: two workers would both read all of it
        workers = min(workers, 1)
    how = Loading(workers, True, 2, data.start_method)
    return load(source, places, how, settings.plain["determinism"])


def build_parts(settings: Settings, device: torch.device, shards: Shards) -> Parts:
    """Build what a run is made of.

    Raises:
        InputError: a class refuses its arguments, or what it builds cannot be trained.
    """
    sources = build_sources(settings)
    order = build_order(settings, sources.train)
    training = assemble.build_training_state(settings, device, sources.train)
    if not training.overrides("validation_step") and not training.overrides("compute"):
        _check_objective(settings.objective, training)
    _ = training.higher_is_better  # or nothing says so
    plan = assemble.make_plan(settings, order.steps_per_epoch)
    training.require_flags()
    return Parts(settings, sources, order, training, plan, shards)


def _check_objective(name: str, training: TrainingState) -> None:
    """Raise InputError for an objective, or a monitor, that no run of this task can have."""
    task = training.method.task
    values = dict.fromkeys(("loss", task.metric_name if task else "loss", *training.metrics))
    training.monitored(dict.fromkeys(values, 0.0))
    known = [f"{phase}_{what}" for phase in ("validation", "test") for what in values]
    known += ["last_train_loss", f"best_validation_{training.metric_name}"]
    if name not in known:
        raise InputError(
            f"objective: expected one of {', '.join(known)}, got {name}{did_you_mean(name, known)}"
        )
