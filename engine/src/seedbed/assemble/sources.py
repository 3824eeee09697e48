"""The data sets of a run as functions of positions, and the order of training."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.data import IterableDataset

from seedbed import config, rng, signals
from seedbed.config import Settings, build
from seedbed.errors import InputError, Interrupted
from seedbed.names import SPLITS
from seedbed.pipeline.imports import seed_imports
from seedbed.pipeline.positions import EvaluationPositions, Order, Shuffled
from seedbed.pipeline.samplers import Adapted, Sampled
from seedbed.pipeline.source import Batch, Source
from seedbed.pipeline.streams import (
    StreamDataset,
    StreamOrder,
    StreamSource,
    equal_lengths,
    length,
)
from seedbed.pipeline.workers import Loading, Passes
from seedbed.training.shards import Shards


def seed_stream(settings: Settings, stream: str, *position: int) -> None:
    """Seed the random generators for building a class, and for importing its module."""
    if settings.determinism.seeding:
        seed_imports(settings.seeds.data)
        rng.seed_globals(rng.key(getattr(settings.seeds, stream), stream, *position))


def build_sources(settings: Settings, evaluating: bool = False) -> dict[str, Source]:
    """Build the data sets of all splits, always in the same order, each from the same
    draws.

    So a random split of one file in each constructor gives parts that do not overlap,
    and what constructors keep in a class is the same in training and evaluation. A
    missing test set is replaced by the validation set. If `evaluating`, training
    samples are loaded as those are.
    """
    sources: dict[str, Source] = {}
    for split in SPLITS:
        role = "validation" if evaluating and split == "train" else split
        is_given = settings.data.spec(split) is not None
        sources[split] = (
            _build(settings, split, role) if is_given else sources["validation"]
        )
    return sources


def _build(settings: Settings, split: str, role: str) -> Source:
    return as_source(settings, build_dataset(settings, split), split, role)


def build_dataset(settings: Settings, split: str) -> Any:
    seed_stream(settings, "data")
    spec = settings.data.spec(split) or {}
    dataset = build.build(spec, f"data.{split}")
    rng.warn_if_reseeded(f"data.{split}: {spec['_target_']}", "data")
    return dataset


def as_source(settings: Settings, dataset: Any, split: str, role: str) -> Source:
    """Return a data set as a function of positions; its role decides on collation and
    randomness.

    Raises InputError for one without samples, and for settings that do not fit it.
    """
    data = settings.data
    seed = settings.seeds.augment
    seeded = settings.determinism.seeding
    loads = hasattr(dataset, "__getitem__") or hasattr(dataset, "fetch")
    kind: type[Source] = Source
    if isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not loads
    ):
        kind = StreamSource
        dataset = _as_streams(settings, dataset, split, role)
    if len(dataset) == 0:
        raise InputError(f"data.{split}: expected at least one sample, got none")
    collate = _collate_of(settings, dataset, role)
    return kind(dataset, role, seed, collate, seeded, data.loading_threads != "all")


def _as_streams(
    settings: Settings, dataset: Any, split: str, role: str
) -> StreamDataset:
    """Return an iterable data set as several streams in training, else as one."""
    data = settings.data
    count = data.streams if role == "train" else 1
    if count is None:
        raise InputError(
            f"data.streams: expected an integer for {type(dataset).__name__}, which"
            " is iterable, got none; set data.streams=8"
        )
    given = data.samples_per_epoch or sum(data.stream_lengths or ()) or None
    samples = (given if split == "train" else None) or length(dataset, split)
    return StreamDataset(dataset, role, count, samples, settings.seeds.augment)


def _collate_of(settings: Settings, dataset: Any, role: str) -> Any:
    """Return the function of the configuration that makes batches; None for PyTorch's
    default_collate."""
    data = settings.data
    key = "training_collate" if role == "train" and data.training_collate else "collate"
    collate = getattr(data, key)
    if collate is None:
        return None
    if hasattr(dataset, "fetch"):  # it would never be called
        raise InputError(
            f"data.{key}: expected a data set without fetch, got"
            f" {type(dataset).__name__}, which makes its batches itself"
        )
    make = build.resolve if isinstance(collate, str) else build.build
    return make(collate, f"data.{key}")


def build_order(settings: Settings, source: Source) -> Order:
    """Return the order of the training samples, the same in every process of a run."""
    data = settings.data
    accumulate = settings.trainer.accumulate
    samples = len(source)
    size = data.batch_size * accumulate
    _require_keys_of_its_kind(settings, source)
    if data.sampler is not None:
        return _sampled(settings, source, samples)
    if not samples // size:
        raise InputError(
            f"data.batch_size: expected at most {samples}, the number of training"
            f" samples, got {size}{' (x trainer.accumulate)' if accumulate > 1 else ''}"
        )
    if isinstance(source, StreamSource):
        return _of_streams(settings, samples, size)
    return Shuffled(samples, size, settings.seeds.order)


def _require_keys_of_its_kind(settings: Settings, source: Source) -> None:
    """Raise InputError for keys of iterable training sets for another one, and vice
    versa."""
    is_iterable = isinstance(source, StreamSource)
    of_streams = ("streams", "stream_lengths", "samples_per_epoch")
    for key in ("sampler",) if is_iterable else of_streams:
        if getattr(settings.data, key) is not None:  # it would change nothing
            wanted = "a map-style" if is_iterable else "an iterable"
            name = type(source.dataset).__name__
            raise InputError(f"data.{key}: expected {wanted} training set, got {name}")


def _sampled(settings: Settings, source: Source, samples: int) -> Sampled:
    """Return the order by the sampler of the configuration."""
    seed_stream(settings, "order")
    spec = _with_dataset(settings.plain["data"]["sampler"], source.dataset)
    make = partial(build.build, spec, "data.sampler")
    sampler = make()
    name = type(sampler).__name__
    if not (hasattr(sampler, "batches") or hasattr(sampler, "__iter__")):
        raise InputError(
            f"data.sampler: expected batches(epoch, n, rng) or ids, got {name}"
        )
    adapted = (
        sampler
        if hasattr(sampler, "batches")
        else Adapted(make, settings.data.batch_size, name)
    )
    trainer = settings.trainer
    seed = settings.seeds.order
    return Sampled(adapted, samples, seed, trainer.slices, trainer.accumulate)


def _of_streams(settings: Settings, samples: int, batch_size: int) -> StreamOrder:
    """Return the order by streams, whose lengths are given, equal or without end."""
    data = settings.data
    streams = data.streams or 1
    lengths = data.stream_lengths
    if lengths is not None and (len(lengths) != streams or data.samples_per_epoch):
        wanted = (
            f"{streams} numbers (data.streams)"
            if not data.samples_per_epoch
            else "none"
        )
        raise InputError(
            f"data.stream_lengths: expected {wanted}, got {len(lengths)} of them;"
            " leave it out to have the samples counted"
        )
    if data.samples_per_epoch is None:  # else they may never end
        lengths = lengths or equal_lengths(samples, streams)
    return StreamOrder(streams, batch_size, settings.trainer.slices, lengths, samples)


def _with_dataset(spec: Any, dataset: Any) -> Any:
    """Return the spec of a sampler, and of samplers in it, with the data set if they
    take one."""
    if not isinstance(spec, Mapping) or "_target_" not in spec:
        return spec
    made = {key: _with_dataset(value, dataset) for key, value in spec.items()}
    target = build.resolve(str(spec["_target_"]), "data.sampler")
    with suppress(ValueError):  # implemented in C: no signature
        takes = inspect.signature(target).parameters
        names = ("dataset", "data_source", "data")
        made |= {name: dataset for name in names if name in takes and name not in spec}
    return made


def how_to_load(
    settings: Settings, workers: int, device: torch.device, streams: int = 0
) -> Loading:
    """Return how batches are loaded, in training and evaluation alike."""
    data = settings.data
    return Loading(
        workers,
        data.persistent_workers,
        data.prefetch_factor,
        data.start_method,
        device.type == "cuda",
        streams,
    )


class EvaluationLoader:
    """This process's share of the batches of a data set, of the first `most` ones.

    Each call loads them once more. Persistent loader workers serve all calls, up to
    `close`, unless `is_kept` is false.
    """

    def __init__(
        self,
        settings: Settings,
        source: Source,
        shards: Shards,
        device: torch.device,
        most: int | None = None,
        is_kept: bool = True,
    ) -> None:
        self._source = source
        self._shards = shards
        self._size = settings.data.eval_batch_size
        self._most = most
        own_positions = shards.share(self._positions())
        # Data sets with `fetch` are loaded without loader workers.
        has_fetch = hasattr(source.dataset, "fetch")
        workers = 0 if has_fetch else min(settings.data.num_workers, len(own_positions))
        # one stream: two loader workers would both read it all
        if isinstance(source, StreamSource):
            workers = min(workers, 1)
        how = how_to_load(settings, workers, device)
        if not is_kept:
            how = replace(how, persistent_workers=False)
        may_stop = shards.may_interrupt and not shards.is_sharded
        stop = shards.asked_to_stop if may_stop else None
        self._passes = Passes(source, how, settings.plain["determinism"], stop)

    def __call__(self) -> Iterator[Batch]:
        positions = self._positions()
        own_positions = self._shards.share(positions)
        if not self._shards.is_sharded:
            return self._passes.load(own_positions)
        longest = -(-len(positions) // self._shards.ranks.count)
        batches = self._passes.load(own_positions or positions[:1])
        return _padded(batches, len(own_positions), longest)

    def _positions(self) -> EvaluationPositions:
        """Return those of all processes."""
        return EvaluationPositions(len(self._source), self._size)[: self._most]

    def close(self) -> None:
        self._passes.close()


def evaluation_batches(
    settings: Settings,
    source: Source,
    shards: Shards,
    device: torch.device,
    most: int | None = None,
) -> Iterator[Batch]:
    """Load this process's share of the batches of a data set, of the first `most`
    ones."""
    with closing(EvaluationLoader(settings, source, shards, device, most)) as loader:
        yield from loader()


def _padded(batches: Iterator[Batch], count: int, wanted: int) -> Iterator[Batch]:
    """Yield `count` batches, and the last one loaded as often as needed, without its
    ids.

    All processes of a sharded model have to take the same number of forward passes.
    """
    for number, batch in enumerate(batches):
        if number < count:
            yield batch
    for _ in range(wanted - count):
        yield batch._replace(ids=batch.ids[:0])


def count_streams(settings: Settings, shards: Shards) -> Settings:
    """Return settings with the length of each stream of the training set in
    `data.stream_lengths`.

    They stay null if `data.samples_per_epoch` says where an epoch ends. Rank 0 reads
    the streams, and config.yaml holds the lengths, so a resumed run need not read them
    again.
    """
    data = settings.data
    if data.streams is None or data.stream_lengths is not None:
        return settings

    def count() -> list[int] | None:
        source = build_sources(settings)["train"] if shards.ranks.leads else None
        if not isinstance(source, StreamSource):
            return None
        with signals.raising(Interrupted):
            source.require_different()
            return source.count_samples() if data.samples_per_epoch is None else None

    lengths = shards.gather(count)[0]
    if lengths is None:
        return settings
    counted = {**settings.plain["data"], "stream_lengths": lengths}
    return config.check(OmegaConf.create({**settings.plain, "data": counted}))
