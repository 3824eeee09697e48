"""Faults in real runs, found by the commands from the records on disk."""

from pathlib import Path

import pytest

from tests import tiny
from tests.compare.test_verify import edit_stage
from tests.running import command, trained

pytestmark = pytest.mark.long

IMAGES = {key: {"_target_": "tests.faults.Images"} for key in ("train", "validation", "test")}
DATA = tiny.DATA | IMAGES | {"collate": "tests.faults.collate"}
WORDS = tiny.overrides({"name": "faulty", "_target_": "tests.faults.Net"}, DATA)


def explained(*words: object) -> str:
    """Run a command that must say that bits differ, and return what it says."""
    done = command(*map(str, words), "--explain", "--trust", "tests.faults")
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_compare_names_the_stage_of_the_data(tmp_path: Path) -> None:
    """Classes numbered by a set of strings follow the seed of its hashes: sample loading."""
    fault = ("+data.train.fault=set_of_strings", "+data.train.sample_id=5")
    a, b = (
        trained(tmp_path / seed, *WORDS, *fault, f"determinism.env.PYTHONHASHSEED='{seed}'")
        for seed in ("1", "2")
    )
    text = explained("scripts/compare.py", a, b)
    assert "batch contents (augmentation or loading)" in text
    assert "sample loading: __getitem__ in module data.train" in text
    assert "determinism.env.PYTHONHASHSEED" in text


def test_verify_names_what_does_not_repeat(tmp_path: Path) -> None:
    """An unseeded generator in a layer differs between two replays of one configuration.

    Twin: a record with a bit flipped in it has two replays that agree, and no operation.
    """
    fault = ("+model.fault=unseeded_generator", "+model.step=3", "+model.where=0")
    text = explained("scripts/verify.py", trained(tmp_path / "run", *WORDS, *fault))
    assert "diverge at step 3: loss" in text
    assert "The two replays differ from each other: the step is nondeterministic" in text
    assert "forward: aten.rand.generator in module blocks.0" in text

    edit_stage(trained(tmp_path / "clean", *WORDS), 4, "gradients")
    text = explained("scripts/verify.py", tmp_path / "clean")
    assert "The two replays have the same bits" in text
    assert "the replay differs from the record, at step 4, stage gradients" in text
    assert "aten." not in text
