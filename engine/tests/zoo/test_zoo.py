"""Models, layers and transforms that others wrote keep their bits: make test-zoo."""

import csv
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from seedbed import record
from seedbed.config import build
from tests import running, ways
from tests.zoo import catalogue, runs
from tests.zoo.catalogue import Case

pytestmark = pytest.mark.zoo

CASES = catalogue.cases()
TRAINED = [case for case in CASES if not case.refused]
REFUSED = [case for case in CASES if case.refused]
VARIANTS = (runs.FIRST, runs.AGAIN, runs.WORKERS, runs.RESUMED)
# Trained with another seed as well, and by the real command.
SAMPLE = (
    "torchvision/resnet18",
    "timm/convnext_atto",
    "transformers/BertForSequenceClassification",
    "torch.nn/LSTM",
    "transforms.v1/RandAugment",
    "transforms.v2/RandomIoUCrop",
)


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the cases of the tests that were chosen, in every variant."""
    found = [item.callspec.params.get("case") for item in request.session.items
             if isinstance(item, pytest.Function) and hasattr(item, "callspec")]  # fmt: skip
    chosen = {case.name: case for case in found if isinstance(case, Case)}
    folder = tmp_path_factory.mktemp("zoo")
    runs.train(list(chosen.values()), VARIANTS, folder)
    return folder


def same(place: Path, case: Case, variant: runs.Variant) -> list[str]:
    name = runs.folder_name(case)
    return ways.differences(place / runs.FIRST.name / name, place / variant.name / name)


@each(TRAINED)
def test_it_trains(place: Path, case: Case) -> None:
    """The loss is a number, and every step changes the weights: the others compare something."""
    folder = place / runs.FIRST.name / runs.folder_name(case)
    summary = runs.read(folder)
    assert summary["status"] == "finished", summary["error"]
    assert all(math.isfinite(value) for value in summary["metrics"].values())
    with open(folder / "fingerprints.csv") as table:
        weights = [row["weights"] for row in csv.DictReader(table)]
    assert len(weights) == len(set(weights)) == runs.STEPS


@each(TRAINED)
def test_two_processes_have_the_same_bits(place: Path, case: Case) -> None:
    """They train the cases in opposite orders, so that none depends on what came before it."""
    assert same(place, case, runs.AGAIN) == []


@each(TRAINED)
def test_three_loader_workers_have_the_same_bits(place: Path, case: Case) -> None:
    assert same(place, case, runs.WORKERS) == []


@each(TRAINED)
def test_a_resumed_run_has_the_same_bits(place: Path, case: Case) -> None:
    summary = runs.read(place / runs.RESUMED.name / runs.folder_name(case))
    assert [resume["step"] for resume in summary["resumes"]] == [runs.STOPPED_AFTER], summary
    assert same(place, case, runs.RESUMED) == []


@each(REFUSED)
def test_what_cannot_keep_its_bits_is_refused_in_one_line(place: Path, case: Case) -> None:
    """An operation without a deterministic implementation, state in attributes, a `view`."""
    summary = runs.read(place / runs.FIRST.name / runs.folder_name(case))
    assert summary["status"] == "failed"
    assert summary["error"].startswith(case.refused), summary["error"]
    assert "\n" not in summary["error"]


def test_another_seed_has_other_bits(tmp_path: Path) -> None:
    """Negative control."""
    sample = [case for case in CASES if case.name in SAMPLE]
    runs.train(sample, (runs.FIRST, runs.OTHER_SEED), tmp_path)
    for case in sample:
        assert "fingerprints.csv" in same(tmp_path, case, runs.OTHER_SEED)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_process_of_its_own_has_the_same_bits(name: str, tmp_path: Path) -> None:
    """Hosting many runs in a process neither hides a difference nor makes one."""
    case = next(case for case in CASES if case.name == name)
    runs.train([case], (runs.FIRST,), tmp_path)
    hosted = tmp_path / runs.FIRST.name / runs.folder_name(case)
    settings = record.read_config(hosted)
    groups = tmp_path / "configs"
    for group in ("data", "model"):
        (groups / group).mkdir(parents=True)
        (groups / group / "zoo.yaml").write_text(OmegaConf.to_yaml(settings[group]))
    done = running.train(
        tmp_path / "own",
        *("data=zoo", "model=zoo", f"--config-dir={groups}"),
        *runs.SHORT,
        environment=runs.ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    assert ways.differences(hosted, tmp_path / "own") == []


def generators() -> Any:
    """Return the state of the global generators."""
    state = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2], torch.get_rng_state().tolist()


TRANSFORMS = [case for case in CASES if case.group.startswith("transforms")]


@each(TRANSFORMS)
def test_a_transform_draws(case: Case) -> None:
    """What is listed as random takes numbers from a global generator."""
    spec = {"_target_": "tests.zoo.parts.Samples", "samples": 4, **case.samples}
    data = build.build(spec, "data")
    before = generators()
    samples = [data[i] for i in range(4)]
    if case.collate:
        build.resolve(case.collate, "data.collate")(samples)
    assert generators() != before
