"""How configurations of a sweep are named: by what differs between them."""

from collections.abc import Mapping, Sequence
from typing import Any

from seedbed.compare import causes
from seedbed.record.change import Change

ABSENT = "absent"


def name_all(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each configuration by what differs; `model=cnn` stands for all that a model brings."""
    keys = leading_keys(settings)
    named = {
        key.removesuffix(".name") for key in keys if key.count(".") == 1 and key.endswith(".name")
    }
    short = [key for key in keys if key.split(".")[0] not in named]
    short += [f"{section}.name" for section in sorted(named)]
    labels = [_label(each, short) for each in settings]
    if len(set(labels)) < len(labels):
        labels = [_label(each, differing_keys(settings)) for each in settings]
    return labels


def differing_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that do not have the same value in all of some flat configurations."""
    keys = dict.fromkeys(key for each in settings for key in each)
    first = settings[0] if settings else {}
    return [
        key
        for key in keys
        if any(each.get(key, ABSENT) != first.get(key, ABSENT) for each in settings)
    ]


def leading_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that differ, without those that follow from another one, such as threads."""
    keys = differing_keys(settings)
    leading = {change.key for each in settings[1:] for change in changes(settings[0], each, keys)}
    return [key for key in keys if key in leading]


def changes(
    before: Mapping[str, Any], now: Mapping[str, Any], keys: Sequence[str], *others: Change
) -> list[Change]:
    """Return in what two configurations differ, without what follows from another setting.

    Args:
        keys: to look at.
        others: what differs besides, such as the environment, which can follow from a setting.
    """
    pairs = [(key, before.get(key, ABSENT), now.get(key, ABSENT)) for key in keys]
    return causes.others([*(Change(*pair) for pair in pairs if pair[1] != pair[2]), *others])


def _label(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key.removesuffix('.name')}={settings.get(key, ABSENT)}" for key in keys)
