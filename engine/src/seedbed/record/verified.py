"""What `verify.py` has found in this checkout, by the content of the verified record.

It is kept in the project and not in the run folder: a stranger's record cannot claim
that it was verified, a zip of a run counts as its folder does, and the note is void
once the record changes.
"""

import datetime
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from seedbed import project, record
from seedbed.errors import InputError
from seedbed.record import files, untrusted

PLACE = ".seedbed/verified"  # in the project; git ignores it
_NAMED_BY = ("config.yaml", "summary.json")
_TABLES = ("metrics.csv", "fingerprints.csv")
_WHOLE = "yes"
_DIFFERS = "no"


def note(run: Path, reproduced: bool, part: str | None = None) -> None:
    """Note the outcome of a replay, or of one of a part, such as `steps 1 to 5`.

    A part of a run that is reproduced does not replace the outcome of all of it. Where
    the project cannot be written, nothing is kept.
    """
    result = (part or _WHOLE) if reproduced else _DIFFERS
    if result not in (_WHOLE, _DIFFERS) and of(run) == _WHOLE:
        return
    when = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    with suppress(OSError, InputError):
        path = _path(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        record.write_json(
            path, {"result": result, "when": when, "tables": _digests(run)}
        )


def of(run: Path) -> str | None:
    """Return `yes`, `no`, or the steps or segments of the run that were reproduced;
    None if never verified."""
    with suppress(OSError, InputError):
        noted: dict[str, Any] = untrusted.read_json(_path(run))
        if noted.get("tables") == _digests(run):
            return str(noted.get("result"))
    return None


def _path(run: Path) -> Path:
    contents = (
        untrusted.read_bytes(run / name, untrusted.MAX_TEXT_BYTES) for name in _NAMED_BY
    )
    both = "".join(hashlib.sha256(content).hexdigest() for content in contents)
    return (
        project.root()
        / PLACE
        / f"{hashlib.sha256(both.encode()).hexdigest()[:32]}.json"
    )


def _digests(run: Path) -> dict[str, str]:
    return {
        name: files.of_file(run / name) for name in _TABLES if (run / name).is_file()
    }
