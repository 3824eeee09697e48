"""The record of a run: reading and writing run folders."""

from seedbed.names import flatten
from seedbed.record.change import Change, Origin, changes
from seedbed.record.files import sync_folder, write_atomically, write_json
from seedbed.record.folder import (
    FILES,
    FORMAT_VERSION,
    LAST_CHECKPOINTS,
    LENGTHS,
    SWEEP,
    altered,
    is_begun,
    is_run,
    is_sweep,
    lock,
    read_summary,
    require_run,
    require_unfinished,
    runs_below,
)
from seedbed.record.tables import (
    FINGERPRINT_FIELDS,
    METRIC_FIELDS,
    Row,
    Table,
    read_fingerprints,
    read_metrics,
    require_bytes,
    values_of,
)
from seedbed.record.untrusted import read_config, read_json

__all__ = [
    "FILES",
    "FINGERPRINT_FIELDS",
    "FORMAT_VERSION",
    "LAST_CHECKPOINTS",
    "LENGTHS",
    "METRIC_FIELDS",
    "SWEEP",
    "Change",
    "Origin",
    "Row",
    "Table",
    "altered",
    "changes",
    "flatten",
    "is_begun",
    "is_run",
    "is_sweep",
    "lock",
    "read_config",
    "read_fingerprints",
    "read_json",
    "read_metrics",
    "read_summary",
    "require_bytes",
    "require_run",
    "require_unfinished",
    "runs_below",
    "sync_folder",
    "values_of",
    "write_atomically",
    "write_json",
]
