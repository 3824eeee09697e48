"""Edits between two versions of a file: which lines differ, and which are near a place in it."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

FAR = 4  # the nearness of an edit in another file


@dataclass(frozen=True)
class Edit:
    """Lines of a file that differ between A and B, numbered from 1; empty where a side has none."""

    path: str
    a: range
    b: range


@dataclass(frozen=True)
class Spot:
    """A line in the version of a side: 0 for A, 1 for B."""

    side: int
    path: str
    line: int


def find(path: str, a: str, b: str) -> list[Edit]:
    """Return the edits of a file that change what Python runs: no comments, no docstrings."""
    before, after = a.splitlines(), b.splitlines()
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    found = []
    for kind, from_a, to_a, from_b, to_b in matcher.get_opcodes():
        alone = [*before[:from_a], *after[from_b:to_b], *before[to_a:]]
        if kind != "equal" and not _runs_the_same(path, before, alone):
            found.append(Edit(path, range(from_a + 1, to_a + 1), range(from_b + 1, to_b + 1)))
    return found


def rank(
    edits: Sequence[Edit], texts: Sequence[Mapping[str, str]], spots: Sequence[Spot]
) -> list[Edit]:
    """Return edits, those first that are nearest to one of some spots, and to an earlier one.

    An edit of the spot's own statement is the nearest, then one of its function, of its class, of
    its file.
    """
    trees = [{spot.path: _tree(text.get(spot.path)) for spot in spots} for text in texts]

    def order(edit: Edit) -> tuple[int, int]:
        near = [
            (_nearness(edit, spot, trees[spot.side][spot.path]), number)
            for number, spot in enumerate(spots)
        ]
        return min(near, default=(FAR, 0))

    return sorted(edits, key=order)


def counterpart(a: str, b: str, line: int) -> int:
    """Return the line of `a` that stands where a line of `b` does; the one before what it lacks."""
    matcher = SequenceMatcher(None, a.splitlines(), b.splitlines(), autojunk=False)
    for _, from_a, to_a, from_b, to_b in matcher.get_opcodes():
        if from_b < line <= to_b:
            return max(1, min(from_a + line - from_b, to_a))
    return max(1, len(a.splitlines()))


def _runs_the_same(path: str, before: Sequence[str], after: Sequence[str]) -> bool:
    if not path.endswith(".py"):
        return False
    trees = [_tree("\n".join(lines)) for lines in (before, after)]
    return None not in trees and _dump(trees[0]) == _dump(trees[1])


def _tree(text: str | None) -> ast.Module | None:
    try:
        return ast.parse(text or "")
    except (SyntaxError, ValueError, RecursionError):
        return None


def _dump(tree: Any) -> str:
    """Return a module as text, without its strings that stand alone, such as docstrings."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, [each for each in block if not _is_text(each)])
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _nearness(edit: Edit, spot: Spot, tree: ast.Module | None) -> int:
    """Return 0 for an edit of a spot's statement, then 1 to 3, and FAR in another file."""
    if edit.path != spot.path:
        return FAR
    lines = (edit.a, edit.b)[spot.side]
    touched = lines or range(lines.start - 1, lines.start + 1)  # between two lines
    blocks = [] if tree is None else _around(tree, spot.line)
    near = [number for number, block in blocks if set(block) & set(touched)]
    return min(near, default=FAR - 1)


def _around(tree: ast.Module, line: int) -> list[tuple[int, range]]:
    """Return the lines of the statement, functions and classes that a line is in."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        whole = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        body = getattr(node, "body", None)
        head = range(whole.start, body[0].lineno) if body else whole
        if line in head:
            found.append((0, head))
        if line in whole and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append((1, whole))
        if line in whole and isinstance(node, ast.ClassDef):
            found.append((2, whole))
    return found
