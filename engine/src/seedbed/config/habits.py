"""What keys of Lightning are called here (habits.yaml), and where a new key may be
added."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from seedbed import project

# Sections whose other keys are arguments of a class, or names that are free to choose.
_OPEN = (
    "data",
    "model",
    "method",
    "optimizer",
    "schedule",
    "metrics",
    "callbacks",
    "logger",
)


@cache
def _known() -> dict[str, Any]:
    return dict(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()))


def called_here(key: str) -> str:
    """Return `; here: X` for a key of the trainer or of the top that others have; else
    empty."""
    section, _, name = key.rpartition(".")
    return (
        f"; here: {_known()[name]}"
        if name in _known() and section in ("", "trainer")
        else ""
    )


def to_add(key: str) -> str:
    """Return how to add a key to a composed configuration; empty where it would be
    refused."""
    is_open = key.partition(".")[0] in _OPEN and "." in key
    return (
        f"; to add it: +{key}=..."
        if is_open or (project.configs() / key).is_dir()
        else ""
    )
