"""The one place that reads the files of records, which may come from strangers.

A record is data: reading it executes nothing, resolves nothing, opens no address, writes nothing,
and ends in bounded time and memory, whatever the files hold.
"""

import io
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seedbed.errors import InputError

MAX_YAML_BYTES = 1 << 20
MAX_YAML_NODES = 20_000
MAX_JSON_BYTES = 16 << 20
MAX_TABLE_BYTES = 2 << 30
MAX_ROWS = 5_000_000
MAX_LINE_BYTES = 4096
MAX_DEPTH = 32
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MALFORMED = (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException)


def open_file(path: Path, most_bytes: int) -> BinaryIO:
    """Open a regular file of a limited size; a pipe or a device would never end.

    Raises:
        OSError: it cannot be opened.
        InputError: it is something else, or larger.
    """
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    status = os.fstat(file.fileno())
    is_file = stat.S_ISREG(status.st_mode)
    if is_file and status.st_size <= most_bytes:
        return file
    file.close()
    if not is_file:
        raise InputError(f"{path}: expected a file, got a folder or a device; replace it")
    raise InputError(
        f"{path}: expected at most {most_bytes:,} bytes, got {status.st_size:,}; shorten it, or "
        "raise the limit in src/seedbed/record/untrusted.py if the record is yours"
    )


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file of a limited size; see `open_file`."""
    with open_file(path, most_bytes) as file:
        return file.read(most_bytes)


def read_yaml(path: Path) -> Any:
    """Return what a YAML file holds; aliases and tags, which no record has, are refused."""
    return _parsed(path, "YAML", lambda: yaml.load(_yaml_text(path), _Loader))


def read_config(path: Path) -> DictConfig:
    """Return the configuration in a run folder or a YAML file, as OmegaConf reads it.

    Interpolations (`${oc.env:HOME}`) and missing values (`???`), which the configuration of a run
    has none of, are refused; nothing is resolved.
    """
    path = path / "config.yaml" if path.is_dir() else path
    config = _parsed(path, "YAML", lambda: OmegaConf.load(io.StringIO(_yaml_text(path, True))))
    if not isinstance(config, DictConfig):
        raise InputError(f"{path}: expected a mapping, got a list; name a run's config.yaml")
    return config


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    value = _parsed(path, "JSON", lambda: json.loads(read_bytes(path, MAX_JSON_BYTES)))
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(value).__name__}; mend it")
    return value


def read_rows(
    path: Path, fields: tuple[str, ...], most_columns: int = 0
) -> Iterator[dict[str, str]]:
    """Yield the rows of a table of a record; its cells are not quoted.

    Args:
        fields: its columns, or the first of them.
        most_columns: how many there may be, if they may be more.

    Raises:
        InputError: a row is cut off, too long or has other columns, or there are too many.
    """
    replay = "replay the run with scripts/verify.py"
    try:
        with open_file(path, MAX_TABLE_BYTES) as file:
            header = file.readline(MAX_LINE_BYTES).decode().rstrip("\r\n").split(",")
            known, count = header[: len(fields)] == [*fields], len(header)
            unique = len(set(header)) == count and all(header)
            if not (known and unique and count <= max(len(fields), most_columns)):
                raise InputError(
                    f"{path}: expected the columns {','.join(fields)}, got "
                    f"{','.join(header)[:200]!r}; {replay}"
                )
            for number in range(2, MAX_ROWS + 2):
                line = file.readline(MAX_LINE_BYTES)
                if not line:
                    return
                values = line.decode().rstrip("\r\n").split(",")
                if len(values) != count or not line.endswith(b"\n"):
                    raise InputError(
                        f"{path}: expected {count} columns in line {number}, got a line that is "
                        f"cut off, too long or has others; delete the damaged line, or {replay}"
                    )
                yield dict(zip(header, values, strict=True))
            if not file.readline(1):
                return
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected a CSV file, got {_first_line(error)}") from None
    raise InputError(f"{path}: expected at most {MAX_ROWS:,} rows, got more; shorten the table")


def require_no_way_out(folder: Path) -> None:
    """Raise InputError for a folder to work in whose entries lead elsewhere, or are no files."""
    root = folder.resolve()
    for place in (folder, folder / "checkpoints"):
        for path in place.iterdir() if place.is_dir() else ():
            try:
                inside = path.resolve(strict=path.is_symlink()).is_relative_to(root)
            except (OSError, RuntimeError):  # it leads nowhere, or round in a circle
                inside = False
            if not inside or not (path.is_file() or path.is_dir()):
                raise InputError(
                    f"{path}: expected a file or folder of its own, got a link that leads out of "
                    f"{folder}, or a device; replace it by a copy"
                )


def _yaml_text(path: Path, resolved: bool = False) -> str:
    """Return the text of a YAML file that is safe to construct: its events are within limits."""
    text = read_bytes(path, MAX_YAML_BYTES).decode()
    depth = 0
    for number, event in enumerate(yaml.parse(text, _Loader)):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise ValueError(f"an alias or a tag in line {line}")
        if depth > MAX_DEPTH or number > MAX_YAML_NODES:
            raise ValueError(
                f"more than {MAX_DEPTH} levels of nesting or {MAX_YAML_NODES:,} values"
            )
        value = getattr(event, "value", "")
        if resolved and ("${" in value or value == "???"):
            raise ValueError(f"{value[:80]} in line {line}, where a record has a value")
    return text


def _parsed(path: Path, what: str, parse: Any) -> Any:
    try:
        value = parse()
        _check_tree(value if not isinstance(value, DictConfig) else OmegaConf.to_container(value))
    except FileNotFoundError:
        kind = "run's configuration" if what == "YAML" else "record's file"
        raise InputError(f"{path}: expected a {kind}, got no file; name a run or a sweep") from None
    except _MALFORMED as error:
        raise InputError(f"{path}: expected {what}, got {_first_line(error)}; mend it") from None
    return value


def _check_tree(tree: Any, depth: int = 0) -> None:
    """Raise ValueError for nesting that recursion does not bear, or integers that text does not."""
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} levels of nesting")
    if isinstance(tree, Mapping | list):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            _check_tree(each, depth + 1)
    elif isinstance(tree, int) and abs(tree) >= 1 << 64:
        raise ValueError("an integer of more than 64 bits")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
