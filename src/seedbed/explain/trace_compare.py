"""Where two traces of one step diverge: the first event with another outcome, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from seedbed.explain.replay import AFTER, BEFORE
from seedbed.explain.trace_data import AUGMENTATION, COLLATE, LOADING, ORDER
from seedbed.operations.trace import Event

_PHASES = {
    ORDER: "data order",
    LOADING: "sample loading",
    AUGMENTATION: "augmentation",
    COLLATE: "collate",
}


_MOST_SHAPES = 4


@dataclass(frozen=True)
class Finding:
    """The first event of two traces that did not give the same.

    Attributes:
        event: as A has it, or B if only B has it.
        phase: a phase of the data, or forward, backward, update; or before or after the step.
        reason: what is different about it.
    """

    event: Event
    phase: str
    reason: str


def first_difference(a: Sequence[Event], b: Sequence[Event]) -> Finding | None:
    """Return where two traces diverge; None if every event has the same outcome.

    Events are aligned by what they are and where they ran, so that an operation that only one
    side runs does not set off all those after it. It is blamed if what it made is what the first
    event that differs took.
    """
    only_a: list[Event] = []
    only_b: list[Event] = []
    for before, after in _aligned(a, b):
        if before is None or after is None:
            only_a += [before] if before else []
            only_b += [after] if after else []
        elif before.outputs != after.outputs:
            return _blame(before, after, only_a, only_b)
    return None


def _aligned(a: Sequence[Event], b: Sequence[Event]) -> Iterator[tuple[Event | None, Event | None]]:
    """Yield pairs of events, None for the side that lacks one."""
    keys_a, keys_b = ([_key(event) for event in side] for side in (a, b))
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


def _key(event: Event) -> tuple[str, str, str, int]:
    return event.operation, event.place.module, event.place.phase, len(event.numbers)


def _blame(a: Event, b: Event, only_a: list[Event], only_b: list[Event]) -> Finding:
    """Return what is different about the first aligned event with another outcome."""
    changed = [i for i, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=False)) if x != y]
    for side, events, taken in (("A", only_a, a), ("B", only_b, b)):
        first = _source(events, [taken.inputs[i] for i in changed])
        if first is not None:
            return Finding(first, phase(first), f"runs in {side} only")
    if a.place.phase in _STATE:
        for side, events in (("A", only_a), ("B", only_b)):
            if events:  # in a way that the outcomes of operations do not show
                return Finding(events[0], phase(events[0]), f"runs in {side} only")
        return Finding(a, phase(a), _STATE[a.place.phase])
    if len(a.inputs) != len(b.inputs):
        reason = f"takes {len(a.inputs)} tensors in A, {len(b.inputs)} in B"
        return Finding(b, phase(b), reason)
    if a.inputs == b.inputs:
        return Finding(b, phase(b), _same_inputs(a, b))
    if a.taken != b.taken:
        pairs = zip(a.taken, b.taken, strict=True)
        x, y = next((x, y) for x, y in pairs if x != y)
        return Finding(b, phase(b), f"takes {x} in A, {y} in B")
    names = [name for i in changed for name in [*a.names, ""][i : i + 1] if name]
    what = f"{', '.join(names)}: other bits" if names else "other bits"
    if a.place.phase in _PHASES:
        earlier = {AUGMENTATION: LOADING}.get(a.place.phase, a.place.phase)
        return Finding(b, _PHASES[earlier], f"gets {what} from the phase before it")
    return Finding(b, phase(b), f"gets {what}, which no operation made, and passes them on")


def _source(events: list[Event], taken: Sequence[int]) -> Event | None:
    """Return the first of the events that led to what was taken, None if none of them did.

    One that gave a view only made nothing, and is passed over.
    """
    found = None
    for event in reversed(events):
        if set(event.outputs) & set(taken):
            found = found if event.is_view else event
            taken = [*taken, *event.inputs]
    return found


_STATE = {
    BEFORE: "is not the same when the step begins",
    AFTER: "was changed by no operation of the step",
}


def phase(event: Event) -> str:
    """Return the phase of the data that an event belongs to, or its phase."""
    return _PHASES.get(event.place.phase, event.place.phase)


def _same_inputs(a: Event, b: Event) -> str:
    if a.numbers != b.numbers:
        pairs = zip(a.numbers, b.numbers, strict=False)
        x, y = next(((x, y) for x, y in pairs if x != y), (len(a.numbers), len(b.numbers)))
        return f"is called with {x} in A, {y} in B"
    return "gives other bits for the same inputs"


def describe(found: Finding) -> Iterator[str]:
    """Yield a few lines on where two traces diverge."""
    event = found.event
    module = f" in module {event.place.module}" if event.place.module else ""
    yield f"  {found.phase}: {event.operation}{module}"
    yield f"    {found.reason}"
    if event.place.line:
        yield f"    at {event.place.line}"
    if event.taken or event.given:
        yield f"    takes {_listed(event.taken)}"
        yield f"    gives {_listed(event.given)}"


def _listed(shapes: Sequence[str]) -> str:
    shown = "; ".join(shapes[:_MOST_SHAPES]) or "no tensor"
    return shown + (f"; ... ({len(shapes)} tensors)" if len(shapes) > _MOST_SHAPES else "")
