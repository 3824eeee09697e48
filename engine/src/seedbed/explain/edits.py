"""Edits between two versions of a file: which lines differ, and which are near a place in it."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

FAR = 6  # the nearness of an edit in another file, of a name that a spot's file does not mention
# How near an edit of some lines is to a spot in them, and what the lines mention: one farther.
Block = tuple[int, range, frozenset[str]]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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

    An edit of the spot's own statement is the nearest, then one of its function, or of a name that
    its function mentions; then likewise of its class and of its file, wherever the name is defined.

    Args:
        texts: in each version, the files of the edits and of the spots, by path.
    """
    trees = [{path: _tree(content) for path, content in text.items()} for text in texts]
    names = [
        frozenset().union(*(_defined(trees[side].get(e.path), _lines(e, side)) for side in (0, 1)))
        for e in edits
    ]

    blocks = [_around(trees[spot.side].get(spot.path), spot.line) for spot in spots]

    def order(number: int) -> tuple[int, int]:
        near = [
            (_nearness(edits[number], names[number], spot, around), place)
            for place, (spot, around) in enumerate(zip(spots, blocks, strict=True))
        ]
        return min(near, default=(FAR, 0))

    return [edits[number] for number in sorted(range(len(edits)), key=order)]


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


def _lines(edit: Edit, side: int) -> range:
    """Return the lines that an edit touches on a side; those around it where it has none."""
    lines = (edit.a, edit.b)[side]
    return lines or range(lines.start - 1, lines.start + 1)


def _nearness(edit: Edit, names: frozenset[str], spot: Spot, blocks: Sequence[Block]) -> int:
    """Return 0 for an edit of a spot's statement, and up to FAR."""
    found = [FAR - 1 if edit.path == spot.path else FAR]
    for number, lines, mentioned in blocks:
        if edit.path == spot.path and set(lines) & set(_lines(edit, spot.side)):
            found.append(number)
        elif names & mentioned:
            found.append(number + 1)
    return min(found)


def _around(tree: ast.Module | None, line: int) -> list[Block]:
    """Return the statement, functions, classes and module that a line is in."""
    nothing: frozenset[str] = frozenset()
    found = [] if tree is None else [(FAR - 3, range(0), _mentioned(tree))]
    for node in () if tree is None else ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        whole = _span(node)
        body = getattr(node, "body", None)
        head = range(whole.start, body[0].lineno) if body else whole
        if line in head:
            found.append((0, head, nothing))
        if line in whole and isinstance(node, _FUNCTIONS):
            found.append((1, whole, _mentioned(node)))
        if line in whole and isinstance(node, ast.ClassDef):
            found.append((2, whole, _mentioned(node)))
    return found


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _defined(node: ast.AST | None, lines: range) -> frozenset[str]:
    """Return the names of a module that some lines define: functions, classes and variables."""
    found: set[str] = set()
    for each in getattr(node, "body", ()):
        if not set(_span(each)) & set(lines):
            continue
        if isinstance(each, (*_FUNCTIONS, ast.ClassDef)):
            found.add(each.name)
        elif isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        if not isinstance(each, _FUNCTIONS):  # what is in a function is nobody else's
            found |= _defined(each, lines)
    return frozenset(name for name in found if not name.startswith("__"))


def _mentioned(node: ast.AST) -> frozenset[str]:
    """Return the names that code uses or imports, without the variables of its functions."""
    if isinstance(node, ast.Name):
        return frozenset([node.id] if isinstance(node.ctx, ast.Load) else [])
    found = frozenset[str]().union(*map(_mentioned, ast.iter_child_nodes(node)))
    if isinstance(node, ast.Attribute | ast.alias):
        found |= {node.attr if isinstance(node, ast.Attribute) else node.name}
    if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
        inside = list(ast.walk(node))
        found -= {each.arg for each in inside if isinstance(each, ast.arg)}
        stored = (n for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        found -= {each.id for each in stored}
    return found
