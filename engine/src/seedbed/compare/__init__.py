"""Two records compared: the first step and stage that differ, and what can explain it."""

from seedbed.compare.difference import (
    Comparison,
    Difference,
    Record,
    comparable_stages,
    compare,
    first_difference,
    losses,
    paired,
    read,
    rows,
)
from seedbed.compare.stages import COLUMNS

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
    "read",
    "rows",
]
