"""The first difference between two records: at which step, on which stage, and what else
differs."""

from seedbed.compare.difference import (
    COLUMNS,
    Comparison,
    Difference,
    Record,
    comparable_stages,
    compare,
    first_difference,
    losses,
    paired,
    patched_files,
    read,
    rows,
)

__all__ = [
    "COLUMNS",
    "Comparison",
    "Difference",
    "Record",
    "comparable_stages",
    "compare",
    "first_difference",
    "losses",
    "paired",
    "patched_files",
    "read",
    "rows",
]
