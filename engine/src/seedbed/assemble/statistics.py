"""`data.statistics`: what is fitted on the training samples, in place of each
`statistics: null`.

It is a file of the run folder, whose SHA-256 is in environment.json; config.yaml keeps
the nulls. So a resumed, evaluated or loaded run has the same numbers, to the last bit.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from torch.utils import _pytree as pytree

from seedbed import config, record, signals
from seedbed.assemble.sources import build_sources, seed_stream
from seedbed.config import Settings, build
from seedbed.errors import InputError, Interrupted, one_line
from seedbed.names import SPLITS, TRANSFORMS
from seedbed.pipeline.source import lacking
from seedbed.record import code, untrusted

FILE = "statistics.json"
_KEY = "statistics"
_MOST_SHOWN_BYTES = 1 << 16  # in the description of an exported model


def are_wanted(settings: Settings) -> bool:
    return settings.data.statistics is not None and any(_missing(settings))


def of_run(settings: Settings, folder: Path, is_resuming: bool) -> bytes | None:
    """Return the statistics of a run, which are fitted and written when it starts; None
    without.

    Raises InputError if the file could not be read again.
    """
    if not are_wanted(settings):
        return None
    path = folder / FILE
    if not is_resuming:
        with signals.raising(Interrupted):
            content = fitted(settings)
        record.write_atomically(path, content)
        return content
    if not path.is_file():
        raise InputError(
            f"{path}: the file is missing, and this run needs it; restore it"
        )
    return untrusted.read_bytes(path, untrusted.MAX_STATISTICS_BYTES)


def of_record(settings: Settings, run: Path) -> Settings:
    """Return settings with the statistics of a record.

    Raises InputError if the record lacks them, or has others than those of the run.
    """
    missing = next(_missing(settings), None)
    if missing is None:
        return settings
    path = run / FILE
    if not path.is_file():
        if settings.data.statistics is None:  # null is an argument like another
            return settings
        raise InputError(
            f"{missing}: expected a run with statistics, got one that recorded none;"
            f" add {missing}=VALUE"
        )
    content = untrusted.read_bytes(path, untrusted.MAX_STATISTICS_BYTES)
    environment = record.read_json(run / "environment.json")
    if environment.get("statistics_sha256") != code.sha256(content):
        raise InputError(
            f"{path}: its SHA-256 is not the recorded one (statistics_sha256 in"
            " environment.json); take the file from a copy of the run"
        )
    return filled(settings, parse(content))


def of_inputs(settings: Settings, run: Path, split: str) -> dict[str, Any] | None:
    """Return the statistics with which the data set of a split makes inputs; None
    without.

    `arguments` are the keys that take them, `values` None if they are long. The SHA-256
    is that of `of_record`.
    """
    takers = ("data.dataset.", "data.collate.", f"data.{split}.")
    arguments = [key for key in _missing(settings) if key.startswith(takers)]
    if settings.data.statistics is None or not arguments:
        return None
    content = untrusted.read_bytes(run / FILE, untrusted.MAX_STATISTICS_BYTES)
    is_short = len(content) <= _MOST_SHOWN_BYTES
    return {
        "arguments": arguments,
        "file": FILE,
        "sha256": code.sha256(content),
        "values": parse(content) if is_short else None,
    }


def parse(content: bytes) -> Any:
    """Return statistics as JSON has them; raise InputError for what a record cannot
    hold.

    That is also a `_target_`: statistics become arguments, in which it names a class to
    build.
    """
    try:
        statistics = untrusted.parse_json(content.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{FILE}: expected JSON, got {untrusted.first_line(error)}"
        ) from None
    if "_target_" in _keys(statistics):
        raise InputError(
            f"{FILE}: expected numbers by name, got a _target_, which names a class"
        )
    return statistics


def _keys(tree: Any) -> Iterator[str]:
    """Yield all keys of nested mappings and lists."""
    if isinstance(tree, Mapping):
        yield from tree
        tree = list(tree.values())
    for item in tree if isinstance(tree, list) else ():
        if isinstance(item, Mapping | list):
            yield from _keys(item)


def filled(settings: Settings, statistics: Any) -> Settings:
    """Return settings in which statistics replace each `statistics: null`."""

    def fill(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            names = (field.name for field in fields(value))
            return replace(
                value, **{name: fill(getattr(value, name)) for name in names}
            )
        if isinstance(value, Mapping):
            return {
                key: statistics if key == _KEY and item is None else fill(item)
                for key, item in value.items()
            }
        return [fill(item) for item in value] if isinstance(value, list) else value

    with_statistics: Settings = fill(settings)
    with_statistics.plain = fill(settings.plain)
    return with_statistics


def fitted(settings: Settings) -> bytes:
    """Return as JSON what the function of `data.statistics` makes of the training
    samples.

    It sees them as evaluation does, without augmentation, so the result is the same for
    each seed.
    """
    dataset = _training_samples(settings)
    seed_stream(settings, "data", len(SPLITS))
    spec = settings.data.statistics
    try:
        computed = build.build(spec, "data.statistics", dataset)
    except Exception as error:
        sample = dataset[0] if len(dataset) else ()
        if line := lacking("data.train", dataset, 0, sample):
            raise InputError(line) from error
        raise
    # Arrays and tensors as lists of numbers, which JSON holds to the last bit.
    statistics = pytree.tree_map(
        lambda x: x.tolist() if hasattr(x, "tolist") else x, computed
    )
    is_nan = any(x != x for x in pytree.tree_leaves(statistics))
    if not isinstance(statistics, Mapping) or is_nan:
        raise InputError(
            "data.statistics: expected numbers by name, none of them NaN, from"
            f" {spec['_target_']}, got {statistics!r:.80}"
        )
    _require_texts_as_keys(statistics)
    try:
        content = json.dumps(statistics).encode()
    except (TypeError, ValueError) as error:
        raise InputError(
            "data.statistics: expected numbers, texts, lists and mappings, got"
            f" {one_line(error)}"
        ) from None
    if len(content) > untrusted.MAX_STATISTICS_BYTES:
        raise InputError(
            f"data.statistics: expected at most {untrusted.MAX_STATISTICS_BYTES >> 20}"
            f" MiB as JSON, got {len(content) >> 20}; save larger arrays to a file that"
            " the classes read"
        )
    parse(content)  # as whoever loads the run will do
    return content


def without_augmentation(
    train: Mapping[str, Any], like: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a training set as evaluation has them, `like` those of
    validation.

    Arguments that validation lacks are left out, and its transforms replace those of
    training; in data sets that others wrap, too. All else is training's, such as files
    and parts. Data sets of different classes have nothing in common, so training's
    arguments stay.
    """
    if train.get("_target_") != like.get("_target_"):
        return dict(train)
    plain = {key: like[key] for key in like if key in TRANSFORMS}
    for key in train.keys() & like.keys() - plain.keys():
        are_nested = isinstance(train[key], Mapping) and isinstance(like[key], Mapping)
        plain[key] = (
            without_augmentation(train[key], like[key]) if are_nested else train[key]
        )
    return {key: plain[key] for key in (*train, *like) if key in plain}


