"""The configuration of a run: its types, every check of it, and what it may name."""

from seedbed.config.check import check, check_shards, resolve
from seedbed.config.settings import Settings, promises_bits
from seedbed.config.trust import require_trusted, targets_of

__all__ = [
    "Settings",
    "check",
    "check_shards",
    "promises_bits",
    "require_trusted",
    "resolve",
    "targets_of",
]
