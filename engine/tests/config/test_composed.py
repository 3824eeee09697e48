"""What Hydra composes is what runs, and keys that are called otherwise elsewhere."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from omegaconf import OmegaConf

from seedbed import config, record
from seedbed.config import habits
from seedbed.config.compose import compose
from seedbed.config.settings import Data
from seedbed.errors import InputError
from seedbed.project import PROJECT
from seedbed.record import untrusted
from tests import tiny
from tests.running import QUICK, ROOT, command, trained


def test_shared_arguments_reach_each_data_set_with_its_split() -> None:
    """A key of its own wins, also `_target_` and in nested mappings; null is no data
    set.

    Negative control: without `dataset`, the three stay as they are.
    """
    shared = {"_target_": "a.B", "size": 3, "options": {"a": 1, "b": 2}}
    own = {"_target_": "a.C", "flip": True, "options": {"b": 3}}
    data: Any = SimpleNamespace(dataset=shared, train=own, validation={}, test=None)
    assert Data.spec(data, "train") == {
        **{"_target_": "a.C", "size": 3, "options": {"a": 1, "b": 3}},
        **{"split": "train", "flip": True},
    }
    assert Data.spec(data, "validation") == {**shared, "split": "validation"}
    assert Data.spec(data, "test") is None
    three: Any = SimpleNamespace(dataset=None, train=own, validation={}, test=None)
    assert (Data.spec(three, "train"), Data.spec(three, "validation")) == (own, None)


@pytest.mark.parametrize("word", ["data.train=null", "++data.validation=null"])
def test_a_run_needs_data_to_train_and_validate_on(word: str) -> None:
    with pytest.raises(
        InputError, match=r"^data\.(train|validation): expected a mapping, got n"
    ):
        config.check(config.resolve(compose(*tiny.OVERRIDES, word)))


@pytest.mark.parametrize(
    "words", [(), ("experiment=adding_lstm", "data.length=7", "model=rnn")]
)
def test_what_hydra_composes_is_what_is_recorded(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Every key and value that `--cfg job` prints is in config.yaml, and no other."""
    shown = command("train.py", *QUICK, *words, "--cfg", "job", "--resolve").stdout
    run = trained(tmp_path / "run", *words)
    recorded = record.flatten(untrusted.read_dict(run))
    printed = record.flatten(yaml.safe_load(shown))
    for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        printed[f"determinism.env.{key}"] = str(printed[f"determinism.env.{key}"])
    assert printed == recorded


def test_a_section_is_named_after_its_file_unless_it_has_a_name(tmp_path: Path) -> None:
    """So a copied file has the name of the copy; a model's file may have two lines."""
    project = Path(shutil.copytree(ROOT, tmp_path / "project"))
    nets = project / "configs" / "model" / "nets"
    nets.mkdir()
    (nets / "mine.yaml").write_text("_target_: tiny.cnn.CNN\nchannels: [8]\n")
    (nets / "own.yaml").write_text("_target_: tiny.cnn.CNN\nname: given\n")
    with patch.dict(os.environ, {PROJECT: str(project)}):
        names = [compose(f"model=nets/{file}").model.name for file in ("mine", "own")]
        settings = config.resolve(compose("model=rnn"))
    assert names == ["nets/mine", "given"]
    sections = ("model", "data", "optimizer", "schedule", "method", "determinism")
    assert [settings[section].name for section in sections] == [
        *("rnn", "squares", "adamw", "onecycle", "supervised", "strict")
    ]


def test_compositions_do_not_depend_on_one_another() -> None:
    """Hydra's own values are put in at once: a later composition has others."""
    first = compose("model=rnn")
    compose("model=lstm")
    assert first.model.name == "rnn"


KEYS = {
    "trainer.fast_dev_run=true": "debug=default",
    "+trainer.fast_dev_run=true": "debug=default",
    "name=foo": "hydra.run.dir=runs/NAME, or tags=[NAME]",
    "trainer.accumulate_grad_batches=4": "trainer.accumulate",
    "trainer.max_time=1": "timeout 2h",
}


@pytest.mark.parametrize("word", KEYS)
def test_keys_of_lightning_are_answered_by_those_of_here(word: str) -> None:
    with pytest.raises(InputError, match="; here: ") as raised:
        config.check(config.resolve(compose(word)))
    assert KEYS[word] in str(raised.value)


@pytest.mark.parametrize(
    ("word", "added"),
    [("trainer.colour=1", False), ("colour=1", False), ("model.colour=1", True)],
)
def test_adding_a_key_is_advised_where_it_is_allowed(word: str, added: bool) -> None:
    """With `+`, such a key is refused again, or is not: a class may take it."""
    with pytest.raises(InputError) as raised:
        compose(word)
    assert ("to add it: +" in str(raised.value)) == added
    if not added:
        with pytest.raises(InputError, match="expected a known key"):
            config.check(config.resolve(compose(f"+{word}")))


def test_what_the_table_of_habits_names_is_there() -> None:
    known = compose()
    table = yaml.safe_load(Path(habits.__file__).with_suffix(".yaml").read_text())
    for answer in table.values():
        for word in answer.replace(",", " ").split():
            if word.startswith("trainer."):
                assert (
                    OmegaConf.select(known, word.partition("=")[0], default="-") != "-"
                ), word
