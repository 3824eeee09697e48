"""What a finding leads to: lines in both versions of the code, edits near them, and draws."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

from seedbed.explain.construction import BUILD
from seedbed.explain.edits import Edit, Spot, counterpart, find, rank
from seedbed.explain.replay import DATA, METHOD, OPTIMIZER, TASK, Trace
from seedbed.explain.trace_compare import Finding
from seedbed.explain.trace_data import AUGMENTATION, COLLATE, DATA_PHASES, LOADING, ORDER

_NAMES = ("A", "B")
_MOST_EDITS = 5
# Of what is drawn in a phase, likeliest first.
_STREAMS: dict[str, tuple[str, ...]] = {
    ORDER: ("order", "split"),
    LOADING: ("augment", "data", "split"),
    AUGMENTATION: ("augment",),
    COLLATE: ("augment",),
    BUILD: ("init",),
    "forward": ("dropout",),
    "update": ("dropout",),
}


def describe_lines(found: Finding, roots: Sequence[Path]) -> Iterator[str]:
    """Yield where a finding's operation is in the code of A and of B."""
    places = [
        _place(event.place.line, root) if event else None
        for event, root in zip((found.a, found.b), roots, strict=True)
    ]
    known = next((place for place in places if place), None)
    if known is None:
        return
    if None in places and found.event.place.line:
        there = places.index(None)
        places[there] = _in_other_version(known, roots[1 - there], roots[there])
    if places[0] == places[1] and roots[0] == roots[1]:
        yield f"    at {_named(known)}"
        return
    yield "    at " + ", ".join(
        f"{_named(place)} in {name}"
        for name, place in zip(_NAMES, places, strict=True)
        if place is not None
    )
    for name, place, root in zip(_NAMES, places, roots, strict=True):
        text = _line(place, root) if place else ""
        if text:
            yield f"      {name}: {text}"


def describe_draw(found: Finding, settings: Sequence[DictConfig]) -> Iterator[str]:
    """Yield from which seed the numbers come that are not the same, if it is not the same."""
    where = found.event.place.phase
    if not (found.event.draws or where in DATA_PHASES):
        return
    for stream in _STREAMS.get(where, ()):
        a, b = (each.seeds[stream] for each in settings)
        if a != b:
            follows = [each.seeds[stream] for each in settings] == [each.seed for each in settings]
            yield f"    drawn from seeds.{stream}, which is {a} in A and {b} in B" + (
                ", as seed is" if follows else ""
            )
            return


def edits_near(
    found: Finding,
    traces: Sequence[Trace],
    roots: Sequence[Path],
    texts: Sequence[Mapping[str, str]],
) -> list[Edit]:
    """Return the edits between two versions of the code, nearest to a finding first.

    Near is first the operation's own line, then the lines that made its module, its data set or its
    optimizer.

    Args:
        texts: the files that differ, by path, in each version.
    """
    paths = sorted(texts[0].keys() | texts[1].keys())
    found_edits = [
        edit
        for path in paths
        for edit in find(path, texts[0].get(path, ""), texts[1].get(path, ""))
    ]
    spots = list(_spots(found, traces, roots))
    whole = [
        {spot.path: _text(root / spot.path) for spot in spots} | dict(text)
        for root, text in zip(roots, texts, strict=True)
    ]
    return rank(found_edits, whole, spots)


def describe_edits(edits: Sequence[Edit], texts: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield edits with their lines in both versions."""
    for edit in edits[:_MOST_EDITS]:
        lines = (edit.a, edit.b)
        yield "  " + ", ".join(
            f"{edit.path}:{max(1, each.start)} in {name}"
            for name, each in zip(_NAMES, lines, strict=True)
        )
        for sign, each, text in zip("-+", lines, texts, strict=True):
            held = text.get(edit.path, "").splitlines()
            yield from (f"    {sign} {held[number - 1].strip()}" for number in each[:3])
            if len(each) > 3:
                yield f"    {sign} ..."
    if len(edits) > _MOST_EDITS:
        yield f"  ... and {len(edits) - _MOST_EDITS} more"


def _spots(found: Finding, traces: Sequence[Trace], roots: Sequence[Path]) -> Iterator[Spot]:
    """Yield the lines that a finding leads to, nearest first."""
    events = (found.a, found.b)
    for side, event in enumerate(events):
        yield from _spot(side, event.place.line if event else "", roots)
    for name in _makers(found):
        for side, trace in enumerate(traces):
            for line in trace.made.get(name, ()):
                yield from _spot(side, line, roots)


def _makers(found: Finding) -> Iterator[str]:
    """Yield the names in `Trace.made` of what a finding's operation is of, innermost first."""
    place = found.event.place
    if place.phase in DATA_PHASES:
        yield DATA
        return
    if place.phase == "update":
        yield OPTIMIZER
    module = place.module
    while module:
        yield module
        module = module.rpartition(".")[0]
    yield from ("", METHOD, TASK, OPTIMIZER)


def _spot(side: int, line: str, roots: Sequence[Path]) -> Iterator[Spot]:
    place = _place(line, roots[side])
    if place is not None:
        yield Spot(side, *place)


def _place(line: str, root: Path) -> tuple[str, int] | None:
    """Split `file:line`; the file is named from the root, if it lies there."""
    file, _, number = line.rpartition(":")
    return (file.removeprefix(f"{root}/"), int(number)) if file and number.isdecimal() else None


def _in_other_version(place: tuple[str, int], root: Path, other: Path) -> tuple[str, int] | None:
    path, line = place
    if Path(path).is_absolute():
        return None
    here, there = _text(root / path), _text(other / path)
    return (path, counterpart(there, here, line)) if there else None


def _line(place: tuple[str, int], root: Path) -> str:
    lines = _text(root / place[0]).splitlines()
    return lines[place[1] - 1].strip() if 0 < place[1] <= len(lines) else ""


@cache
def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _named(place: tuple[str, int]) -> str:
    return f"{place[0]}:{place[1]}"
