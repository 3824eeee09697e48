"""Audits of a run by segments: which ones a challenge draws, and what they prove."""

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.compare import Record, stated
from seedbed.compare.verify import Range
from seedbed.errors import InputError, some
from seedbed.record import chain, segments

_MOST_CHARACTERS = 1000
_MOST_NUMBERS = 20  # of segments that are named in a line
_LIKELY = 0.95


@dataclass(frozen=True)
class Audit:
    """Segments of a run that are replayed, drawn by a challenge."""

    challenge: str
    is_own: bool  # whether it was drawn here
    digest: str  # of the last row of the chain
    steps: Sequence[int]  # of all rows of the chain, from 0
    drawn: Sequence[int]  # numbers of segments, from 1
    ranges: Sequence[Range]  # what is replayed for those drawn, and the first
    is_finished: bool  # whether the run has results

    @property
    def count(self) -> int:
        """The number of segments of the run."""
        return len(self.steps) - 1

    @cached_property
    def replayed(self) -> list[int]:
        """The numbers of the segments that are replayed, the first one always."""
        bounds = [
            (
                bisect_left(self.steps, replayed_range.start),
                bisect_left(self.steps, replayed_range.last),
            )
            for replayed_range in self.ranges
        ]
        return [n for first, last in bounds for n in range(first + 1, last + 1)]


def of(run: Path, recorded: Record, sample: int, challenge: str | None) -> Audit:
    """Draw segments of a run for a challenge, or for a new one.

    The draw depends on the chain alone, not on which checkpoints are there: a segment
    without its own is replayed from the last one before it. Raises InputError for a run
    without kept checkpoints.
    """
    is_own = challenge is None
    challenge = os.urandom(16).hex() if challenge is None else challenge
    if not 0 < len(challenge) <= _MOST_CHARACTERS or not challenge.isprintable():
        raise InputError(
            f"--challenge: expected 1 to {_MOST_CHARACTERS:,} printable characters, got"
            f" {challenge[:40]!r}"
        )
    rows = chain.checkpoints(run)
    kept = [step for step in record.kept_checkpoints(run) if step in rows]
    if len(rows) < 2 or not kept:
        missing = "a chain of checkpoints" if len(rows) < 2 else "their files"
        raise InputError(
            f"--sample: expected a run with kept checkpoints, got {recorded.name}"
            f" without {missing}; train with trainer.keep_checkpoint_every_steps=N, or"
            " replay all of it: without --sample"
        )
    steps = (0, *rows)
    digest = rows[steps[-1]]["digest"]
    count = len(rows)
    drawn = segments.drawn(challenge, digest, count, sample)
    is_finished = recorded.summary.get("status") == "finished"
    ranges = [
        Range(start, last, ends=is_finished and last == steps[-1])
        for start, last in segments.spans(steps, sorted({1, *drawn}), kept)
    ]
    return Audit(challenge, is_own, digest, steps, drawn, ranges, is_finished)


def contradictions(run: Path, recorded: Record, audit: Audit) -> list[str]:
    """Return a line for each thing in a record that makes any replay needless: its plan
    is another one, its chain does not continue, or its results are not in its
    tables."""
    summary = recorded.summary
    lines = [*chain.contradictions(run, recorded.origin, summary)]
    end = max(stated.last_step(recorded), int(summary.get("steps") or 0))
    if audit.is_finished and audit.steps[-1] != end:
        lines.append(
            f"{chain.FILE}: ends with step {audit.steps[-1]}, the run with step {end}"
        )
    for step in record.new_best_steps(summary):
        if step > end:
            lines.append(
                f"summary.json: resumes: best_starts_anew: expected at most {end}, the"
                f" last step, got {step}"
            )
    return [*lines, *stated.contradictions(summary, recorded.metrics)]


def not_proven(run: Path, recorded: Record, audit: Audit) -> Iterator[str]:
    """Yield what an audit leaves open, even if all that it replays is the same."""
    numbers = {*range(1, audit.count + 1)} - {*audit.replayed}
    if numbers:
        yield f"{len(numbers)} segments that were not replayed"
    end = max(stated.last_step(recorded), int(recorded.summary.get("steps") or 0))
    if audit.steps[-1] < end:
        first = audit.steps[-1] + 1
        which = f"steps {first} to {end} are" if first < end else f"step {first} is"
        yield f"{which} behind the last row of {chain.FILE}"
    if audit.is_finished and not audit.ranges[-1].ends:
        yield (
            "results on the test set (scripts/evaluate.py computes them from the saved"
            " weights; the last segment includes them)"
        )
    unchanged = {**recorded.summary, "resumes": []}
    contradicted = [*chain.contradictions(run, recorded.origin, recorded.summary)]
    for line in chain.contradictions(run, recorded.origin, unchanged):
        if line not in contradicted:
            yield f"{line}, which a resume is said to have changed"
    for step in record.new_best_steps(recorded.summary)[-1:]:
        yield (
            f"optimizer states before step {step} without their files: a resume is said"
            " to have chosen the best weights anew there"
        )
    yield "data, seeds or code that were chosen to lead to a checkpoint"
    yield f"what was tried before {chain.PLAN}"


def describe(audit: Audit, reproduced: bool) -> Iterator[str]:
    """Yield lines on what was drawn, and on what that proves if it was reproduced."""
    count = audit.count
    sample = len(audit.drawn)
    where = " (drawn here, so it convinces you alone)" if audit.is_own else ""
    yield (
        f"challenge: {audit.challenge}{where} draws {_named(audit.drawn)} of {count:,};"
        " the first one is always replayed"
    )
    yield (
        f"{chain.FILE}: {count + 1:,} rows from {chain.PLAN} on, each of which follows"
        f" from the one before; the last digest is {audit.digest}"
    )
    if not reproduced:
        return
    if len(audit.replayed) == count:
        yield "proven: all segments follow from the plan"
        return
    shown = ", ".join(
        f"{segments.probability(bad, count, sample):.1%} for {bad:,}"
        for bad in _counts(count, sample)
    )
    yield (
        f"proven: of {count:,} segments, one of m that do not follow from the one"
        f" before is met with probability 1 - C({count} - m, {sample}) /"
        f" C({count}, {sample}) or more ({shown}), and the first always"
    )


def as_dict(audit: Audit) -> dict[str, Any]:
    """Return an audit as `--json` prints it."""
    count = audit.count
    sample = len(audit.drawn)
    return {
        "challenge": audit.challenge,
        "chain_digest": audit.digest,
        "segments": count,
        "drawn": [*audit.drawn],
        "replayed": [
            {"number": n, "steps": [audit.steps[n - 1] + 1, audit.steps[n]]}
            for n in audit.replayed
        ],
        "met_with_probability": {
            str(bad): segments.probability(bad, count, sample)
            for bad in _counts(count, sample)
        },
    }


def segment_at(audit: Audit, step: int) -> str:
    """Return the name of the segment with a step."""
    number = sum(end < step for end in audit.steps)
    first, last = audit.steps[number - 1 : number + 1]
    return f"segment {number} (steps {first + 1:,} to {last:,})"


def _counts(count: int, sample: int) -> list[int]:
    """Return numbers of bad segments whose probabilities are worth knowing: few, and
    the first that are likely to be met."""
    likely = segments.likely(_LIKELY, count, sample)
    return sorted({bad for bad in (1, 2, 3, likely) if bad <= count})


def _named(numbers: Sequence[int]) -> str:
    return f"segment{'s' * (len(numbers) > 1)} {some(numbers, _MOST_NUMBERS)}"
