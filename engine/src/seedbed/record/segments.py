"""Segments of a chain, each from one of its rows to the next: which of them an audit
draws, and how likely it is to meet others."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from seedbed.record import code


def drawn(challenge: str, digest: str, count: int, sample: int) -> list[int]:
    """Return the numbers of the segments that a challenge draws, from 1, in order.

    They are the `sample` ones of `count` with the smallest SHA-256 of
    `CHALLENGE,DIGEST,NUMBER`; `digest` is that of the last row of the chain. So nobody
    knows them before the challenge, and everybody finds the same ones after it.
    """

    def place(number: int) -> str:
        return code.sha256(f"{challenge},{digest},{number}".encode())

    return sorted(sorted(range(1, count + 1), key=place)[:sample])


def probability(bad: int, count: int, sample: int) -> float:
    """Return with which probability `sample` segments of `count` include one of `bad`
    ones: 1 - C(count - bad, sample) / C(count, sample)."""
    missed = 1.0
    for number in range(bad):
        missed *= max(count - sample - number, 0) / (count - number)
    return 1 - missed


def likely(least: float, count: int, sample: int) -> int:
    """Return the smallest number of bad segments of which one is met with at least a
    probability."""
    numbers = range(1, count + 1)
    index = bisect_left(numbers, least, key=lambda n: probability(n, count, sample))
    return numbers[min(index, count - 1)]


def spans(
    steps: Sequence[int], numbers: Sequence[int], starts: Sequence[int]
) -> list[tuple[int, int]]:
    """Return what to replay for some segments, as (step before the first, last step).

    `steps` are those of all rows of the chain, from 0; segment n leads from
    `steps[n - 1]` to `steps[n]`. Each begins at the last of `starts` at or before it,
    0 being one. What meets or overlaps is replayed at once.
    """
    ranges = list[tuple[int, int]]()
    ordered = sorted({0, *starts})
    for number in numbers:
        start = ordered[bisect_right(ordered, steps[number - 1]) - 1]
        if ranges and start <= ranges[-1][1]:
            start, _ = ranges.pop()
        ranges.append((start, steps[number]))
    return ranges
