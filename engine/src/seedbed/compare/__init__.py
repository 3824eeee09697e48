"""Two records compared: the first step and stage that differ, and what differs between them."""

from seedbed.compare.difference import (
    Comparison,
    Difference,
    Record,
    comparable_stages,
    compare,
    first_difference,
    read,
)

__all__ = [
    "Comparison",
    "Difference",
    "Record",
    "comparable_stages",
    "compare",
    "first_difference",
    "read",
]
