"""Faults in real runs, found by the commands from the records on disk."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.compare.test_verify import edit_stage
from tests.running import ENGINE, command, train

pytestmark = pytest.mark.long

STEPS = 6
ENVIRONMENT = {"PYTHONPATH": str(ENGINE)}  # for tests.faults
OPTIONS = (
    *("determinism.threads=1", f"trainer.max_steps={STEPS}", "trainer.checkpoint_every_steps=4"),
    *("data=faulty", "model=faulty", "data.batch_size=8"),
)
TRUST = tuple(
    word for name in ("Images", "Net", "collate") for word in ("--trust", f"tests.faults.{name}")
)


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a data set and a model that can go wrong as options of their groups."""
    folder = tmp_path_factory.mktemp("configs")
    images = {"_target_": "tests.faults.Images"}
    data = {
        "name": "faulty", "kind": "image", "input_shape": [2, 8, 8], "outputs": 4,
        "task": {"name": "classification"}, "batch_size": 8, "eval_batch_size": 32,
        "num_workers": 0, "persistent_workers": True, "prefetch_factor": 2, "start_method": "fork",
        "collate": "tests.faults.collate", "train": images, "validation": images,
    }  # fmt: skip
    model = {"name": "faulty", "_target_": "tests.faults.Net", "accepts": ["image"]}
    for group, content in (("data", data), ("model", model)):
        (folder / group).mkdir()
        (folder / group / "faulty.yaml").write_text(yaml.safe_dump(content))
    return folder


def trained(configs: Path, folder: Path, *overrides: str) -> Path:
    words = ("--config-dir", str(configs), *OPTIONS, *overrides)
    done = train(folder, *words, environment=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def clean(configs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(configs, tmp_path_factory.mktemp("honest") / "run")


def explained(*words: str) -> str:
    """Run a command that must say that bits differ, and return what it says."""
    done = command(*words, "--explain", *TRUST, environment=ENVIRONMENT)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_compare_names_the_stage_of_the_data(configs: Path, tmp_path: Path) -> None:
    """Classes numbered by a set of strings follow the seed of its hashes: sample loading."""
    fault = ("+data.train.fault=set_of_strings", "+data.train.sample_id=5", "trainer.max_steps=8")
    a, b = (
        trained(configs, tmp_path / seed, *fault, f"determinism.env.PYTHONHASHSEED='{seed}'")
        for seed in ("1", "2")
    )
    text = explained("scripts/compare.py", str(a), str(b))

    assert "batch contents (augmentation or loading)" in text
    assert "sample loading: __getitem__ in module data.train" in text
    assert "determinism.env.PYTHONHASHSEED" in text


def test_verify_names_what_does_not_repeat(configs: Path, tmp_path: Path) -> None:
    """An unseeded generator in a layer differs between two replays of one configuration."""
    fault = ("+model.fault=unseeded_generator", "+model.step=3", "+model.where=0")
    run = trained(configs, tmp_path / "run", *fault)
    text = explained("scripts/verify.py", str(run))

    assert "diverge at step 3: loss" in text
    assert "The two replays differ from each other: the step is nondeterministic" in text
    assert "forward: aten.rand.generator in module blocks.0" in text


def test_verify_says_so_when_nothing_is_left_to_find(clean: Path, tmp_path: Path) -> None:
    """Twin: a record with a bit flipped in it has two replays that agree, and no operation."""
    copy = Path(shutil.copytree(clean, tmp_path / "copy"))
    edit_stage(copy, 4, "gradients")
    text = explained("scripts/verify.py", str(copy))

    assert "diverge at step 4: gradients" in text
    assert "The two replays have the same bits" in text
    assert "the replay differs from the record, at step 4, stage gradients" in text
    assert "aten." not in text
