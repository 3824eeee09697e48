"""How often a claim is decided wrongly, by simulation with fixed seeds.

Values are normal and correlated over seeds. Counts stay within what 99.9 % of such
simulations give (binomial).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from seedbed.claims import check
from seedbed.claims.claim import Claim, Variant
from seedbed.claims.lock import Fixed, Lock
from seedbed.claims.runs import FINISHED, ClaimedRun, Found
from seedbed.sweeps import statistics
from seedbed.sweeps.groups import SweepRun

ALPHA = 0.1
SMALLEST = 0.5
TIMES = 1000
Values = NDArray[np.float64]


def planned(rule: str, seeds: int, variants: int = 1, smallest: float = 0.0) -> Lock:
    names = [f"v{number}" for number in range(variants + 1)]
    claim = Claim(
        Path("claim.yaml"),
        "",
        "validation_accuracy",
        "maximize",
        rule,
        tuple(range(seeds)),
        smallest,
        ALPHA,
        (),
        tuple(Variant(name, ()) for name in names),
    )
    fixed = {name: Fixed(None, {"model.name": name}, {}, {}, {}) for name in names}
    return Lock(claim, "0" * 64, fixed)


def records(lock: Lock, values: Values) -> Found:
    """Return runs with values by variant and seed."""
    found = Found()
    for number, name in enumerate(lock.variants):
        for seed, value in enumerate(values[number]):
            summary = {"metrics": {lock.claim.metric: float(value)}}
            config = dict(lock.variants[name].settings)
            run = SweepRun(name, Path("none"), "", config, {"seed": seed}, summary)
            found.runs[name, seed] = ClaimedRun(run, FINISHED)
    return found


def verdicts(lock: Lock, values: Values) -> list[str]:
    """Return the verdicts as `check` derives them from records."""
    found = records(lock, values)
    base, *others = lock.variants
    return [check._decide(lock, found, base, name).verdict for name in others]


def decided(lock: Lock, values: Values) -> list[str]:
    """Return the same from values alone, which is a hundred times faster."""
    claim = lock.claim
    names = {1: "better", 0: "undecided", -1: "worse"}
    found = []
    for own in values[1:]:
        n = len(own)
        if claim.rule == "sequential":
            n = check.stop(lock, values[0], own)
            interval = statistics.sequential_interval(
                own[:n] - values[0, :n], claim.confidence
            )
        else:
            interval = statistics.difference(
                values[0], own, paired=True, confidence=claim.confidence
            ).interval
        side = statistics.side(interval, claim.smallest_difference) if interval else 0
        found.append(names[side])
    return found


def draw(random: np.random.Generator, seeds: int, *gains: float) -> Values:
    """Return values of a baseline and variants with these gains, over seeds."""
    shared = random.normal(size=seeds)
    own = random.normal(size=(1 + len(gains), seeds))
    return 2 * shared + own + np.array([0.0, *gains])[:, None]


def most(probability: float) -> int:
    return int(stats.binom.ppf(0.999, TIMES, probability))


def least(probability: float) -> int:
    return int(stats.binom.ppf(0.001, TIMES, probability))


@pytest.mark.parametrize("rule", ["fixed", "sequential"])
def test_simulated_claims_are_decided_as_those_of_records(rule: str) -> None:
    """In `TIMES` simulations, values stand for records. Negative control: of these
    claims, some have each verdict."""
    random = np.random.default_rng(6)
    lock = planned(rule, 8, variants=2, smallest=0.2)
    seen = set()
    for gain in (-4.0, 0.0, 1.0, 4.0):
        for _ in range(6):
            values = draw(random, 8, gain, 2 * gain)
            found = verdicts(lock, values)
            assert decided(lock, values) == found
            seen |= {*found}
    assert seen == {"better", "worse", "undecided"}


def test_a_fixed_claim_without_a_difference_is_wrong_as_often_as_it_says() -> None:
    """Better and worse in half of alpha each. Negative control: a real difference is
    found in most."""
    random = np.random.default_rng(0)
    lock = planned("fixed", 6)
    found = {"better": 0, "worse": 0, "undecided": 0}
    for _ in range(TIMES):
        [verdict] = decided(lock, draw(random, 6, 0.0))
        found[verdict] += 1
    for name in ("better", "worse"):
        assert least(ALPHA / 2) <= found[name] <= most(ALPHA / 2)
    real = [decided(lock, draw(random, 6, 4.0)) for _ in range(50)]
    assert real.count(["better"]) > 40


def test_a_difference_that_does_not_matter_is_not_better() -> None:
    """The true difference is the smallest one that matters. Negative control: the same
    values, if each difference matters."""
    random = np.random.default_rng(1)
    values = [draw(random, 12, SMALLEST) for _ in range(TIMES)]
    wrong = {
        smallest: sum(
            decided(planned("fixed", 12, smallest=smallest), each) == ["better"]
            for each in values
        )
        for smallest in (SMALLEST, 0.0)
    }
    assert wrong[SMALLEST] <= most(ALPHA / 2)
    assert wrong[0.0] > 2 * most(ALPHA / 2), "negative control"


def test_several_variants_are_wrong_together_as_often_as_it_says() -> None:
    """Bonferroni: that one of four is decided wrongly. Negative control: without the
    correction."""
    random = np.random.default_rng(2)
    lock = planned("fixed", 5, variants=4)
    alone = planned("fixed", 5)
    wrong = 0
    uncorrected = 0
    for _ in range(TIMES):
        values = draw(random, 5, 0.0, 0.0, 0.0, 0.0)
        wrong += decided(lock, values) != ["undecided"] * 4
        uncorrected += any(
            decided(alone, values[[0, number]]) != ["undecided"]
            for number in range(1, 5)
        )
    assert wrong <= most(ALPHA)
    assert uncorrected > most(ALPHA), "negative control"


def looks(lock: Lock, values: Values) -> list[str]:
    """Return the verdict after each seed, as of somebody who always looks."""
    few = range(2, values.shape[1] + 1)
    return [decided(lock, values[:, :number])[0] for number in few]


def test_a_sequential_claim_is_wrong_as_often_as_it_says_under_any_looks() -> None:
    """Somebody looks after each of 20 seeds, and stops at the first verdict. Negative
    control: a fixed rule that is looked at so is wrong more often."""
    random = np.random.default_rng(3)
    wrong = {"sequential": 0, "fixed": 0}
    for _ in range(TIMES):
        values = draw(random, 20, 0.0)
        for rule in wrong:
            found = looks(planned(rule, 20), values)
            wrong[rule] += any(verdict != "undecided" for verdict in found)
    assert wrong["sequential"] <= most(ALPHA)
    assert wrong["fixed"] > 2 * most(ALPHA), "negative control"


def test_a_sequential_claim_keeps_its_first_verdict() -> None:
    """Seeds that are added later, or taken away again, change nothing; a difference is
    found, and by fewer seeds if it is larger. Negative control: a fixed rule changes
    its verdict."""
    random = np.random.default_rng(4)
    changed = {"sequential": 0, "fixed": 0}
    stopped: dict[float, list[int]] = {2.0: [], 4.0: []}
    for gain, numbers in stopped.items():
        for _ in range(20):
            values = draw(random, 20, gain)
            for rule in changed:
                found = looks(planned(rule, 20), values)
                decided = [verdict for verdict in found if verdict != "undecided"]
                changed[rule] += "undecided" in found[found.index("better") :]
                assert len({*decided}) <= 1 or rule == "fixed"
            lock = planned("sequential", 20)
            numbers.append(check.stop(lock, values[0], values[1]))
    assert changed["sequential"] == 0
    assert changed["fixed"] > 0, "negative control"
    assert np.mean(stopped[4.0]) < np.mean(stopped[2.0]) < 20


@pytest.mark.parametrize("smallest", [0.0, 0.5])
def test_the_pairs_that_would_decide_are_those_at_which_the_rule_stops(
    smallest: float,
) -> None:
    """With differences of the same mean and deviation at each number of pairs, the
    sequential interval excludes what does not matter from there on, not before."""
    mean = 1.2
    needed = statistics.pairs_to_decide(mean - smallest, 1.0, 0.95)
    for n, expected in ((needed - 1, 0), (needed, 1)):
        noise = np.resize([1.0, -1.0], n)
        noise = (noise - noise.mean()) / noise.std(ddof=1)
        interval = statistics.sequential_interval(mean + noise, 0.95)
        assert interval is not None
        assert statistics.side(interval, smallest) == expected


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.3, 0.4), 1),
        ((0.1, 0.4), 0),
        ((-0.1, 0.1), 0),
        ((-0.4, -0.1), 0),
        ((-0.4, -0.3), -1),
    ],
)
def test_an_interval_is_decided_beyond_what_matters(
    interval: statistics.Interval, expected: int
) -> None:
    assert statistics.side(interval, 0.2) == expected


def test_pairs_have_less_variance_by_their_correlation() -> None:
    """With equal deviations, the ratio is 1 - r. Negative controls: values that do not
    vary; one pair."""
    x = np.array([1.0, 2.0, 3.0, 4.0])
    y = np.array([2.0, 1.0, 4.0, 3.0])
    r = statistics.correlation(x, y)
    assert r is not None
    assert statistics.variance_ratio(x, y) == pytest.approx(1 - r)
    assert statistics.variance_ratio(x, x + 3.0) == 0.0
    assert statistics.variance_ratio(np.ones(3), np.ones(3)) is None
    assert statistics.variance_ratio(x[:1], y[:1]) is None
    lock = planned("fixed", 4)
    made = check._decide(lock, records(lock, np.stack([x, y])), "v0", "v1")
    assert made.variance_ratio == pytest.approx(1 - r)
    assert made.correlation == pytest.approx(r)


def test_a_lower_value_is_better_where_the_claim_says_so() -> None:
    """Negative control: where it says the opposite."""
    lock = planned("fixed", 6)
    values = draw(np.random.default_rng(5), 6, 9.0)
    minimised = replace(lock, claim=replace(lock.claim, direction="minimize"))
    assert verdicts(lock, values) == ["better"]
    assert verdicts(minimised, values) == ["worse"]


def test_drawn_seeds_follow_from_the_digest() -> None:
    """They are different, and others for another claim."""
    lock = planned("fixed", 2)

    def drawn(digest: str) -> tuple[int, ...]:
        claim = replace(lock.claim, seeds=20)
        return replace(lock, claim=claim, digest=digest).seeds

    assert len({*drawn("a")}) == 20
    assert drawn("a") == drawn("a")
    assert not {*drawn("a")} & {*drawn("b")}
