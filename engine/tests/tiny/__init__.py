"""A data set and models for the engine's tests, which train in milliseconds.

`OVERRIDES` make a command line independent of the project's YAML files:

    trained(tmp_path / "run", *tiny.OVERRIDES)

A record names `tests.tiny`, which a checkout does not trust by default: use `resume.py
RUN --trust tests.tiny`, and likewise for verify.py.
"""

import json
from collections.abc import Mapping
from typing import Any

CLASSES = 3
FEATURES = 8

DATA: dict[str, Any] = {
    "name": "tiny",
    "task": {"name": "classification", "label_smoothing": 0.1},
    "batch_size": 8,
    "eval_batch_size": 16,
    "num_workers": 0,
    "persistent_workers": True,
    "prefetch_factor": 2,
    "start_method": "fork",
    "train": {"_target_": "tests.tiny.data.Noisy", "samples": 48},
    "validation": {"_target_": "tests.tiny.data.Noisy", "samples": 24},
    "test": {"_target_": "tests.tiny.data.Noisy", "samples": 24},
}
DENSE: dict[str, Any] = {
    "name": "dense",
    "_target_": "tests.tiny.models.Dense",
    "features": FEATURES,
    "outputs": CLASSES,
    "width": 16,
    "dropout": 0.1,
}


def overrides(
    model: Mapping[str, Any] = DENSE, data: Mapping[str, Any] = DATA
) -> tuple[str, ...]:
    """Return the overrides that train a model of this package on its data set."""
    sections = {"data": data, "model": model}
    return (
        *(f"~{section}" for section in sections),  # the project's choice
        *(
            f"++{s}.{key}={_as_word(v)}"  # also over the engine's defaults
            for s, section in sections.items()
            for key, v in section.items()
        ),
    )


def replaced(section: str, target: str, **values: Any) -> tuple[str, str]:
    """Return the overrides that choose another class for a section."""
    chosen = {"name": "own", "_target_": target, **values}
    return f"~{section}", f"+{section}={_as_word(chosen)}"


def _as_word(value: Any) -> str:
    """Write a value in Hydra's grammar, which is JSON without quoted keys."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ",".join(f"{key}:{_as_word(item)}" for key, item in value.items())
            + "}"
        )
    return json.dumps(value)


OVERRIDES = overrides()
