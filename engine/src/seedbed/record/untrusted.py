"""The only module that reads text and zip files of records, which may be untrusted.

A record is data: reading it executes nothing, resolves nothing, opens no address,
writes nothing (but for a zip in its target folder), and takes bounded time and memory
for any content.
"""

import io
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seedbed.errors import InputError

MAX_TEXT_BYTES = 16 << 20
MAX_STATISTICS_BYTES = 256 << 20
MAX_YAML_CHARACTERS = 1 << 20
MAX_YAML_NODES = 20_000
MAX_CELLS = 50_000_000
MAX_CELL_BYTES = 20  # on average
MAX_LINE_BYTES = 1 << 15
MAX_DEPTH = 32
MAX_CODE_BYTES = 64 << 20
MAX_RUN_BYTES = 8 << 30
MAX_DIRECTORY_BYTES = 4 << 20  # of the central directory of a zip file
MAX_RATIO = 200  # zeros shrink to a thousandth; tables and weights to a tenth at best
_BAD_ZIP = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MALFORMED = (
    OSError,
    ValueError,
    RecursionError,
    yaml.YAMLError,
    OmegaConfBaseException,
)

# of entries; of mappings and lists also that of the values
Types = Mapping[str, tuple[type, ...]]


def open_file(path: Path, most_bytes: int) -> BinaryIO:
    """Open a regular file of limited size; reading a pipe or a device might never
    end."""
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    status = os.fstat(file.fileno())
    is_file = stat.S_ISREG(status.st_mode)
    if is_file and status.st_size <= most_bytes:
        return file
    file.close()
    got = f"{status.st_size:,}" if is_file else "a device"
    raise InputError(
        f"{path}: expected a file of at most {most_bytes:,} bytes, got {got}"
    )


def read_bytes(path: Path, most_bytes: int) -> bytes:
    with open_file(path, most_bytes) as file:
        return file.read(most_bytes)


def read_yaml(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """Return the mapping in a YAML file."""
    return _parsed(path, "YAML", parse_yaml, most_bytes)  # type: ignore[no-any-return]


def read_dict(folder: Path) -> dict[str, Any]:
    """Return config.yaml of a run as dicts, ten times faster than with OmegaConf."""
    return read_yaml(folder / "config.yaml")


def read_config(folder: Path) -> DictConfig:
    """Return the configuration in a run folder."""
    tree = _parsed(
        folder / "config.yaml", "YAML", lambda text: OmegaConf.create(parse_yaml(text))
    )
    return tree  # type: ignore[no-any-return]


def parse_yaml(text: str) -> Any:
    """Parse a YAML text; raise one of _MALFORMED for content that no config.yaml has.

    That is aliases, tags, interpolations such as `${oc.env:HOME}`, and missing values,
    `???`.
    """
    if len(text) > MAX_YAML_CHARACTERS:
        raise ValueError(f"{len(text):,} characters")
    for number, event in enumerate(yaml.parse(text, _Loader)):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if (
            isinstance(event, yaml.AliasEvent)
            or getattr(event, "tag", None) is not None
        ):
            raise ValueError(f"an alias or a tag in line {line}")
        if number > MAX_YAML_NODES:
            raise ValueError(f"more than {MAX_YAML_NODES:,} values")
        value = getattr(event, "value", "")
        if "${" in value or value == "???":
            raise ValueError(f"{value[:80]} in line {line}, where a record has a value")
    return _bounded(yaml.load(text, _UniqueLoader))


class _UniqueLoader(_Loader):  # type: ignore[misc]
    """Refuses mappings with two equal keys, of which readers may show one and use the
    other."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        # Also equal as texts, of which dotted keys are made.
        _unique((str(self.construct_object(key, deep)), None) for key, _ in node.value)
        return super().construct_mapping(node, deep)


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return pairs as a dict; raise ValueError for two of one key."""
    mapping = dict[str, Any]()
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"the key {key[:80]!r} twice")
        mapping[key] = value
    return mapping


