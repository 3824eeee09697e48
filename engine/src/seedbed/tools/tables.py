"""Tables in files: CSV, or Parquet where pyarrow is installed."""

import io
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from seedbed.config import options
from seedbed.errors import InputError
from seedbed.record import text

_PARQUET = ".parquet"


def require_format(out: Path) -> None:
    """Raise InputError unless a table can be written to a file of this name."""
    if out.suffix not in (".csv", _PARQUET):
        raise InputError(
            f"--out: expected a file named *.csv or *.parquet, got {out.name}"
        )
    if out.suffix == _PARQUET and find_spec("pyarrow") is None:
        raise InputError(
            f"--out: {out.name} needs a package: pip install pyarrow, or write a .csv"
        )


def write(out: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length by name, atomically; see `require_format`."""
    if out.suffix == _PARQUET:
        pyarrow: Any = import_module("pyarrow")  # an optional package
        parquet: Any = import_module("pyarrow.parquet")
        content = io.BytesIO()
        parquet.write_table(
            pyarrow.table({k: list(v) for k, v in columns.items()}), content
        )
        options.write(out, content.getvalue())
        return
    rows = (
        dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    )
    options.write(out, text.as_csv([*columns], rows))
