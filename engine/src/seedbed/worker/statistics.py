"""Statistics of the training samples, for whatever in the configuration asks for them.

`data.statistics` names a function of the training data set. What it returns takes the place of
each `statistics: null`, of data sets, transforms, the model, the method or metrics alike. It is
written to config.yaml, so a resumed or evaluated run has the same values without computing them.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from seedbed import rng
from seedbed.config import build
from seedbed.errors import InputError
from seedbed.names import SPLITS
from seedbed.training.shards import Shards
from seedbed.worker.sources import build_source

_KEY = "statistics"


def fill(settings: dict[str, Any], shards: Shards) -> bool:
    """Compute statistics once, in one process, and put them where they are asked for.

    Returns:
        Whether the settings have changed.

    Raises:
        InputError: they are no numbers by name.
    """
    spec = settings["data"].get(_KEY)
    places = [each for each in _mappings(settings) if _KEY in each and each[_KEY] is None]
    if spec is None or not places:
        return False

    def compute() -> Any:
        if not shards.writes_record:
            return None
        dataset = build_source(settings, "train").dataset
        if settings["determinism"]["seeding"]:
            key = rng.key(settings["seeds"]["data"], "data", len(SPLITS))
            rng.seed_globals(key)
        return _plain(build.build(spec, f"data.{_KEY}", dataset))

    found = shards.gather(compute)[0]
    if not isinstance(found, Mapping):
        raise InputError(
            f"data.{_KEY}: expected a mapping of numbers by name from {spec['_target_']}, got a "
            f"{type(found).__name__}; return, for instance, {{'mean': 0.5}}"
        )
    for place in places:
        place[_KEY] = copy.deepcopy(found)
    return True


def _mappings(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _mappings(each)


def _plain(value: Any) -> Any:
    """Return numbers, lists and mappings of them, as YAML holds them to the last bit.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        f"data.{_KEY}: expected numbers, lists, arrays or tensors by name, got a "
        f"{type(value).__name__}; return those"
    )
