"""What a finding leads to: its line in the code of both sides, and the seed of its draw."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig

from seedbed.explain.construction import BUILD
from seedbed.explain.trace_compare import Finding
from seedbed.explain.trace_data import AUGMENTATION, COLLATE, DATA_PHASES, LOADING, ORDER

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
