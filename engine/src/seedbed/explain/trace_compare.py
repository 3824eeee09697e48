"""Where two traces of one step diverge: the first event with another outcome, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

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
            return _alone(side, first)
    if a.place.phase in _STATE:
        for side, events in (("A", only_a), ("B", only_b)):
            if events:  # in a way that the outcomes of operations do not show
                return _alone(side, events[0])
        return Finding(a, b, phase(a), _STATE[a.place.phase])
    if len(a.inputs) != len(b.inputs):
        reason = f"gets {len(a.inputs)} tensors in A, {len(b.inputs)} in B"
        return Finding(a, b, phase(b), reason)
    if a.taken != b.taken:
        pairs = zip(a.taken, b.taken, strict=True)
        x, y = next((x, y) for x, y in pairs if x != y)
        return Finding(a, b, phase(b), f"gets {x} in A, {y} in B")
    if a.inputs == b.inputs:
        if a.draws and a.numbers == b.numbers:  # maybe a draw before it, which moved the generator
            for side, events in (("A", only_a), ("B", only_b)):
                for event in events:
                    if event.draws and event.place.phase == a.place.phase:
                        return _alone(side, event)
        return Finding(a, b, phase(b), _same_inputs(a, b))
    names = [name for i in changed for name in [*a.names, ""][i : i + 1] if name]
    what = f"input {', '.join(names)}" if names else "an input"
    if a.place.phase in _PHASES:
        earlier = {AUGMENTATION: LOADING}.get(a.place.phase, a.place.phase)
        return Finding(a, b, _PHASES[earlier], f"{what} differs: it was loaded differently")
    reason = f"{what} differs, but no PyTorch operation produced the difference"
    return Finding(a, b, phase(b), reason)


def _alone(side: str, event: Event) -> Finding:
    """Return that an event runs in one side only."""
    a, b = (event, None) if side == "A" else (None, event)
    return Finding(a, b, phase(event), f"runs in {side} only")


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
    BEFORE: "differs when the step begins",
    AFTER: "differs after the step, but no PyTorch operation of the step changed it",
}


def phase(event: Event) -> str:
    """Return the phase of the data that an event belongs to, or its phase."""
    return _PHASES.get(event.place.phase, event.place.phase)


def _same_inputs(a: Event, b: Event) -> str:
    if a.numbers != b.numbers:
        pairs = zip(a.numbers, b.numbers, strict=False)
        x, y = next(((x, y) for x, y in pairs if x != y), (len(a.numbers), len(b.numbers)))
        return f"is called with {x} in A, {y} in B"
    return "gives different results for the same inputs"


def describe(found: Finding) -> Iterator[str]:
    """Yield a few lines on where two traces diverge."""
    event = found.event
    module = f" in module {event.place.module}" if event.place.module else ""
    yield f"  {found.phase}: {event.operation}{module}"
    yield f"    {found.reason}"
    if event.taken or event.given:
        yield f"    inputs {_listed(event.taken)}"
        yield f"    outputs {_listed(event.given)}"


def _listed(shapes: Sequence[str]) -> str:
    shown = "; ".join(shapes[:_MOST_SHAPES]) or "no tensor"
    return shown + (f"; ... ({len(shapes)} tensors)" if len(shapes) > _MOST_SHAPES else "")


def describe_lines(found: Finding, roots: Sequence[Path]) -> Iterator[str]:
    """Yield where a finding's operation is in the code of A and of B, and what is written there."""
    seen = set()
    for name, event, root in zip("AB", (found.a, found.b), roots, strict=True):
        file, _, number = (event.place.line if event else "").rpartition(":")
        if not (file and number.isdecimal()):
            continue
        place = f"{file.removeprefix(f'{root}/')}:{number}"
        text = _line(Path(file), int(number))
        if (place, text) not in seen:  # otherwise the same line of both
            yield f"    at {place} in {name}" + (f": {text}" if text else "")
        seen.add((place, text))


def _line(file: Path, number: int) -> str:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""
