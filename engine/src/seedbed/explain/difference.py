"""Where two traces of one step diverge: the first event with a different outcome, and
why."""

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

from seedbed.explain.trace import AFTER, AUGMENTATION, BEFORE, LOADING, ORDER, Event


@dataclass(frozen=True)
class Finding:
    """The event from which two traces of a step diverge."""

    event: Event  # as in B, or as in A if only A has it
    # `file:line` by side that runs it, "A" or "B"; "" if not in user code
    lines: dict[str, str]
    reason: str  # how it differs


def first_difference(a: Sequence[Event], b: Sequence[Event]) -> Finding | None:
    """Return where two traces diverge; None if every event has the same outcome.

    Events are aligned by operation and place, so that an operation that only one side
    runs does not make all later ones differ. It is blamed if its outputs led to the
    inputs of the first event that differs.
    """
    keys_a, keys_b = (
        # Without the index of a transform, which changes if one is inserted before it.
        [
            (e.operation, e.place.module.split("[")[0], e.place.phase, len(e.inputs))
            for e in side
        ]
        for side in (a, b)
    )
    pieces: Sequence[tuple[str, int, int, int, int]] = [("equal", 0, len(a), 0, len(b))]
    if keys_a != keys_b:
        pieces = SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_opcodes()
    only_a = list[Event]()
    only_b = list[Event]()
    for tag, from_a, to_a, from_b, to_b in pieces:
        if tag != "equal":
            only_a += a[from_a:to_a]
            only_b += b[from_b:to_b]
            continue
        for x, y in zip(a[from_a:to_a], b[from_b:to_b], strict=True):
            finding = _blame(x, y, only_a, only_b) if x.outputs != y.outputs else None
            if finding is not None:
                return finding
    return None


def _blame(
    a: Event, b: Event, only_a: list[Event], only_b: list[Event]
) -> Finding | None:
    """Return the cause of an event's different outcome; None if a later event will show
    it.

    `only_a` and `only_b` are earlier events that only one side runs.
    """
    same = (a.inputs, a.arguments) == (b.inputs, b.arguments)
    finding = _on_one_side(a, b, only_a, only_b, same)
    if finding is not None:
        return finding
    reason = _reason(a, b, same)
    if reason is None:
        return None
    return Finding(b, {"A": a.place.line, "B": b.place.line}, reason)


def _on_one_side(
    a: Event, b: Event, only_a: list[Event], only_b: list[Event], same: bool
) -> Finding | None:
    """Return the event that only one side runs and that led to an event's different
    outcome, or None; `same` is whether its inputs and arguments are."""

    def involved(event: Event) -> set[int]:  # transforms may have made what was loaded
        return {*event.inputs, *(event.outputs if event.place.phase == LOADING else ())}

    for side, only, x, y in (("A", only_a, a, b), ("B", only_b, b, a)):
        source = _source(only, involved(x) - involved(y))
        # Outputs show neither all effects on the state nor that a draw advanced the
        # generator.
        draws = [event for event in only if event.draws] if same and a.draws else []
        hidden = only if a.place.phase in (BEFORE, AFTER) else draws
        source = source or next(iter(hidden), None)
        if source is not None:
            return Finding(source, {side: source.place.line}, f"runs in {side} only")
    return None


def _reason(a: Event, b: Event, same: bool) -> str | None:
    """Return how an event that both sides run differs; None if a later one will show
    it."""
    if a.arguments != b.arguments:
        arguments = zip_longest(a.arguments, b.arguments, fillvalue="nothing")
        in_a, in_b = next((x, y) for x, y in arguments if x != y)
        return f"is called with {in_a} in A, {in_b} in B"
    if a.place.phase == ORDER:
        return "differ by the seed, the batch size or the sampler"
    if same:
        return "gives different results for the same inputs"
    if a.place.phase == AUGMENTATION:
        return None  # its input was loaded differently: that event follows
    inputs = zip(a.inputs, b.inputs, b.names, strict=False)
    names = ", ".join(name for x, y, name in inputs if x != y and name) or "an input"
    return (
        f"{names} differs, but no PyTorch operation of the step produced the difference"
    )


def _source(events: list[Event], taken: set[int]) -> Event | None:
    """Return the earliest event that led to one of the hashes `taken`, or None.

    An event that only made a view is not returned, but traced back to its inputs.
    """
    source = None
    for event in reversed(events):
        if taken.intersection(event.outputs):
            source = source if event.is_view else event
            taken = taken.union(event.inputs)
    return source


def describe(finding: Finding, roots: Sequence[Path]) -> Iterator[str]:
    """Yield lines on where two traces diverge; paths of code are shown relative to
    `roots`."""
    place = finding.event.place
    module = f" in module {place.module}" if place.module else ""
    yield f"  {place.phase}: {finding.event.operation}{module}"
    yield f"    {finding.reason}"
    written: dict[tuple[str, str], str] = {}
    for side, line in finding.lines.items():
        file, _, number = line.rpartition(":")
        if file:
            text = linecache.getline(file, int(number)).strip()
            for root in roots:
                file = file.removeprefix(f"{root}/")
            written.setdefault((f"{file}:{number}", text), side)
    for (where, text), side in written.items():  # once if both have the same line
        yield f"    at {where} in {side}: {text}"
