"""The imported files in which two records differ, and their unified diff; nothing is executed."""

import difflib
from collections.abc import Iterator

from seedbed.compare.difference import Record
from seedbed.record import code

_MOST_LINES = 200


def changed_paths(a: Record, b: Record) -> list[str]:
    """Return the names of the files that can explain a difference between two runs."""
    found = (change for change in code.changes(a.code, b.code) if change.alters_bits)
    return [change.key for change in found if change.key != "git.commit"]


def describe(a: Record, b: Record) -> Iterator[str]:
    """Yield a diff of the files under a heading, A before B, and which records keep no code."""
    paths = changed_paths(a, b)
    texts = [code.texts(of.code, paths) for of in (a, b)]
    lines: list[str] = []
    for path in paths:
        sides = [text.get(path) for text in texts]
        a_name, b_name = (
            "(none)" if side is None else f"{run}/{path}"
            for run, side in zip("AB", sides, strict=True)
        )
        a_lines, b_lines = ((side or "").splitlines() for side in sides)
        lines += difflib.unified_diff(a_lines, b_lines, a_name, b_name, lineterm="")
    if lines:
        yield "\nWhat differs in the files that the runs imported"
        yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"... ({len(lines) - _MOST_LINES:,} more lines)"
    for side, of in (("A", a), ("B", b)):
        if of.code.archive is None:
            yield f"note: run {side} keeps no code ({code.ARCHIVE})"
