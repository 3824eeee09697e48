"""The data sets of a run as functions from positions to batches, and the order of its samples."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from seedbed import rng
from seedbed.config import Settings, build
from seedbed.config.settings import Data
from seedbed.data import part
from seedbed.data.imports import seed_imports
from seedbed.data.positions import Order, Shuffled
from seedbed.data.samplers import Sampled
from seedbed.data.source import Source
from seedbed.data.streams import Streamed, Streams, StreamSource, whole_steps
from seedbed.errors import InputError
from seedbed.names import SPLITS


class Sources(NamedTuple):
    """The data sets of a run."""

    train: Source
    validation: Source
    test: Source


def build_sources(settings: Settings) -> Sources:
    return Sources(*(build_source(settings, split) for split in SPLITS))


def build_source(settings: Settings, split: str, seen_as: str | None = None) -> Source:
    """Build one of the data sets; without one to test on, the validation set is it.

    Args:
        seen_as: the split whose batches and randomness its samples get, if that is another one:
            training samples are evaluated as those of validation.
    """
    data, seed, seeded = settings.data, settings.seeds.augment, settings.determinism.seeding
    split = split if getattr(data, split) else "validation"
    spec, role = getattr(data, split), seen_as or split
    if seeded:  # a data set may draw when it is built, and its module when it is imported
        seed_imports(settings.seeds.data)
        # Both parts of a data set must be of the same one, so it is drawn as for training.
        drawn_as = "train" if _holds_part(spec) else split
        rng.seed_globals(rng.key(settings.seeds.data, "data", SPLITS.index(drawn_as)))
    dataset = build.build(spec, f"data.{split}")
    loads = hasattr(dataset, "__getitem__") or hasattr(dataset, "fetch")
    kind: type[Source] = Source
    if isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not loads):
        count = data.streams if role == "train" else 1
        if count is None:
            raise InputError(
                f"data.streams: expected an integer for {type(dataset).__name__}, which is "
                "iterable, got none; set data.streams=8"
            )
        samples = data.samples_per_epoch if split == "train" else None
        kind, dataset = StreamSource, Streams(dataset, role, count, samples or len(dataset), seed)
    if len(dataset) == 0:
        raise InputError(f"data.{split}: expected at least one sample, got none")
    collate = _collate(data, role, dataset)
    return kind(dataset, role, seed, collate, seeded, data.loading_threads != "all")


def _holds_part(node: Any) -> bool:
    """Return whether a part of another data set (`seedbed.data.part`) is built by a node."""
    if isinstance(node, Mapping):
        target = str(node.get("_target_", ""))
        return target.startswith(f"{part.__name__}.") or any(map(_holds_part, node.values()))
    return isinstance(node, list) and any(map(_holds_part, node))


def _collate(data: Data, role: str, dataset: Any) -> Callable[[list[Any]], Any] | None:
    """Return what makes batches of a data set's samples; None for torch's default."""
    own = role == "train" and data.training_collate is not None
    key, spec = ("training_collate", data.training_collate) if own else ("collate", data.collate)
    if spec is None:
        return None
    if hasattr(dataset, "fetch"):  # it would never be called
        raise InputError(
            f"data.{key}: expected a data set without fetch, got {type(dataset).__name__}, which "
            "makes its batches itself"
        )
    make = build.resolve if isinstance(spec, str) else build.build
    return make(spec, f"data.{key}")  # type: ignore[no-any-return]


def build_order(settings: Settings, source: Source) -> Order:
    """Return the order of the training samples, the same in every process of a run.

    Raises:
        InputError: a batch has more samples than there are, or a key is for other data sets.
    """
    data, seed, shards = settings.data, settings.seeds.order, settings.trainer.shards
    samples, size, is_iterable = len(source), data.batch_size, isinstance(source, StreamSource)
    for key in ("sampler",) if is_iterable else ("streams", "samples_per_epoch"):
        if getattr(data, key) is not None:  # it would change nothing
            wanted = "a map-style" if is_iterable else "an iterable"
            name = type(source.dataset).__name__
            raise InputError(f"data.{key}: expected {wanted} training set, got {name}")
    if data.sampler is not None:
        return Sampled(_sampler(settings, source.dataset), samples, seed, shards)
    steps = samples // size
    if is_iterable and data.samples_per_epoch is None:
        steps = whole_steps(samples, data.streams or 1, size, shards)
    if not steps:
        raise InputError(
            f"data.batch_size: expected at most {samples}, the number of training samples, got "
            f"{size}"
        )
    if is_iterable:
        return Streamed(data.streams or 1, size, shards, steps)
    return Shuffled(samples, size, seed)


def _sampler(settings: Settings, dataset: Any) -> Any:
    """Build `data.sampler`, which is given the data set if it asks for one."""
    spec = settings.plain["data"]["sampler"]
    if settings.determinism.seeding:  # its constructor may draw
        rng.seed_globals(rng.key(settings.seeds.order, "order"))
    target = build.resolve(str(spec.get("_target_")), "data.sampler")
    if "dataset" in inspect.signature(target).parameters:
        spec = {**spec, "dataset": dataset}
    return build.build(spec, "data.sampler")
