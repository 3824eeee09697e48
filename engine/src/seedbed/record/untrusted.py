"""The only module that reads the text files of records, which may be untrusted.

A record is data: reading it executes nothing, resolves nothing, opens no address, writes nothing,
and takes bounded time and memory for any content.
"""

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seedbed.errors import InputError

MAX_TEXT_BYTES = 16 << 20
MAX_YAML_CHARACTERS = 1 << 20
MAX_YAML_NODES = 20_000
MAX_CELLS = 50_000_000
MAX_CELL_BYTES = 20  # on average
MAX_LINE_BYTES = 1 << 15
MAX_DEPTH = 32
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MALFORMED = (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException)


def open_file(path: Path, most_bytes: int) -> BinaryIO:
    """Open a regular file of limited size; reading a pipe or a device might never end."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    status = os.fstat(file.fileno())
    is_file = stat.S_ISREG(status.st_mode)
    if is_file and status.st_size <= most_bytes:
        return file
    file.close()
    got = f"{status.st_size:,}" if is_file else "a device"
    raise InputError(f"{path}: expected a file of at most {most_bytes:,} bytes, got {got}")


def read_bytes(path: Path, most_bytes: int) -> bytes:
    with open_file(path, most_bytes) as file:
        return file.read(most_bytes)


def read_dict(folder: Path) -> dict[str, Any]:
    """Return config.yaml of a run as dicts, ten times faster than with OmegaConf."""
    return _parsed(folder / "config.yaml", "YAML", parse_yaml)  # type: ignore[no-any-return]


def read_config(folder: Path) -> DictConfig:
    """Return the configuration in a run folder."""
    tree = _parsed(folder / "config.yaml", "YAML", lambda text: OmegaConf.create(parse_yaml(text)))
    return tree  # type: ignore[no-any-return]


def parse_yaml(text: str) -> Any:
    """Parse a YAML text; raise one of _MALFORMED for content that no config.yaml has.

    That is aliases, tags, interpolations such as `${oc.env:HOME}`, and missing values, `???`.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise ValueError(f"{len(text):,} characters")
    for number, event in enumerate(yaml.parse(text, _Loader)):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None) is not None:
            raise ValueError(f"an alias or a tag in line {line}")
        if number > MAX_YAML_NODES:
            raise ValueError(f"more than {MAX_YAML_NODES:,} values")
        value = getattr(event, "value", "")
        if "${" in value or value == "???":
            raise ValueError(f"{value[:80]} in line {line}, where a record has a value")
    return _bounded(yaml.load(text, _Loader))


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    return _parsed(path, "JSON", lambda text: _bounded(json.loads(text)))  # type: ignore[no-any-return]


def read_rows(
    path: Path, fields: Sequence[str], most_cells: int = MAX_CELLS
) -> list[dict[str, str]]:
    """Return the rows of a table of a record, which may have more columns after `fields`."""
    rows = []
    try:
        with open_file(path, MAX_CELL_BYTES * most_cells) as file:
            lines = iter(lambda: file.readline(MAX_LINE_BYTES), b"")
            header = next(lines, b"").decode().rstrip("\r\n").split(",")
            known = header[: len(fields)]
            if known != [*fields] or len(set(header)) < len(header) or "" in header:
                raise ValueError(f"{','.join(header)[:200]!r}")
            for number, line in enumerate(lines, start=2):
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                    break  # left by a killed process
                cells = line.decode().rstrip("\r\n").split(",")
                if len(cells) != len(header) or not line.endswith(b"\n"):
                    raise ValueError(f"line {number}, too long or with other columns")
                if number * len(header) > most_cells:
                    raise ValueError(f"more than {most_cells:,} cells")
                rows.append(dict(zip(header, cells, strict=True)))
    except (OSError, ValueError) as error:
        asked, got = ",".join(fields), first_line(error)
        raise InputError(f"{path}: expected a table with the columns {asked}, got {got}") from None
    return rows


def require_no_way_out(folder: Path) -> None:
    """Raise InputError if an entry of a folder leads out of it, or is neither file nor folder."""
    root = Path(os.path.realpath(folder))
    for path in (*folder.iterdir(), *(folder / "checkpoints").glob("*")):
        inside = Path(os.path.realpath(path)).is_relative_to(root)
        if not inside or not (path.is_file() or path.is_dir()):
            raise InputError(
                f"{path}: expected a file or folder inside the run, got a device or a link out"
            )


def _parsed(path: Path, kind: str, parse: Callable[[str], Any]) -> Any:
    try:
        tree = parse(read_bytes(path, MAX_TEXT_BYTES).decode())
        if not isinstance(tree, Mapping):
            raise ValueError(f"a {type(tree).__name__} instead of a mapping")
        return tree
    except _MALFORMED as error:
        raise InputError(f"{path}: expected {kind}, got {first_line(error)}") from None


def _bounded(tree: Any, depth: int = 0) -> Any:
    """Return a tree; raise ValueError for nesting too deep to recurse or integers over 64 bits."""
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} levels of nesting")
    if isinstance(tree, dict | list):
        for each in tree.values() if isinstance(tree, dict) else tree:
            _bounded(each, depth + 1)
    elif isinstance(tree, int) and abs(tree) >= 1 << 64:
        raise ValueError("an integer of more than 64 bits")
    return tree


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, without the name of the file."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().partition("\n")[0]
