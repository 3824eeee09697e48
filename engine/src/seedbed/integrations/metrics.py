"""Metrics as trainers of other libraries name them, as `Recorder.validation` takes them."""

import re
from collections.abc import Mapping
from typing import Any

# Times belong to no record whose every bit is reproducible.
_TIMES = re.compile(r"(runtime|_per_second|epoch)$")


def held_out(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the metrics of one data set, such as `loss` and `accuracy`, without their prefix.

    Args:
        prefix: a pattern of what their names begin with, such as `eval`.
    """
    found = {}
    for name, value in metrics.items():
        begins = re.match(rf"({prefix})[/_.]", name)
        if begins and not _TIMES.search(name):
            found[re.sub(r"\W", "_", name[begins.end() :])] = value
    return found
