"""The seeds of a run, by which a sweep tells replicates apart: of streams, a fold, and others.

Others are seeds that the configuration gives to a class (`data.train.seed`) and that do not follow
a stream, as `${seeds.split}` does.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from seedbed.names import STREAMS, flatten
from seedbed.record import neutral

FOLD = "fold"
NO_FOLD = -1
# One for each stream, pairs of the others' keys and values, the fold.
Seeds = tuple[Any, ...]
# How the work is done, which makes no other configuration.
_NEUTRAL = re.compile("|".join(map(fnmatch.translate, neutral.KEYS)))
_IS_OF_RUN = re.compile(r"seed$|seeds\.")
_IS_SEED = re.compile(r"\.seeds?$")
_IS_FOLD = re.compile(r"^data\.(.+\.)?fold$")


def by_column(seeds: Seeds) -> dict[str, int]:
    """Return seeds by stream, the fold by FOLD, the other seeds by their keys."""
    if not seeds:
        return {}
    *streams, others, fold = seeds
    return {**dict(zip(STREAMS, streams, strict=True)), FOLD: fold, **dict(others)}


def taken_out(tree: Mapping[str, Any]) -> tuple[dict[str, Any], Seeds]:
    """Return a run's flat configuration without seeds and fold, and those.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is not a run's configuration.
    """
    streams = [int(tree["seeds"][stream]) for stream in STREAMS]
    fold = (tree.get("data") or {}).get(FOLD)
    has_fold = isinstance(fold, int)
    settings = flatten({**tree, "logger": None})
    others: dict[str, int] = {}
    for key in list(settings):
        given = _given(key, settings[key])
        if _IS_OF_RUN.match(key) or _NEUTRAL.match(key) or (has_fold and _IS_FOLD.match(key)):
            del settings[key]
        elif given:
            del settings[key]
            others |= given
    return settings, (*streams, tuple(sorted(others.items())), fold if has_fold else NO_FOLD)


def _given(key: str, value: Any) -> dict[str, int]:
    """Return the seeds that a key gives to a class, one or a list of them; empty if it does not."""
    if not _IS_SEED.search(key):
        return {}
    several = isinstance(value, list)
    given = {f"{key}.{n}": each for n, each in enumerate(value)} if several else {key: value}
    return given if all(isinstance(each, int) for each in given.values()) else {}


def without_followers(runs: Sequence[Seeds]) -> list[Seeds]:
    """Return the seeds of runs of one configuration without those that follow a stream.

    Such a seed is the stream's in every run, so it tells nothing apart.
    """
    tables = [by_column(seeds) for seeds in runs if seeds]

    def follows(key: str) -> bool:
        return any(all(table.get(key) == table[s] for table in tables) for s in STREAMS)

    following = {key for key in _others(tables) if follows(key)}
    return [
        (*seeds[:-2], tuple(pair for pair in seeds[-2] if pair[0] not in following), seeds[-1])
        if seeds
        else seeds
        for seeds in runs
    ]


def columns(runs: Collection[Seeds]) -> list[str]:
    """Return the columns of a table of runs: streams, FOLD if there are folds, other seeds."""
    tables = [by_column(seeds) for seeds in runs if seeds]
    folds = [FOLD] if any(table[FOLD] != NO_FOLD for table in tables) else []
    return [*STREAMS, *folds, *_others(tables)]


def varied(runs: Collection[Seeds]) -> list[str]:
    """Return the columns that are not the same in all runs."""
    tables = [by_column(seeds) for seeds in runs]
    return [each for each in columns(runs) if len({table.get(each) for table in tables}) > 1]


def _others(tables: Iterable[Mapping[str, int]]) -> list[str]:
    known = dict.fromkeys(key for table in tables for key in table)
    return [key for key in known if key not in (*STREAMS, FOLD)]
