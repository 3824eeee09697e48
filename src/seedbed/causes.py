"""What can explain a difference: changes of configuration, environment and code, ranked."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from seedbed.compare import Difference, Record
from seedbed.errors import printable
from seedbed.rungs import CAUSAL_ORDER, RUNGS

_MOST_CHARACTERS = 44

# Where a run lies and when it ran changes no bit; what lies there is known by its digest.
_PLACES = {
    "date", "dir", "directory", "file", "finished", "folder", "home", "host", "hostname", "mirrors",
    "path", "paths", "pid", "pwd", "root", "seconds", "started", "time", "tmpdir", "user",
}  # fmt: skip
_LOOKS_LIKE_A_PLACE = re.compile(r"(/|~|\.\.?/|file:)")
# Whatever these are called, they are arguments: model.time_steps, model.drop_path.
_ARGUMENTS = ("model.", "optimizer.", "schedule.")


@dataclass(frozen=True)
class Change:
    """A setting, an environment entry or a source file that is not the same in two records.

    A key that a record lacks is None there.

    Attributes:
        same_data: both records hold the same digest of the training data.
    """

    kind: str  # configuration, environment or code
    key: str
    a: Any
    b: Any
    same_data: bool = False


def changes(a: Record, b: Record) -> list[Change]:
    """Return everything that differs in configuration, environment and code, by key."""
    sides = (
        ("configuration", a.config, b.config),
        ("environment", a.environment, b.environment),
        ("code", a.code, b.code),
    )
    digests = [
        {k: v for k, v in r.environment.items() if k.partition(".")[0] == "data_sha256"}
        for r in (a, b)
    ]
    same_data = digests[0] == digests[1] and any(digests[0].values())
    return [
        Change(kind, key, before.get(key), after.get(key), same_data)
        for kind, before, after in sides
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def rank(difference: Difference, found: Iterable[Change]) -> list[Change]:
    """Return the changes that can explain a difference, likeliest first.

    Where the ladder does not say on which rung the difference arose, the rungs above and below
    follow the one that was seen. Where data lies comes last: other folders can hold other data.
    """
    found = list(found)
    settings = {change.key for change in found if change.kind == "configuration"}
    keys = RUNGS[difference.rung].keys
    if not difference.located:
        keys += tuple(key for rung in CAUSAL_ORDER for key in RUNGS[rung].keys)
    if difference.equal_through is not None:  # weights that were equal once began equal
        keys = tuple(key for key in keys if key != "seeds.init")
    ranked = [
        (_is_place(change), place, change.key, change)
        for change in found
        if not _is_no_cause(change) and _asked_for(change) not in settings
        for place in [next((n for n, key in enumerate(keys) if _fits(change, key)), None)]
        if place is not None
    ]
    return [change for *_, change in sorted(ranked, key=lambda item: item[:3])]


def describe(difference: Difference) -> Iterator[str]:
    """Say in a few lines where two records part, and what that means."""
    rung = RUNGS[difference.rung]
    yield f"step {difference.step}, {rung.name} ({rung.stage})"
    yield f"  A {difference.a or '(none)'}"
    yield f"  B {difference.b or '(none)'}"
    equal = [RUNGS[name].name for name in difference.equal_rungs]
    through = difference.equal_through
    yield (
        ("  equal before it: " + ("nothing" if through is None else f"steps up to {through}"))
        + (f"; at step {difference.step}: {', '.join(equal)}" if equal else "")
    )
    yield f"  look at: {rung.look}"
    if not difference.located:
        yield (
            "  the ladder was not compared at this step and the one before, so it may have arisen "
            "earlier and on another rung; fingerprint.every_steps=1 in both runs tells"
        )


def explain(difference: Difference, found: Iterable[Change]) -> Iterator[str]:
    """Say where two records part, what that means, and what can explain it, likeliest first."""
    yield from describe(difference)
    likely = rank(difference, found)
    if likely:
        yield "\nLikely causes, likeliest first"
        yield from table(likely)
    else:
        yield (
            "\nNothing recorded explains it: an operation that does not repeat (determinism=strict "
            "refuses those), or a draw from outside the streams"
        )


def table(found: Iterable[Change]) -> Iterator[str]:
    """Yield changes side by side, aligned."""
    cells = [("", "A", "B"), *((_short(c.key, 160), _short(c.a), _short(c.b)) for c in found)]
    widths = [max(len(row[column]) for row in cells) for column in (0, 1)]
    for key, a, b in cells:
        yield f"  {key:{widths[0]}}  {a:{widths[1]}}  {b}"


def _short(value: object, most: int = _MOST_CHARACTERS) -> str:
    text = "-" if value is None else " ".join(str(value).split())
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _fits(change: Change, pattern: str) -> bool:
    is_file = change.kind == "code" and change.key != "git.commit"
    return fnmatchcase(f"code:/{change.key}" if is_file else change.key, pattern)


def _asked_for(change: Change) -> str | None:
    """Return the setting that an entry of the environment only carries out."""
    kind, _, rest = change.key.partition(".")
    return {"flags": f"determinism.{rest}", "env": f"determinism.env.{rest}"}.get(kind)


def _is_no_cause(change: Change) -> bool:
    if change.kind == "code":  # what the training process never imports
        return change.key.startswith(("tests/", "scripts/", "docs/"))
    if change.key == "determinism.fingerprint_every_steps":
        return True
    # The digest is that of the training data.
    held_out = change.key.startswith(("data.validation", "data.test"))
    is_data = change.kind == "configuration" and change.key.startswith("data.")
    return _is_place(change) and (not is_data or (change.same_data and not held_out))


def _is_place(change: Change) -> bool:
    if change.kind == "code" or change.key.startswith(_ARGUMENTS):
        return False
    named = change.key.lower().rpartition(".")[2] in _PLACES
    return named or any(_LOOKS_LIKE_A_PLACE.match(str(value)) for value in (change.a, change.b))
