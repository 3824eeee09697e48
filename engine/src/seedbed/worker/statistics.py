"""Statistics of the training samples, for all parts of the configuration that need them.

`data.statistics` names a function of the training data set. Its result replaces each
`statistics: null` in data sets, transforms, the model, the method or metrics. It is written to
config.yaml, so a resumed or evaluated run has the same values without computing them.
"""

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf
from torch.utils import _pytree as pytree

from seedbed import config
from seedbed.config import Settings, build
from seedbed.errors import InputError
from seedbed.names import SPLITS
from seedbed.training.shards import Shards
from seedbed.worker import sources


def fill(settings: Settings, shards: Shards) -> Settings:
    """Compute the statistics once, on rank 0, and return settings that contain them.

    Raises:
        InputError: they are not a mapping, or one of them is NaN.
    """

    def asks(path: pytree.KeyPath, value: Any) -> bool:
        return value is None and path[-1] == pytree.MappingKey("statistics")

    def compute() -> Any:
        if not shards.writes_record:
            return None
        dataset = sources.build_sources(settings)["train"].dataset
        sources.seed_stream(settings, "data", len(SPLITS))
        # Arrays and tensors as lists: YAML holds their numbers to the last bit.
        computed = build.build(spec, "data.statistics", dataset)
        return pytree.tree_map(lambda v: v.tolist() if hasattr(v, "tolist") else v, computed)

    spec, (entries, _) = settings.data.statistics, pytree.tree_flatten_with_path(settings.plain)
    if spec is None or not any(asks(*each) for each in entries):
        return settings
    statistics = shards.gather(compute)[0]
    if not isinstance(statistics, Mapping) or any(x != x for x in pytree.tree_leaves(statistics)):
        raise InputError(
            f"data.statistics: expected numbers by name, none of them NaN, from {spec['_target_']},"
            f" got {statistics!r:.80}"
        )
    filled: dict[str, Any] = pytree.tree_map_with_path(
        lambda path, value: statistics if asks(path, value) else value, settings.plain
    )
    return config.check(OmegaConf.create(filled))
