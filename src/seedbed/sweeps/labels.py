"""How configurations of a sweep are named: by what differs between them."""

from collections.abc import Mapping, Sequence
from typing import Any

ABSENT = "absent"


def name_all(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each configuration by what differs; `model=cnn` stands for all that a model brings."""
    keys = differing_keys(settings)
    named = {
        key.removesuffix(".name") for key in keys if key.count(".") == 1 and key.endswith(".name")
    }
    short = [key for key in keys if key.split(".")[0] not in named]
    short += [f"{section}.name" for section in sorted(named)]
    labels = [_label(each, short) for each in settings]
    return labels if len(set(labels)) == len(labels) else [_label(each, keys) for each in settings]


def differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that do not have the same value in all of some flat configurations."""
    keys = dict.fromkeys(key for each in settings for key in each)
    first = settings[0] if settings else {}
    return [
        key
        for key in keys
        if any(each.get(key, ABSENT) != first.get(key, ABSENT) for each in settings)
    ]


def _label(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key.removesuffix('.name')}={settings.get(key, ABSENT)}" for key in keys)
