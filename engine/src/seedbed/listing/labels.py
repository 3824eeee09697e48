"""Tags and notes that are added to a run after it was started.

They are in a file of their own in the run folder, `labels.json`, which no comparison,
replay or resume reads. Its tags and notes replace those of the configuration.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.names import did_you_mean
from seedbed.record import text, untrusted

FILE = "labels.json"
_MAX_BYTES = 1 << 16
_TYPES: untrusted.Types = {"tags": (list, str), "notes": (str,)}


def read(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tags` and `notes` of a run: those of its configuration, unless replaced
    since."""
    own = {"tags": settings.get("tags") or [], "notes": settings.get("notes")}
    path = folder / FILE
    if not path.is_file():
        return own
    later = untrusted.read_json(path, _MAX_BYTES)
    untrusted.require_types(path, later, _TYPES)
    return own | {key: later[key] for key in own if key in later}


def change(
    folder: Path, added: Sequence[str], removed: Sequence[str], notes: str | None
) -> dict[str, Any]:
    """Add and remove tags of a run, and replace its notes unless None; return its
    labels."""
    labels = read(folder, untrusted.read_dict(folder))
    labels["tags"] = [
        tag
        for tag in dict.fromkeys([*_as_list(labels["tags"]), *added])
        if text.show(tag) not in removed
    ]
    labels["notes"] = labels["notes"] if notes is None else notes or None
    untrusted.reject_external_links(folder)
    try:
        record.write_json(folder / FILE, labels)
    except OSError as error:
        raise InputError(
            f"{folder / FILE}: expected a file that can be written, got"
            f" {error.strerror}"
        ) from None
    return labels


def require_tags(rows: Sequence[Mapping[str, Any]], removed: Sequence[str]) -> None:
    """Raise InputError unless at least one of the runs has each tag to remove."""
    known = {text.show(tag) for row in rows for tag in _as_list(row.get("tags"))}
    for tag in removed:
        if tag not in known:
            raise InputError(
                f"--untag: expected a tag of these runs, got {tag}"
                f"{did_you_mean(tag, known)}"
            )


def _as_list(tags: Any) -> list[Any]:
    """Return the tags of a run, of which a single one may be a text."""
    return tags if isinstance(tags, list) else [tags]