def _training_samples(settings: Settings) -> Any:
    data = settings.data
    train = data.spec("train") or {}
    plain = without_augmentation(train, data.spec("validation") or {})
    dataset = build_sources(settings)["train"].dataset
    if plain == train:
        return dataset
    others: Any = {split: data.spec(split) for split in SPLITS if split != "train"}
    evaluated = replace(data, dataset=None, train=plain, **others)
    samples = build_sources(replace(settings, data=evaluated))["train"].dataset
    if len(samples) != len(dataset):
        keys = ", ".join(f"data.train.{key}" for key in train if key not in plain)
        raise InputError(
            f"data.statistics: expected the {len(dataset)} samples of data.train, got"
            f" {len(samples)} without {keys or 'its transforms'}; give data.validation"
            " each argument that chooses samples"
        )
    return samples


def _missing(settings: Settings) -> Iterator[str]:
    for path, name, value in config.entries(settings.plain):
        if name == _KEY and value is None and path != "data.statistics":
            yield path


def _require_texts_as_keys(tree: Any) -> None:
    """Raise InputError for a key that JSON would turn into a text."""
    for key in tree if isinstance(tree, Mapping) else ():
        if not isinstance(key, str):
            raise InputError(
                f"data.statistics: expected texts as keys, got {key!r:.80}; use str()"
            )
    for item in tree.values() if isinstance(tree, Mapping) else tree:
        if isinstance(item, Mapping | list | tuple):
            _require_texts_as_keys(item)
