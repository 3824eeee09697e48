"""What a configuration says once, and keys that are called otherwise elsewhere."""

from pathlib import Path

import hydra
import pytest
import yaml
from omegaconf import OmegaConf
from torch import nn

from seedbed import config, project
from seedbed.config import habits
from seedbed.config.compose import VERSION, completed, compose
from seedbed.config.interpolations import templates_of
from seedbed.errors import InputError
from tests.running import TEMPLATE


def test_shared_arguments_reach_each_data_set_with_its_split() -> None:
    """A key of its own wins, also `_target_`; null is no data set; three keys stay as they are."""
    shared = {"_target_": "a.B", "root": "${data.root}", "size": 3}
    data = {"root": "x", "dataset": shared, "train": {"size": 4, "flip": True}, "test": None}
    composed = completed(OmegaConf.create({"data": data}), {})
    assert templates_of(composed)["data.validation.root"] == "${data.root}"
    assert OmegaConf.to_container(composed, resolve=True)["data"] == {  # type: ignore[call-overload,index]
        "root": "x",
        "train": {"_target_": "a.B", "root": "x", "split": "train", "size": 4, "flip": True},
        "validation": {"_target_": "a.B", "root": "x", "split": "validation", "size": 3},
        "test": None,
    }
    three = {"train": {"_target_": "a.B"}, "validation": {"_target_": "a.C"}}
    assert completed(OmegaConf.create({"data": three}), {}).data == three


def test_a_section_is_named_after_its_file_unless_it_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a copied file of the template has the name of the copy."""
    choices = {"model": "nets/mine", "data": "points", "logger": "csv", "optimizer": None}
    given = {"model": {}, "data": {"name": "own"}, "logger": {}, "optimizer": {}}
    named = completed(OmegaConf.create(given), choices)
    assert named == {
        "model": {"name": "mine"},
        "data": {"name": "own"},
        "logger": {},
        "optimizer": {},
    }
    monkeypatch.setenv(project.PROJECT, str(TEMPLATE))
    settings = config.resolve(compose("model=dense", "data=points"))
    assert (settings.model.name, settings.data.name) == ("dense", "points")
    assert (settings.optimizer.name, settings.schedule.name) == ("adamw", "onecycle")


@pytest.mark.parametrize("model", ["cnn", "lstm", "rnn", "dense", "gpt"])
def test_hydra_builds_the_model_of_a_file_from_what_is_written_there(model: str) -> None:
    """What else is known of it, the kinds of data that it takes, is said by `accepts`."""
    with hydra.initialize_config_dir(str(TEMPLATE / "configs"), **VERSION):
        data = {"dense": ["data=points"], "gpt": ["experiment=char_gpt"]}.get(model, [])
        words = [*data, f"model={model}"]
        composed = hydra.compose("config", words, return_hydra_config=True)
    assert isinstance(hydra.utils.instantiate(composed.model), nn.Module)
    choices = {**composed.hydra.runtime.choices}
    whole = completed(composed, choices)
    assert (whole.model.accepts, "accepts" in whole) == (composed.accepts[model], False)
    whole.data.kind = "table"
    with pytest.raises(InputError, match=f"^model: .* data of kind table .* got {model}, which"):
        config.check(config.resolve(whole))
    composed.accepts = {model: ["table"]}
    whole = completed(composed, choices | {"model": f"nets/{model}"})
    whole.data.kind = "table"
    config.check(config.resolve(whole))
    for wrong in ({model: []}, {model: "table"}):
        composed.accepts = wrong
        with pytest.raises(InputError, match=r"^accepts: expected lists of kinds"):
            completed(composed, choices)
    composed.accepts = "table"
    with pytest.raises(
        InputError, match=r"^accepts: expected lists of kinds of data by model, got table$"
    ):
        completed(composed, choices)


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
    ("word", "added"), [("trainer.colour=1", False), ("colour=1", False), ("model.colour=1", True)]
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
                assert OmegaConf.select(known, word.partition("=")[0], default="-") != "-", word