def read_json(path: Path, most_bytes: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file."""
    return _parsed(path, "JSON", parse_json, most_bytes)  # type: ignore[no-any-return]


def parse_json(text: str) -> Any:
    """Parse a JSON text; raise ValueError or RecursionError for content that no record
    has."""
    return _bounded(json.JSONDecoder(object_pairs_hook=_unique).decode(text))


def require_types(path: Path, tree: Mapping[str, Any], types: Types) -> None:
    """Raise InputError if an entry has another type than expected; null is of any
    type."""
    for name, kinds in types.items():
        value = tree.get(name)
        inside = [*value.values()] if isinstance(value, dict) else value
        checked = [(value, kinds[0])]
        if len(kinds) > 1 and isinstance(inside, list):
            checked += [(entry, kinds[1]) for entry in inside]
        for entry, kind in checked:
            if entry is not None and not _is_a(entry, kind):
                expected = " of ".join(kind.__name__ for kind in kinds)
                raise InputError(
                    f"{path}: {name}: expected {expected}, got {value!r:.80}"
                )


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool):  # which Python takes for an integer
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def read_rows(
    path: Path, fields: Sequence[str], most_cells: int = MAX_CELLS
) -> list[dict[str, str]]:
    """Return the rows of a table of a record, which may have more columns after
    `fields`."""
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
                # a power cut leaves zeros where rows had not reached the disk
                if b"\0" in line:
                    break
                cells = line.decode().rstrip("\r\n").split(",")
                if len(cells) != len(header) or not line.endswith(b"\n"):
                    raise ValueError(f"line {number}, too long or with other columns")
                if number * len(header) > most_cells:
                    raise ValueError(f"more than {most_cells:,} cells")
                rows.append(dict(zip(header, cells, strict=True)))
    except (OSError, ValueError) as error:
        asked = ",".join(fields)
        got = first_line(error)
        raise InputError(
            f"{path}: expected a table with the columns {asked}, got {got}"
        ) from None
    return rows


def reject_external_links(folder: Path) -> None:
    """Raise InputError if an entry of a folder leads out of it, or is neither file nor
    folder."""
    root = Path(os.path.realpath(folder))
    for path in (*folder.iterdir(), *(folder / "checkpoints").glob("*")):
        inside = Path(os.path.realpath(path)).is_relative_to(root)
        if not inside or not (path.is_file() or path.is_dir()):
            raise InputError(
                f"{path}: expected a file or folder inside the run, got a device or a"
                " link out"
            )


def _parsed(
    path: Path,
    language: str,
    parse: Callable[[str], Any],
    most_bytes: int = MAX_TEXT_BYTES,
) -> Any:
    try:
        tree = parse(read_bytes(path, most_bytes).decode())
        if not isinstance(tree, Mapping):
            raise ValueError(f"a {type(tree).__name__} instead of a mapping")
        return tree
    except _MALFORMED as error:
        raise InputError(
            f"{path}: expected {language}, got {first_line(error)}"
        ) from None


def _bounded(tree: Any, depth: int = 0) -> Any:
    """Return a tree; raise ValueError for nesting too deep to recurse or integers over
    64 bits."""
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} levels of nesting")
    if isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            _bounded(value, depth + 1)
    elif isinstance(tree, int) and abs(tree) >= 1 << 64:
        raise ValueError("an integer of more than 64 bits")
    return tree


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, without the name of the file."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.strip().partition("\n")[0]


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a reproducible zip file: sorted, uncompressed, with a fixed time and
    mode."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # dated 1980-01-01, the earliest possible
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def read_zip(path: Path) -> dict[str, bytes]:
    """Return the content of the files in a code.zip, by name."""
    with _opened_zip(path, MAX_CODE_BYTES) as (archive, names):
        return {name: archive.read(name) for name in names}


def extract_zip(path: Path, folder: Path, most_bytes: int = MAX_CODE_BYTES) -> None:
    """Write the files in a zip file into an empty folder."""
    with _opened_zip(path, most_bytes) as (archive, names):
        archive.extractall(folder, names)


def is_inside(name: str) -> bool:
    """Return whether a name from a record is a short relative path that stays in its
    folder."""
    leads_out = re.search(r"^/|\\|(^|/)\.{0,2}(/|$)", name)
    return len(name) <= 1024 and name.isprintable() and not leads_out


@contextmanager
def _opened_zip(
    path: Path, most_bytes: int
) -> Iterator[tuple[zipfile.ZipFile, list[str]]]:
    """Yield a zip file and its file names; raise InputError for links, outside paths,
    zip bombs."""
    try:
        with open_file(path, most_bytes) as file:
            # `zipfile` reads the directory at once. A record's has no comment, and is
            # not Zip64.
            size = os.fstat(file.fileno()).st_size
            both = os.pread(file.fileno(), 20 + 22, max(0, size - 20 - 22))
            # only Zip64 files have the locator
            locator = both[:20]
            end = both[20:]
            if not end.startswith(b"PK\5\6") or locator.startswith(b"PK\6\7"):
                raise ValueError(
                    "a file of another kind, truncated, of more than 4 GiB, or with a"
                    " comment"
                )
            if int.from_bytes(end[12:16], "little") > MAX_DIRECTORY_BYTES:
                raise ValueError("too many entries")
            with zipfile.ZipFile(file) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
                names = [entry.filename for entry in entries]
                if len(set(names)) < len(names):
                    raise ValueError("two entries of the same name")
                # Another reader may take them for the archive.
                offsets = [entry.header_offset for entry in archive.infolist()]
                if min(offsets, default=0) > 0:
                    raise ValueError("bytes before its first entry")
                for entry in entries:
                    is_file = entry.external_attr >> 28 in (0, 0o10)
                    is_known = entry.compress_type in (
                        zipfile.ZIP_STORED,
                        zipfile.ZIP_DEFLATED,
                    )
                    if not (is_inside(entry.filename) and is_file and is_known):
                        name = entry.filename[:100]
                        raise ValueError(
                            f"an entry {name!r} that is no file inside the folder"
                        )
                most_bytes = min(most_bytes, (1 << 20) + MAX_RATIO * size)
                if sum(entry.file_size for entry in entries) > most_bytes:
                    raise ValueError(f"files of more than {most_bytes:,} bytes")
                yield archive, names
    except _BAD_ZIP as error:
        reason = first_line(error)
        raise InputError(
            f"{path}: expected a zip file of a record, got {reason}"
        ) from None
