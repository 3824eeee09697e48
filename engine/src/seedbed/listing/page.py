"""One self-contained HTML page of runs: a table, curves, differences and pictures.

It needs no network. What records say is data in it: JSON in which no tag can end, shown
by `textContent` alone, under a policy that runs no script but the page's own and opens
no address.
"""

import base64
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.listing import selection
from seedbed.listing.rows import Row, varying
from seedbed.record import text, untrusted

_PARTS = Path(__file__).parent
_MOST_POINTS = 1000  # of a curve
_MOST_PICTURES = 40  # of a run
_PICTURE_BYTES = 2 << 20
_ALL_PICTURES_BYTES = 32 << 20
_FORMATS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'">
<meta name="viewport" content="width=device-width">
<title>Runs</title>
<style>{style}</style>
</head>
<body>
<noscript>This page needs JavaScript.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def build(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the page of some runs, which shows these columns at first."""
    # No character that could end the element or begin another; json.dumps escapes
    # non-ASCII ones.
    data = text.as_json(_data(rows, columns), indent=None).replace("<", "\\u003c")
    style = (_PARTS / "page.css").read_text()
    script = (_PARTS / "page.js").read_text()
    return _PAGE.format(
        style=style,
        script=script,
        data=data,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _hash(content: str) -> str:
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _data(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, Any]:
    from seedbed.sweeps import groups  # pandas and SciPy: a second

    folders = [Path(row["run"]) for row in rows]
    whole = [
        {**row, **_environment(folder)}
        for row, folder in zip(rows, folders, strict=True)
    ]
    keys = dict.fromkeys(key for row in whole for key in row)
    varied = dict.fromkeys(varying(whole, list(keys)))
    constant = {key: _exact(whole[0].get(key)) for key in keys if key not in varied}
    runs = [groups.read_run(folder, folder) for folder in folders]
    pictures = _Pictures()
    return {
        "columns": columns,
        "grammar": {"condition": selection.CONDITION, "number": selection.NUMBER},
        "constant": constant,
        "runs": [
            {key: _exact(row[key]) for key in varied if key in row} for row in whole
        ],
        "groups": _numbered([run.identity for run in runs]),
        "seeds": _numbered([run.seed for run in runs]),
        "folds": _numbered([run.fold for run in runs]),
        "seed_keys": sorted({key for run in runs for key in run.seeds}),
        "curves": [_curves(folder) for folder in folders],
        "pictures": [pictures.of(folder) for folder in folders],
        "pictures_left_out": pictures.left_out,
    }


def _numbered(texts: Sequence[str]) -> list[int]:
    """Return a number for each text, the same for equal ones."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return [numbers[text] for text in texts]


def _exact(value: Any) -> Any:
    """Return a value as JSON that JavaScript reads without loss.

    It has one type of numbers, which drops digits of integers from 2**53 on and tells
    none from a float that is whole: both, and non-finite floats, become texts with
    their type.
    """
    if isinstance(value, list):
        return [_exact(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else {"int": str(value)}
    if isinstance(value, float):
        is_plain = math.isfinite(value) and not value.is_integer()
        return value if is_plain else {"float": str(value)}
    return str(value)


def _environment(folder: Path) -> dict[str, Any]:
    """Return versions, flags and so on, and the digests of imported files, by key."""
    with suppress(InputError):
        return record.flatten({"environment": record.read_environment(folder)})
    return {}


def _curves(folder: Path) -> dict[str, list[list[float | None]]]:
    """Return the steps, epochs and values of each curve of metrics.csv: `validation
    loss`, ..."""
    found: dict[str, list[list[float | None]]] = {}
    with suppress(InputError):
        for row in record.read_metrics(folder):
            x = _number(row["step"]), _number(row["epoch"])
            for name, cell in record.values_of(row).items():
                steps, epochs, values = found.setdefault(
                    f"{row['phase']} {name}", [[], [], []]
                )
                steps.append(x[0])
                epochs.append(x[1])
                values.append(_number(cell))
    return {
        name: [_thinned(series) for series in curve] for name, curve in found.items()
    }


def _number(cell: str) -> float | None:
    with suppress(ValueError):
        return number if math.isfinite(number := float(cell)) else None
    return None


def _thinned(values: list[float | None]) -> list[float | None]:
    """Return every n-th value and the last one, so that they are at most
    `_MOST_POINTS`."""
    every = -(-len(values) // (_MOST_POINTS - 1)) if len(values) > _MOST_POINTS else 1
    return (
        values[::every]
        if not (len(values) - 1) % every
        else [*values[::every], values[-1]]
    )


class _Pictures:
    """The pictures of runs as data URIs, up to a number and size."""

    def __init__(self) -> None:
        self._left = _ALL_PICTURES_BYTES
        self.left_out = 0

    def of(self, folder: Path) -> list[list[str]]:
        """Return name and data URI of each PNG and JPEG of a run."""
        found: list[list[str]] = []
        for path in self._paths(folder):
            with suppress(InputError, OSError):
                content = untrusted.read_bytes(path, _PICTURE_BYTES)
                kind = next(
                    (k for start, k in _FORMATS.items() if content.startswith(start)),
                    None,
                )
                if kind is None:
                    continue
                if len(found) == _MOST_PICTURES or len(content) > self._left:
                    self.left_out += 1
                    continue
                self._left -= len(content)
                encoded = base64.b64encode(content).decode()
                found.append(
                    [str(path.relative_to(folder)), f"data:{kind};base64,{encoded}"]
                )
        return found

    @staticmethod
    def _paths(folder: Path) -> Iterator[Path]:
        """Yield the picture files in a run folder; a link out of it is none."""
        names = ("*.png", "*.jpg", "figures/*.png", "figures/*.jpg")
        paths = (path for name in names for path in sorted(folder.glob(name)))
        root = folder.resolve()
        inside = (path for path in paths if path.resolve().is_relative_to(root))
        return islice(inside, 10 * _MOST_PICTURES)


def columns_of(rows: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> list[str]:
    """Return the columns to show at first: those of the terminal, the best step, last
    values."""
    metrics = dict.fromkeys(
        str(row["metric_name"]) for row in rows if row.get("metric_name")
    )
    more = ["best_step", *(f"last_validation_{name}" for name in metrics), "verified"]
    there = [key for key in more if any(row.get(key) is not None for row in rows)]
    return list(dict.fromkeys([*shown, *there]))
