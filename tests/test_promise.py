"""Your models and data sets keep the promise: every YAML file that you add is tested here."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.once import made_once
from tests.project import promise

from seedbed import offline, record

# What a data set, a model or a method is trained with, where the default and `accepts` do not tell:
# {"model=mine": "data=data_of_mine"}.
PARTNERS = dict.fromkeys(("data=sums", "model=gpt", "method=language_model"), "experiment=char_gpt")
CASES = promise.cases()
Runs = Mapping[str, Mapping[str, Path]]


@pytest.fixture(scope="module")
def runs(shared: Path) -> Runs:
    """Train every case in every way; return the folder of each way and case."""
    lines = {case: promise.command_line(case, PARTNERS) for case in CASES}
    alike = promise.alike(lines)
    trained = {case: lines[case] for case in dict.fromkeys(alike.values())}
    place = made_once(shared / "promise", lambda place: promise.train(trained, place))
    return {way: {case: place / way / alike[case] for case in CASES} for way in promise.WAYS}


def first(runs: Runs, case: str) -> Path:
    """Return the run that the others are compared with."""
    folder = runs["first"][case]
    error = str(record.read_summary(folder)["error"] or "")
    if offline.ADVICE in error:
        pytest.skip(f"its files are not on this machine: {error}")
    if error:
        words = " ".join(promise.command_line(case, PARTNERS))
        pytest.fail(
            f"{words}: {error}\nIf these do not belong together: `accepts` and `kind` in "
            "their YAML files, or PARTNERS above, say what does.",
            pytrace=False,
        )
    return folder


@pytest.mark.parametrize("way", ["again", "two_workers", "resumed"])
@pytest.mark.parametrize("case", CASES)
def test_same_bits(runs: Runs, case: str, way: str) -> None:
    """In another process, with two loader workers, and stopped and resumed."""
    assert promise.differences(first(runs, case), runs[way][case]) == []
    resumed = record.read_summary(runs[way][case])["resumes"]
    assert bool(resumed) is (way == "resumed")


@pytest.mark.parametrize("case", CASES)
def test_another_seed_gives_other_bits(runs: Runs, case: str) -> None:
    """Negative control: what is compared above can differ."""
    other = runs["other_seed"][case]
    assert "fingerprints.csv" in promise.differences(first(runs, case), other)
