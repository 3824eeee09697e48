"""A claim as text: its commands, what is missing, its verdict."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seedbed.claims.check import unverified
from seedbed.claims.runs import ENDED
from seedbed.sweeps import show

_MOST_RUNS = 20
Report = Mapping[str, Any]


def planned(report: Report) -> Iterator[str]:
    """Yield what a claim has fixed, and the commands of its variants."""
    yield from _head(report)
    yield from _commands(report["commands"])


def status(report: Report) -> Iterator[str]:
    """Yield which runs of a claim are there, and what would decide it."""
    yield from _head(report)
    yield from _lines(report)
    rows = report["runs"]
    for name in dict.fromkeys(row["variant"] for row in rows):
        states = Counter(row["state"] for row in rows if row["variant"] == name)
        counts = [f"{count} {state}" for state, count in sorted(states.items())]
        yield f"{name}: {', '.join(counts)} of {sum(states.values())} seeds"
    for row in rows:
        if row["state"] not in ("finished", "missing"):
            yield "  {run}: {state} {reason}".format(**row).rstrip()
    for name, needed in report["seeds_to_decide"].items():
        if needed is not None:
            yield (
                f"{name}: if the true difference is the present one, {needed} seeds"
                f" decide; {len(report['seeds'])} are planned"
            )
    yield from _commands(report["commands"])


def verdict(report: Report) -> Iterator[str]:
    """Yield the verdict of a claim, with what it rests on."""
    yield from _head(report)
    yield from _lines(report)
    for compared in report["comparisons"]:
        needed = compared["seeds_to_decide"]
        yield from show.comparison({**compared, "seeds_to_decide": None})
        if needed is not None:
            yield (
                "  if this is the true difference, a new claim of"
                f" {needed} seeds would decide"
            )
        if compared["is_negligible"]:
            yield "  no difference that matters"
    if rows := unverified(report):
        yield f"not verified: {len(rows)} of {_ended(report)} runs"
        yield from (f"  {row['verify']}" for row in rows[:_MOST_RUNS])
        if len(rows) > _MOST_RUNS:
            yield f"  and {len(rows) - _MOST_RUNS} more (--json)"
    yield _end(report)


def _end(report: Report) -> str:
    if report["refused"]:
        return "no verdict: records contradict the claim, or are missing"
    if report["holds"]:
        return "the claim holds"
    is_worse = any(each["verdict"] == "worse" for each in report["comparisons"])
    return "the claim does not hold" if is_worse else "the claim is undecided"


def _ended(report: Report) -> int:
    return sum(row["state"] in ENDED for row in report["runs"])


def _head(report: Report) -> Iterator[str]:
    if report["title"]:
        yield f"claim: {report['title']}"
    yield f"digest: {report['digest']}"
    yield (
        "rule: {direction} {metric}, {rule}, smallest difference"
        " {smallest_difference:g}, alpha {alpha:g}".format(**report)
    )


def _lines(report: Report) -> Iterator[str]:
    yield from (f"refused: {line}" for line in report["refused"])
    yield from (f"note: {line}" for line in report["notes"])


def _commands(commands: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, lines in commands.items():
        yield f"train {name}:"
        yield from (f"  {line}" for line in lines)
