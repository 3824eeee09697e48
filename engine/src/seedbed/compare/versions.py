"""The files in which the code of two records differs, and their unified diff; nothing is run."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from seedbed.compare.difference import Record
from seedbed.record import code

_MOST_LINES = 200


@dataclass(frozen=True)
class Versions:
    """The imported files that two runs had in different versions.

    Attributes:
        texts: what A and B had, by path; a file is missing from one that did not have it.
        missing: why there is no text of a file, or of any.
    """

    texts: tuple[Mapping[str, str], Mapping[str, str]]
    missing: tuple[str, ...] = ()

    @property
    def paths(self) -> list[str]:
        """Return the paths of the files of which there is a text that differs."""
        return sorted(
            path
            for path in self.texts[0].keys() | self.texts[1].keys()
            if self.texts[0].get(path) != self.texts[1].get(path)
        )


def changed_paths(a: Record, b: Record) -> list[str]:
    """Return the paths of the files that can explain a difference between two runs."""
    found = (change for change in code.changes(a.code, b.code) if change.alters_bits)
    return [change.key for change in found if not change.key.startswith("git.")]


def recorded(a: Record, b: Record) -> Versions:
    """Return both versions of the files that differ, from git's objects and the patches."""
    paths = changed_paths(a, b)
    found = [code.texts(of.code, of.patch, paths) for of in (a, b)]
    missing = [
        f"run {side}: git lacks commit {of.code.commit}, or the patch does not fit it; fetch it"
        for side, of, texts in zip("AB", (a, b), found, strict=True)
        if texts is None
    ]
    missing += [
        f"run {side}: {path} is in neither commit nor patch ({reason})"
        for side, of in zip("AB", (a, b), strict=True)
        for path, reason in of.code.lacks.items()
        if path == "." or path in paths
    ]
    whole = [] if None in found else [_decoded(texts or {}) for texts in found]
    return Versions((whole[0], whole[1]) if whole else ({}, {}), tuple(missing))


def _decoded(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {path: content.decode(errors="replace") for path, content in contents.items()}


def unified_diff(versions: Versions) -> Iterator[str]:
    """Yield the lines of a unified diff of the files, A before B."""
    lines: list[str] = []
    for path in versions.paths:
        a, b = (_lines(each.get(path)) for each in versions.texts)
        names = f"A/{path}" if a else "(none)", f"B/{path}" if b else "(none)"
        lines += difflib.unified_diff(a, b, *names, lineterm="")
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"... ({len(lines) - _MOST_LINES:,} more lines)"


def describe(versions: Versions) -> Iterator[str]:
    """Yield the diff under a heading, and what is missing."""
    if versions.paths:
        yield "\nWhat differs in the files that the runs imported"
        yield from unified_diff(versions)
    yield from (f"note: {note}" for note in versions.missing)


def _lines(text: str | None) -> Sequence[str]:
    return (text or "").splitlines()
