"""Where two traces of one step diverge: the first event with another outcome, and why."""

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from seedbed.explain.replay import AFTER, BEFORE
from seedbed.explain.trace import Event
from seedbed.explain.trace_data import AUGMENTATION, DATA_PHASES, LOADING

_STATE = {
    BEFORE: "differs when the step begins",
    AFTER: "differs after the step, but no PyTorch operation of the step changed it",
}


@dataclass(frozen=True)
class Finding:
    """The first event of two traces that did not give the same.

    Attributes:
        a, b: as A and B have it; None in a side that does not run it.
        phase: a phase of the data, or forward, backward, update; or before or after
            the step.
        reason: what is different about it.
    """

    a: Event | None
    b: Event | None
    phase: str
    reason: str

    @property
    def event(self) -> Event:
        """Return the event as B has it, or A if only A has it."""
        event = self.b or self.a
        assert event is not None
        return event


def first_difference(a: Sequence[Event], b: Sequence[Event]) -> Finding | None:
    """Return where two traces diverge; None if every event has the same outcome.

    Events are aligned by what they are and where they ran, so that an operation that only one side
    runs does not set off all those after it. It is blamed if what it made is what the first event
    that differs took.
    """
    only: dict[str, list[Event]] = {"A": [], "B": []}
    for before, after in _aligned(a, b):
        if before is None or after is None:
            only["A"] += [before] if before else []
            only["B"] += [after] if after else []
        elif before.outputs != after.outputs:
            return _blame(before, after, only)
    return None


def _aligned(a: Sequence[Event], b: Sequence[Event]) -> Iterator[tuple[Event | None, Event | None]]:
    """Yield pairs of events, None for the side that lacks one."""
    keys_a, keys_b = (
        [(e.operation, e.place.module, e.place.phase, len(e.numbers)) for e in side]
        for side in (a, b)
    )
    if keys_a == keys_b:
        yield from zip(a, b, strict=True)
        return
    matcher = SequenceMatcher(None, keys_a, keys_b, autojunk=False)
    for kind, from_a, to_a, from_b, to_b in matcher.get_opcodes():
        if kind == "equal":
            yield from zip(a[from_a:to_a], b[from_b:to_b], strict=True)
        else:
            yield from ((event, None) for event in a[from_a:to_a])
            yield from ((None, event) for event in b[from_b:to_b])


def _blame(a: Event, b: Event, only: dict[str, list[Event]]) -> Finding:
    """Return what is different about the first aligned event with another outcome.

    Args:
        only: the events before it that run in one side only.
    """

    def alone(side: str, event: Event) -> Finding:
        a, b = (event, None) if side == "A" else (None, event)
        return Finding(a, b, event.place.phase, f"runs in {side} only")

    phase = a.place.phase
    changed = [i for i, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=False)) if x != y]
    for side, taken in (("A", a), ("B", b)):
        source = _source(only[side], [taken.inputs[i] for i in changed])
        if source is not None:
            return alone(side, source)
    # Those whose effect the outcomes of operations do not show: on the state, or a draw that
    # moved the generator.
    moved = a.draws and a.inputs == b.inputs and a.numbers == b.numbers
    for side, events in only.items():
        for event in events:
            if phase in _STATE or (moved and event.draws and event.place.phase == phase):
                return alone(side, event)
    if phase in _STATE:
        reason = _STATE[phase]
    elif len(a.inputs) != len(b.inputs):
        reason = f"gets {len(a.inputs)} tensors in A, {len(b.inputs)} in B"
    elif a.taken != b.taken:
        pairs = zip(a.taken, b.taken, strict=True)
        x, y = next((x, y) for x, y in pairs if x != y)
        reason = f"gets {x} in A, {y} in B"
    elif a.numbers != b.numbers and not changed:
        x, y = next((x, y) for x, y in zip(a.numbers, b.numbers, strict=True) if x != y)
        reason = f"is called with {x} in A, {y} in B"
    elif not changed:
        reason = "gives different results for the same inputs"
    else:
        names = ", ".join(name for i in changed for name in a.names[i : i + 1] if name)
        reason = f"input {names} differs" if names else "an input differs"
        if phase in DATA_PHASES:
            phase = LOADING if phase == AUGMENTATION else phase
            reason += ": it was loaded differently"
        else:
            reason += ", but no PyTorch operation produced the difference"
    return Finding(a, b, phase, reason)


def _source(events: list[Event], taken: Sequence[int]) -> Event | None:
    """Return the first of the events that led to what was taken, None if none of them did.

    One that gave a view only made nothing, and is passed over.
    """
    source = None
    for event in reversed(events):
        if set(event.outputs) & set(taken):
            source = source if event.is_view else event
            taken = [*taken, *event.inputs]
    return source


def describe(finding: Finding, roots: Sequence[Path]) -> Iterator[str]:
    """Yield a few lines on where two traces diverge, and what is written there.

    Args:
        roots: the folders of the code of A and of B.
    """
    event = finding.event
    module = f" in module {event.place.module}" if event.place.module else ""
    yield f"  {finding.phase}: {event.operation}{module}"
    yield f"    {finding.reason}"
    seen = set()
    for name, side, root in zip("AB", (finding.a, finding.b), roots, strict=True):
        file, _, number = (side.place.line if side else "").rpartition(":")
        if not file:
            continue
        text = linecache.getline(file, int(number)).strip()
        where = f"{file.removeprefix(f'{root}/')}:{number}"
        if (where, text) not in seen:  # otherwise the same line of both
            yield f"    at {where} in {name}" + (f": {text}" if text else "")
        seen.add((where, text))
