"""The configuration: types, ranges and names are checked before anything is written."""

from copy import deepcopy

import pytest
import yaml
from omegaconf import OmegaConf

from seedbed import config
from seedbed.config.compose import compose, configuration
from seedbed.config.settings import Settings, Trainer
from seedbed.errors import InputError

BASE = configuration()


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_every_seed_in_range_is_kept(seed: int) -> None:
    """0 is a seed like any other, and the largest is no exception."""
    settings = config.check(config.resolve(compose(f"seed={seed}")))
    assert settings.seed == settings.seeds.init == seed


def test_a_null_seed_is_drawn_once_and_reaches_every_stream() -> None:
    """The seed drawn is the seed recorded."""
    first, second = (config.resolve(compose("seed=null")) for _ in range(2))
    assert first.seed != second.seed
    assert first.seed == first.seeds.init == first.seeds.dropout


@pytest.mark.parametrize(
    "change",
    [
        # ranges
        *("seed=-1", "seed=9223372036854775808", "seeds.init=-1", "data.batch_size=0"),
        *("data.num_workers=1000000", "determinism.threads=0", "optimizer.lr=-1"),
        *("optimizer.lr=.nan", "optimizer.lr=.inf", "schedule.warmup_fraction=1.5"),
        *("trainer.shards=3", "fingerprint.every_steps=0"),
        # types
        *("seed=abc", "seed=1.5", "seed=true", "seed=[1, 2]", "seeds.order=null", "files=x"),
        *("trainer.compile=maybe", "trainer.monitor=[a]", "model.accepts=5", "data.task=x"),
        *("determinism.env=null", "determinism.cudnn=x", "determinism.env.X=[1]"),
        *("trainer=5", "model=null", "data=[1]", "determinism.cudnn=[1]", "schedule=x"),
        # choices
        *("data.start_method=thread", "trainer.device='cuda:'", "trainer.mode=best"),
        *("determinism.on_nondeterministic=panic", "data.task={name: x}", "data.loading_threads=2"),
        # unknown keys, and entries without a class
        *("trainer.max_epoch=3", "schedule.warmup=1", "tag=[a]", "callbacks=x", "logger.a={b: 1}"),
    ],
)
def test_a_bad_value_is_refused_with_its_key(change: str) -> None:
    """One line that begins with the key, or with its section where that is a list."""
    key, _, value = change.partition("=")
    settings = deepcopy(BASE)
    OmegaConf.update(settings, key, yaml.safe_load(value), merge=False, force_add=True)
    with pytest.raises(InputError, match=r"^[^\n]*: expected [^\n]*, got [^\n]*$") as caught:
        config.check(settings)
    named = str(caught.value).partition(": ")[0]
    assert named == key or (isinstance(yaml.safe_load(value), list) and key.startswith(named))


@pytest.mark.parametrize(
    "key",
    ["seed", "data", "data.train", "data.task", "model._target_", "determinism.env",
     "determinism.cudnn", "seeds.init", "optimizer.lr", "schedule.final_fraction"],
)  # fmt: skip
def test_a_missing_key_is_named(key: str) -> None:
    """A key that a file lost is not guessed."""
    settings = deepcopy(BASE)
    section, _, name = key.rpartition(".")
    del (OmegaConf.select(settings, section) if section else settings)[name]
    with pytest.raises(InputError, match=rf"^{key}: expected "):
        config.check(settings)


def test_values_get_their_types() -> None:
    """In the object and in the mapping alike; keys that have a default may be missing."""
    resolved = config.resolve(compose("trainer.max_steps='12'", "trainer.gradient_clip_norm=1"))
    resolved.trainer.pop("test_weights", None)
    settings = config.check(resolved)
    assert isinstance(settings, Settings)
    assert isinstance(settings.trainer, Trainer)
    assert (settings.trainer.max_steps, resolved.trainer.max_steps) == (12, 12)
    assert settings.trainer.test_weights == resolved.trainer.test_weights == "best"
    assert settings.determinism.env["OMP_NUM_THREADS"] == "2"


def test_a_checked_configuration_survives_its_file() -> None:
    """config.yaml is the training process's only input: checked once more, it is the same."""
    resolved = configuration("optimizer.lr=1e-5", "experiment=adding_lstm")
    again = OmegaConf.create(OmegaConf.to_yaml(resolved))
    assert again == resolved
    config.check(again)
    assert OmegaConf.to_yaml(again) == OmegaConf.to_yaml(resolved)
