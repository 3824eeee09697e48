"""Values and tables as text: aligned for a terminal, as CSV with all digits, as JSON."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seedbed.errors import printable


def show(value: Any) -> str:
    """Format a value as YAML does, numbers with all their digits."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(show, value))}]" if isinstance(value, list) else str(value)


def aligned(rows: Sequence[Sequence[object]], gap: str = "  ") -> list[str]:
    """Return the lines of a table for a terminal, with control characters escaped."""
    cells = [[printable(str(cell)).replace("\n", "\\n") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def of_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Return the lines of a table of values by key; floats with six significant digits."""
    values = [[row.get(key, "-") for key in columns] for row in rows]
    cells = [[f"{x:.6g}" if isinstance(x, float) else show(x) for x in row] for row in values]
    return aligned([columns, *cells])


def as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([show(row[key]) if key in row else "" for key in columns] for row in rows)
    return text.getvalue()


def as_json(value: Any) -> str:
    """Serialize to JSON; non-finite numbers, which JSON lacks, become strings."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, int | float) else str(value)
