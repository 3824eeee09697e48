"""The order of the training samples where a sampler or streams give it."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from seedbed import rng
from seedbed.config import build as construct
from seedbed.data.positions import Order
from seedbed.data.sampled import Sampled
from seedbed.data.source import Source
from seedbed.data.streams import Streamed, Streams, StreamSource, whole_steps
from seedbed.errors import InputError

Settings = Mapping[str, Any]


def build(settings: Settings, source: Source) -> Order:
    """Return the order that `data.sampler` or `data.streams` gives.

    Raises:
        InputError: there are too few samples, or the sampler is none.
    """
    data, seed = settings["data"], settings["seeds"]["order"]
    if isinstance(source, StreamSource):
        return _streamed(settings, source)
    for key in ("streams", "samples_per_epoch"):
        if data.get(key) is not None:
            raise InputError(
                f"data.{key}: expected an iterable training set, got a map-style one "
                f"({type(source.dataset).__name__}); leave data.{key} out"
            )
    return Sampled(_sampler(settings, source.dataset), len(source), seed, _shards(settings))


def is_iterable(dataset: Any) -> bool:
    """Return whether a data set can only be iterated over."""
    if isinstance(dataset, IterableDataset):
        return True
    loads = hasattr(dataset, "__getitem__") or hasattr(dataset, "fetch")
    return hasattr(dataset, "__iter__") and not loads


def as_streams(dataset: Any, data: Settings, split: str, role: str, seed: int) -> Streams:
    """Return an iterable data set as streams: several in training, one in evaluation.

    Args:
        data: the section of the configuration.
        split, role: what it is, and what it is seen as.
        seed: of the augment stream.

    Raises:
        InputError: the number of its streams or of its samples is not known.
    """
    name = type(dataset).__name__
    training = role == "train"
    if training and data.get("streams") is None:
        raise InputError(
            "data.train: expected a map-style data set, with __len__ and __getitem__, or "
            f"data.streams for an iterable one, got {name}; set data.streams=8, see docs/data.md"
        )
    samples = data.get("samples_per_epoch") if split == "train" else None
    if samples is None and hasattr(dataset, "__len__"):
        samples = len(dataset)
    if samples is None:
        key = "data.samples_per_epoch" if training else f"data.{split}"
        raise InputError(
            f"{key}: expected a number of samples, since {name} has no __len__, got none; "
            + ("try data.samples_per_epoch=10000" if training else "give it a __len__")
        )
    return Streams(dataset, role, data["streams"] if training else 1, samples, seed)


def cost_of_resuming(order: Order, source: Source, step: int) -> str | None:
    """Return a line on what is read again to resume after a step; None if nothing is."""
    if not isinstance(order, Streamed) or not order.samples_before(step):
        return None
    dataset = source.dataset.dataset
    if hasattr(dataset, "seek"):
        return None
    return (
        f"data.train: reads the {order.samples_before(step):,} samples before this step again; a "
        f"method seek(stream, position) of {type(dataset).__name__} would save that"
    )


def _streamed(settings: Settings, source: StreamSource) -> Streamed:
    data, shards = settings["data"], _shards(settings)
    if data.get("sampler") is not None:
        raise InputError(
            "data.sampler: expected a map-style training set, got an iterable one, whose samples "
            "come in the order of its streams; leave data.sampler or data.streams out"
        )
    size, samples, count = data["batch_size"], len(source), data["streams"]
    steps = whole_steps(samples, count, size, shards)
    if data.get("samples_per_epoch") is not None:
        steps = samples // size
    if not steps:
        raise too_large(size, samples)
    return Streamed(count, size, shards, steps)


def _sampler(settings: Settings, dataset: Any) -> Any:
    spec = settings["data"]["sampler"]
    if settings["determinism"]["seeding"]:  # its constructor may draw
        rng.seed_globals(rng.key(settings["seeds"]["order"], "order"))
    target = construct.resolve(str(spec.get("_target_")), "data.sampler")
    if "dataset" in inspect.signature(target).parameters:
        spec = {**spec, "dataset": dataset}
    sampler = construct.build(spec, "data.sampler")
    if not hasattr(sampler, "batches"):  # one of PyTorch's, likely
        raise InputError(
            "data.sampler: expected a class with a method batches(epoch, n, rng), got "
            f"{type(sampler).__name__}; see docs/data.md"
        )
    return sampler


def _shards(settings: Settings) -> int:
    return int(settings["trainer"]["shards"])


def too_large(batch_size: int, samples: int) -> InputError:
    """Return the error of a batch that is larger than the training set."""
    return InputError(
        f"data.batch_size: expected at most {samples}, the number of training samples, got "
        f"{batch_size}; try data.batch_size={min(64, samples)}"
    )
