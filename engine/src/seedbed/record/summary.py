"""summary.json: how a run ended, and with what it was resumed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedbed.errors import InputError
from seedbed.record import untrusted

_NOT_FINITE = ("nan", "inf", "-inf")  # JSON has no such numbers: `text.as_json`
FORMAT_VERSION = 2  # 1: other random numbers for equal seeds, and other fingerprints


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json, its results as numbers; a record of a newer format is refused."""
    summary = untrusted.read_json(folder / "summary.json")
    version = summary.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f"{folder}: expected a record of format {FORMAT_VERSION} or older, got {version}; "
            "read it with the version of Seedbed that wrote it"
        )
    for results in (summary.get("metrics"), summary.get("objective")):
        if isinstance(results, dict):
            results.update({k: float(v) for k, v in results.items() if v in _NOT_FINITE})
    return summary


def altered(summary: Mapping[str, Any]) -> list[tuple[Any, list[str]]]:
    """Return where a run was resumed with changes that can alter bits: (step, changed keys).

    Such a record is that of no single configuration, code and environment.
    """
    resumes = summary.get("resumes")
    found = []
    for resume in resumes if isinstance(resumes, list) else []:
        keys = resume.get("can_alter_bits") if isinstance(resume, Mapping) else None
        if isinstance(keys, list) and keys:
            found.append((resume.get("step"), [str(key) for key in keys]))
    return found
