"""The configuration of a run: its schema, every check of it, and what it may name."""

from seedbed.config.check import check, check_shards, nearest, resolve
from seedbed.config.rules import OPEN_SECTIONS, RULES, promises_bits, require_replayable
from seedbed.config.trust import is_trusted, require_trusted

__all__ = [
    "OPEN_SECTIONS",
    "RULES",
    "check",
    "check_shards",
    "is_trusted",
    "nearest",
    "promises_bits",
    "require_replayable",
    "require_trusted",
    "resolve",
]
