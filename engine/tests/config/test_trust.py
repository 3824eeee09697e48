"""A stranger's record builds what this checkout's YAML files name, and nothing else."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from seedbed import config
from seedbed.config.compose import configuration
from seedbed.errors import InputError

BASE = configuration()
RUN = Path("run")


def record(key: str, value: Any) -> DictConfig:
    """Return the configuration of a record, with one value changed."""
    settings = deepcopy(BASE)
    OmegaConf.update(settings, key, value, merge=False, force_add=True)
    return settings


# One that torch.fx makes code of: the name of a module goes into it as it is.
CRAFTED = {
    "_target_": "torchvision.models.feature_extraction.create_feature_extractor",
    "model": {"_target_": "torch.nn.ModuleDict", "modules": {"x": {"_target_": "torch.nn.ReLU"}}},
    "return_nodes": ["x"],
}


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("model._target_", "os.system", "os.system"),
        ("model", CRAFTED, "torch"),
        ("model._target_", "torch.optim.AdamW.x", "torch.optim.AdamW.x"),
        ("model._target_", "tiny.cnn.CNNs", "tiny.cnn.CNNs"),
        ("model.parts", [[{"_target_": "torch.hub.load"}]], "torch.hub.load"),
        ("data.collate", "subprocess.run", "subprocess.run"),
        # A logger is no model: it would write and send where the record likes.
        ("callbacks", {"a": {"_target_": "seedbed.loggers.mlflow.MLflow"}}, "seedbed.loggers"),
    ],
)
def test_a_class_that_no_file_names_is_refused(key: str, value: Any, name: str) -> None:
    """Exactly; the line says how to trust it. Negative control: what the repository ships."""
    with pytest.raises(InputError, match=f"^run: .* got {name}.* --trust {name}"):
        config.require_trusted(record(key, value), RUN)
    config.require_trusted(configuration("experiment=adding_lstm"), RUN)


def test_a_name_can_be_trusted() -> None:
    """A class, or a package with all in it; control: a longer word is another name."""
    settings = record("model._target_", "mine.models.Net")
    for name in ("mine", "mine.models", "mine.models.Net"):
        config.require_trusted(settings, RUN, [name])
    for name in ("min", "mine.model", "mine.models.Nets"):
        with pytest.raises(InputError):
            config.require_trusted(settings, RUN, [name])


@pytest.mark.parametrize("name", ["a\nimport os", "x = 1;", "\x1b[2J", "a b", ""])
def test_keys_that_are_no_names_are_refused(name: str) -> None:
    """Code is generated from some, and terminals act on others."""
    with pytest.raises(InputError, match="expected keys of letters") as caught:
        config.require_trusted(record("trainer.deep", {"in": [{name: 1}]}), RUN)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "BASH_ENV", "SEEDBED_OFFLINE"])
@pytest.mark.parametrize("value", ["x", None])
def test_a_record_sets_no_variable_that_no_preset_names(name: str, value: str | None) -> None:
    """What loads code is not among those; control: what a preset names may have a value."""
    with pytest.raises(InputError, match=f"configs/determinism names, got {name} in the record"):
        config.require_trusted(record(f"determinism.env.{name}", value), RUN)
    config.require_trusted(record("determinism.env.MKL_CBWR", "AVX2"), RUN)
