"""Deciding a claim from the records of its runs, and what is missing until then."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from seedbed.claims.claim import SEQUENTIAL
from seedbed.claims.lock import Lock, commands, not_composed, other_code, planned
from seedbed.claims.runs import ENDED, FAILED, FINISHED, Found, find
from seedbed.errors import some
from seedbed.record import verified
from seedbed.sweeps import statistics
from seedbed.sweeps.comparison import Comparison, Rule, compare
from seedbed.sweeps.groups import Group
from seedbed.sweeps.plan import Plan
from seedbed.sweeps.report import entry
from seedbed.sweeps.statistics import Floats

_MOST_SEEDS = 8  # in a line


def check(lock: Lock, folders: Sequence[Path]) -> dict[str, Any]:
    """Return the verdict of a claim as its rule has it, and what it rests on.

    `holds` is None if records contradict the claim (`refused`): then there is no
    verdict. `verdict` is that of all comparisons if they agree, else undecided.
    """
    claim_runs = find(lock, folders)
    refused = [*not_composed(lock), *claim_runs.refused, *_left_out(lock, claim_runs)]
    if not refused:
        refused += _other_direction(lock, claim_runs)
    base, *others = lock.variants
    made = [] if refused else [_decide(lock, claim_runs, base, name) for name in others]
    verdicts = {each.verdict for each in made}
    verdict = verdicts.pop() if len(verdicts) == 1 else "undecided"
    return {
        **_about(lock),
        "refused": refused,
        "notes": claim_runs.notes,
        "runs": [*_runs(lock, claim_runs)],
        "comparisons": [_comparison(lock, each) for each in made],
        "verdict": verdict,
        "holds": None if refused else verdict == "better",
    }


def _comparison(lock: Lock, made: Comparison) -> dict[str, Any]:
    """Return a comparison as an entry of a report; `is_negligible` is whether the
    interval that decides excludes every difference that matters."""
    interval = made.difference and made.difference.interval
    if made.decided_by == "sequential":
        interval = made.sequential_interval
    smallest = lock.claim.smallest_difference
    is_inside = bool(interval and -smallest < interval[0] <= interval[1] < smallest)
    differs = [*map(entry, made.differs)]
    return {**asdict(made), "differs": differs, "is_negligible": is_inside}


def plan(lock: Lock) -> dict[str, Any]:
    """Return what a claim has fixed, and the commands that train its variants."""
    every = {variant.name: commands(lock, variant) for variant in lock.claim.variants}
    return {**_about(lock), "commands": every}


def status(lock: Lock, folders: Sequence[Path]) -> dict[str, Any]:
    """Return which runs of a claim are there, and the commands for those that are not.

    `seeds_to_decide` has for each variant how many would decide if the difference is
    what it is so far, None if that is unknown.
    """
    claim_runs = find(lock, folders)
    base, *others = lock.variants
    missing = {
        variant.name: [
            seed
            for seed in lock.seeds
            if claim_runs.state(variant.name, seed) != FINISHED
        ]
        for variant in lock.claim.variants
    }
    if any(missing.values()) and (names := other_code(lock)):
        claim_runs.notes.append(
            f"this checkout has other code than the claim: {some(names)}; runs"
            " that use it will be refused: git checkout the commit of the claim"
        )
    return {
        **_about(lock),
        "refused": [*not_composed(lock), *claim_runs.refused],
        "notes": claim_runs.notes,
        "runs": [*_runs(lock, claim_runs)],
        "missing": missing,
        "seeds_to_decide": {
            name: None if claim_runs.refused else _needed(lock, claim_runs, base, name)
            for name in others
        },
        "commands": {
            variant.name: commands(lock, variant)
            for variant in lock.claim.variants
            if missing[variant.name]
        },
    }


def _about(lock: Lock) -> dict[str, Any]:
    commits = {name: fixed.commit for name, fixed in lock.variants.items()}
    about = lock.claim.canonical()
    del about["variants"]
    seeds = [*lock.seeds]
    return {"digest": lock.digest, "commits": commits, **about, "seeds": seeds}


def _runs(lock: Lock, claim_runs: Found) -> Iterator[dict[str, Any]]:
    """Yield an entry for each variant and planned seed."""
    for variant in lock.claim.variants:
        name = variant.name
        restores = ["--restore-code"] if variant.commit else []
        for seed in lock.seeds:
            claimed = claim_runs.runs.get((name, seed))
            run = claimed and claimed.run.name
            words = ["python", "scripts/verify.py", str(run), *restores]
            yield {
                "variant": name,
                "seed": seed,
                "state": claim_runs.state(name, seed),
                "run": run,
                "reason": claimed.reason if claimed else "",
                "verified": claimed and verified.of(claimed.run.folder),
                "verify": claimed and shlex.join(words),
            }


def _left_out(lock: Lock, claim_runs: Found) -> Iterator[str]:
    """Yield a line for each variant of which planned seeds were left out.

    A fixed number of seeds is decided once, when all have ended. A sequential rule
    takes them in their order.
    """
    for name in lock.variants:
        ended = [seed for seed in lock.seeds if claim_runs.state(name, seed) in ENDED]
        begun = [seed for seed in lock.seeds if (name, seed) in claim_runs.runs]
        if lock.claim.rule == SEQUENTIAL:
            last = max((lock.seeds.index(seed) for seed in begun), default=0)
            lacking = [seed for seed in lock.seeds[:last] if seed not in ended]
            why = "later seeds have runs, and none may be left out"
        else:
            lacking = [seed for seed in lock.seeds if seed not in ended]
            why = "a fixed number of seeds is decided once all have finished"
        if lacking:
            yield (
                f"{name}: expected finished runs of seeds"
                f" {some(lacking, _MOST_SEEDS)}, got none: {why}"
            )


def _other_direction(lock: Lock, claim_runs: Found) -> Iterator[str]:
    """Yield a line for each variant whose runs optimise the metric in the other
    direction."""
    for name in lock.variants:
        runs = claim_runs.values(name, _finished(lock, claim_runs, name))
        if not runs:
            continue
        recorded = Group(name, runs, [], lock.claim.metric).higher_is_better
        if recorded not in (None, lock.claim.higher_is_better):
            yield (
                f"{name}: direction: expected {lock.claim.direction} of"
                f" {lock.claim.metric}, got runs that do the opposite"
            )


def _finished(lock: Lock, claim_runs: Found, *names: str) -> list[int]:
    """Return the planned seeds before the first of which a variant has no finished
    run."""
    return [
        *takewhile(
            lambda seed: all(
                claim_runs.state(name, seed) == FINISHED for name in names
            ),
            lock.seeds,
        )
    ]


def _rule(lock: Lock) -> Rule:
    claim = lock.claim
    return Rule(claim.rule == SEQUENTIAL, claim.smallest_difference)


def _decide(lock: Lock, claim_runs: Found, base: str, name: str) -> Comparison:
    """Compare a variant with the baseline over the seeds at which the rule stops."""
    seeds = _finished(lock, claim_runs, base, name)
    a, b = (_group(lock, claim_runs, each, seeds) for each in (base, name))
    if lock.claim.rule == SEQUENTIAL and len(seeds) > 1:
        seeds = seeds[: stop(lock, *_values(a, b))]
        a, b = (_group(lock, claim_runs, each, seeds) for each in (base, name))
    made = compare(a, b, (base, name), lock.claim.confidence, _rule(lock))
    failed = [*_failures(lock, claim_runs, base, name)]
    is_fixed = lock.claim.rule != SEQUENTIAL
    if failed and (is_fixed or made.verdict == "undecided"):
        reasons = [*made.not_comparable, *failed]
        made = replace(made, not_comparable=reasons, verdict="undecided")
    return made


def stop(lock: Lock, a: Floats, b: Floats) -> int:
    """Return after how many pairs a sequential claim stops; all if it has not."""
    claim = lock.claim
    return statistics.pairs_until_decided(
        a, b, claim.confidence, claim.smallest_difference
    )


def _group(lock: Lock, claim_runs: Found, name: str, seeds: Sequence[int]) -> Group:
    claim = lock.claim
    runs = claim_runs.values(name, seeds)
    if not runs:
        return planned(lock, name)
    direction = claim.higher_is_better
    return Group(name, runs, [], claim.metric, Plan(), direction=direction)


def _values(a: Group, b: Group) -> tuple[Floats, Floats]:
    return np.array([*a.values]), np.array([*b.values])


def _failures(lock: Lock, claim_runs: Found, *names: str) -> Iterator[str]:
    for name in names:
        for seed in lock.seeds:
            if claim_runs.state(name, seed) == FAILED:
                reason = claim_runs.runs[name, seed].reason
                yield f"seed {seed} of {name} {reason}"


def _needed(lock: Lock, claim_runs: Found, base: str, name: str) -> int | None:
    """Return how many seeds would decide a comparison if the difference stays what it
    is."""
    seeds = _finished(lock, claim_runs, base, name)
    if len(seeds) < 2:
        return None
    a, b = _values(*(_group(lock, claim_runs, each, seeds) for each in (base, name)))
    claim = lock.claim
    estimate = statistics.difference(a, b, paired=True)
    beyond = abs(estimate.mean) - claim.smallest_difference
    if estimate.interval is None or not estimate.sd or beyond <= 0:
        return None
    if claim.rule == SEQUENTIAL:
        return statistics.pairs_to_decide(beyond, estimate.sd, claim.confidence)
    return statistics.seeds_to_decide(beyond, estimate.sd, True, claim.confidence)


def unverified(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of runs that `verify.py` has not reproduced as a whole."""
    return [row for row in report["runs"] if row["run"] and row["verified"] != "yes"]
