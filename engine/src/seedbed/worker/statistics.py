"""Statistics of the training samples, for whatever in the configuration asks for them.

`data.statistics` names a function of the training data set. What it returns takes the place of
each `statistics: null`, of data sets, transforms, the model, the method or metrics alike. It is
written to config.yaml, so a resumed or evaluated run has the same values without computing them.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf
from torch.utils._pytree import tree_map

from seedbed import config
from seedbed.config import Settings, build
from seedbed.errors import InputError
from seedbed.names import SPLITS
from seedbed.training.shards import Shards
from seedbed.worker import assemble
from seedbed.worker.parts import build_source


def fill(settings: Settings, shards: Shards) -> Settings:
    """Compute statistics once, in one process, and return settings that hold them.

    Raises:
        InputError: they are no mapping of numbers by name.
    """
    spec = settings.data.statistics
    filled = copy.deepcopy(settings.plain)
    asked = [each for each in _mappings(filled) if each.get("statistics", 0) is None]
    if spec is None or not asked:
        return settings

    def compute() -> Any:
        if not shards.writes_record:
            return None
        dataset = build_source(settings, "train").dataset
        assemble.seed(settings, "data", len(SPLITS))
        # Arrays and tensors as lists: YAML holds their numbers to the last bit.
        computed = build.build(spec, "data.statistics", dataset)
        return tree_map(lambda v: v.tolist() if hasattr(v, "tolist") else v, computed)

    statistics = shards.gather(compute)[0]
    if not isinstance(statistics, Mapping):
        raise InputError(
            f"data.statistics: expected a mapping of numbers by name from {spec['_target_']}, got "
            f"{statistics!r:.80}"
        )
    for place in asked:
        place["statistics"] = copy.deepcopy(statistics)
    return config.check(OmegaConf.create(filled))


def _mappings(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
    if isinstance(tree, dict | list):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from _mappings(each)
