"""The schema of the configuration, and every check of it."""

from seedbed.config.check import (
    MAX_SEED,
    OPEN_SECTIONS,
    OPTIONAL_KEYS,
    RULES,
    TASKS,
    Rule,
    check,
    check_shards,
    is_trusted,
    nearest,
    resolve,
)

__all__ = [
    "MAX_SEED",
    "OPEN_SECTIONS",
    "OPTIONAL_KEYS",
    "RULES",
    "TASKS",
    "Rule",
    "check",
    "check_shards",
    "is_trusted",
    "nearest",
    "resolve",
]
