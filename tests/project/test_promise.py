"""Your models and data sets keep the promise: every YAML file that you add is tested here."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from seedbed import offline, record
from tests.project import promise

# What a data set, a model or a method is trained with, where the default and `accepts` do not tell:
# {"model=mine": "data=data_of_mine"}.
PARTNERS = dict.fromkeys(("data=sums", "model=gpt", "method=language_model"), "experiment=char_gpt")
CASES = promise.cases(PARTNERS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Train every case in every way; return a folder for each way."""
    place = tmp_path_factory.mktemp("runs")
    promise.train(CASES, place)
    return {way: place / way for way in promise.WAYS}


def first(runs: Mapping[str, Path], case: str) -> Path:
    """Return the run that the others are compared with."""
    folder = runs["first"] / case
    error = str(record.read_summary(folder)["error"])
    if offline.ADVICE in error:
        pytest.skip(f"its files are not on this machine: {error}")
    return folder


@pytest.mark.parametrize("way", ["again", "two_workers", "resumed"])
@pytest.mark.parametrize("case", CASES)
def test_same_bits(runs: Mapping[str, Path], case: str, way: str) -> None:
    """In another process, with two loader workers, and stopped and resumed."""
    assert promise.differences(first(runs, case), runs[way] / case) == []
    resumed = record.read_summary(runs[way] / case)["resumes"]
    assert bool(resumed) is (way == "resumed")


@pytest.mark.parametrize("case", CASES)
def test_another_seed_gives_other_bits(runs: Mapping[str, Path], case: str) -> None:
    """Negative control: what is compared above can differ."""
    assert "fingerprints.csv" in promise.differences(first(runs, case), runs["other_seed"] / case)
