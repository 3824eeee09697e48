"""A stranger's record builds what this checkout's YAML files name, and nothing else."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from seedbed import config
from seedbed.config.compose import configuration
from seedbed.config.trust import require_trusted
from seedbed.errors import InputError

BASE = configuration()


def record(key: str = "", value: Any = None) -> DictConfig:
    """Return the configuration of a record, with one value changed."""
    settings = deepcopy(BASE)
    if key:
        OmegaConf.update(settings, key, value, merge=False, force_add=True)
    return settings


@pytest.mark.parametrize("experiment", ["adding_rnn", "adding_lstm"])
def test_what_the_repository_ships_is_trusted(experiment: str) -> None:
    """Negative control of every refusal below."""
    settings = configuration(f"experiment={experiment}")
    require_trusted(settings, Path("run"))


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
        ("model.body", CRAFTED["model"], "torch.nn.ModuleDict"),  # another class of torch is named
        ("model._target_", "torch.optim.AdamW.x", "torch.optim.AdamW.x"),
        ("model._target_", "tiny.cnn.CNNs", "tiny.cnn.CNNs"),
        ("model.parts", [[{"_target_": "torch.hub.load"}]], "torch.hub.load"),
        ("data.collate", "subprocess.run", "subprocess.run"),
        ("data.sampler", {"_target_": "subprocess.run"}, "subprocess.run"),
        # A logger is no model: it would write and send where the record likes.
        ("model._target_", "seedbed.loggers.mlflow.MLflow", "seedbed.loggers.mlflow.MLflow"),
        ("callbacks", {"a": {"_target_": "seedbed.loggers.mlflow.MLflow"}}, "seedbed.loggers"),
    ],
)
def test_a_class_that_no_file_names_is_refused(key: str, value: Any, name: str) -> None:
    """Exactly; and the line says how to trust it."""
    with pytest.raises(InputError, match=f"^run: .* got {name}.* --trust {name}"):
        require_trusted(record(key, value), Path("run"))


def test_a_name_can_be_trusted() -> None:
    """A class, or a package with all in it; control: a longer word is another name."""
    settings = record("model._target_", "mine.models.Net")
    for name in ("mine", "mine.models", "mine.models.Net"):
        require_trusted(settings, Path("run"), [name])
    for name in ("min", "mine.model", "mine.models.Nets"):
        with pytest.raises(InputError):
            require_trusted(settings, Path("run"), [name])


@pytest.mark.parametrize("name", ["a\nimport os", "x = 1;", "\x1b[2J", "a b", "", "(x)"])
def test_keys_that_are_no_names_are_refused(name: str) -> None:
    """Code is generated from some, and terminals act on others."""
    for key in ("model.parts", "trainer.deep"):
        with pytest.raises(InputError, match="expected keys of letters") as caught:
            require_trusted(record(key, {"in": [{name: 1}]}), Path("run"))
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name",
    ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT",
     "PYTHONHOME", "PYTHONSAFEPATH", "BASH_ENV", "PATH", "OMP_TOOL_LIBRARIES", "HOME",
     "TORCHINDUCTOR_CACHE_DIR", "TORCH_DEVICE_BACKEND_AUTOLOAD", "CUDA_INJECTION64_PATH",
     "MKL_VERBOSE_OUTPUT_FILE", "NCCL_NET_PLUGIN", "GCONV_PATH", "SEEDBED_OFFLINE"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["x", None])
def test_a_record_sets_no_variable_that_no_preset_names(name: str, value: str | None) -> None:
    """What loads code is not among those; control: what a preset names may have a value."""
    with pytest.raises(InputError, match=f"configs/determinism names, got {name} in the record"):
        require_trusted(record(f"determinism.env.{name}", value), Path("run"))
    require_trusted(record("determinism.env.MKL_CBWR", "AVX2"), Path("run"))


def test_every_name_in_settings_is_found() -> None:
    """Wherever it stands; values of other keys are no names."""
    tree = {
        "model": {"_target_": "a.B", "x": [{"_target_": "c.D", "collate": "mean"}], "y": None},
        "data": {"collate": "e.f", "training_collate": {"_target_": "g.H"}},
    }
    found = dict(config.targets_of(tree))
    assert found == {
        "model._target_": "a.B", "model.x.0._target_": "c.D",
        "data.collate": "e.f", "data.training_collate._target_": "g.H",
    }  # fmt: skip
    assert dict(config.targets_of(OmegaConf.create(tree))) == found
