"""A table of runs that is never wider than the terminal."""

import textwrap
from collections.abc import Sequence

from seedbed.errors import printable
from seedbed.listing.rows import Row
from seedbed.record import text

_GAP = 2
_NARROW = 12  # characters to which cells are shortened before columns are left out


def table(
    rows: Sequence[Row],
    columns: Sequence[str],
    width: int | None,
    asked: bool,
    sort_keys: Sequence[str] = (),
) -> list[str]:
    """Return the lines of a table, which fits in `width` characters (None: any).

    First, settings are left out from the right, unless these columns were `asked` for;
    then cells are shortened, and at last other columns left out, but for the run and
    the keys that the rows are sorted by. A last line names them.
    """
    if width is None:
        return text.of_rows(rows, columns)
    shown = {key: _column(rows, key) for key in columns}
    kept = ("run", *sort_keys)
    others = [key for key in columns if key not in kept]
    settings = [] if asked else [key for key in others if "." in key]
    while settings and _width(shown) > width:
        del shown[settings.pop()]
    least = min(_NARROW, width)
    while (
        _width(shown) > width and (widest := max(map(_longest, shown.values()))) > least
    ):
        key = next(key for key in shown if _longest(shown[key]) == widest)
        excess = max(1, min(widest - least, _width(shown) - width))
        shown[key] = [_shortened(cell, widest - excess) for cell in shown[key]]
    others = [key for key in others if key in shown]
    while len(shown) > 1 and others and _width(shown) > width:
        del shown[others.pop()]
    lines = text.aligned([*zip(*shown.values(), strict=True)])
    if left_out := [key for key in columns if key not in shown]:
        note = f"(more, by --columns or --csv: {', '.join(map(printable, left_out))})"
        lines += textwrap.wrap(note, width)
    return [line[:width] for line in lines]


def _column(rows: Sequence[Row], key: str) -> list[str]:
    """Return the cells of a column, below its name."""
    values = [row.get(key, "-") for row in rows]
    cells = [
        f"{value:.6g}" if isinstance(value, float) else text.show(value)
        for value in values
    ]
    return [printable(cell).replace("\n", "\\n") for cell in (key, *cells)]


def _longest(column: Sequence[str]) -> int:
    return max(map(len, column))


def _width(columns: dict[str, list[str]]) -> int:
    return sum(map(_longest, columns.values())) + _GAP * (len(columns) - 1)


def _shortened(cell: str, most: int) -> str:
    """Return the end of a cell, in which the paths and values of runs differ."""
    return cell if len(cell) <= most else f"...{cell[len(cell) - most + 3 :]}"
